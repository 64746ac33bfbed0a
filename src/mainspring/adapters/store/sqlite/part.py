"""What the parts of the store share."""

from mainspring.adapters.store.sqlite.steady_time import SteadyTime
from mainspring.adapters.store.sqlite.threads import Reader, Writer
from mainspring.domain.errors import Invalid
from mainspring.domain.ids import shard_of


class Part:
    shards: int
    _writer: Writer
    _reader: Reader
    _time: SteadyTime

    def _shard_of(self, identifier: str) -> int:
        """The shard that an id carries. Nobody would ever look at one that the store does not have."""
        shard = shard_of(identifier)
        if shard >= self.shards:
            raise Invalid("id", f"{identifier} carries shard {shard}", f"0 to {self.shards - 1}")
        return shard
