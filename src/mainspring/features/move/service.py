"""Moves a store: everything is copied, compared, made to last, and only then is the old one marked as left."""

from collections.abc import Callable, Mapping

import msgspec

from mainspring.core.model.base.errors import Conflict
from mainspring.core.ports.upkeep.transfer import KINDS, Source, Tally, Target


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    #: By kind, as they were read and found again.
    tallies: Mapping[str, Tally]
    #: The copy was there from a move that was interrupted; it was compared, and the source marked.
    resumed: bool

    @property
    def rows(self) -> int:
        return sum(tally.rows for tally in self.tallies.values())


async def transfer(source: Source, target: Target, to: str, tell: Callable[[str, int, int], None]) -> Moved:
    """``to``: where it goes, as people are told. ``tell``: of each batch its kind, how many are done, of how many."""
    try:
        facts = source.open()
        counts = source.counts()
        try:
            is_there = await target.open(facts)
            tallies: dict[str, Tally] = {}
            for kind in KINDS:
                tally = Tally()
                for batch in source.batches(kind):
                    if not is_there:
                        await target.write(kind, batch)
                    tally = tally.plus(kind, batch)
                    tell(kind, tally.rows, counts[kind])
                tallies[kind] = tally
            for kind, tally in tallies.items():
                found = await target.tally(kind)
                if found != tally:
                    there = f"{found.rows:,} of {tally.rows:,}" if found.rows != tally.rows else "other"
                    raise Conflict(f"there are {there} rows of {kind} in the new store; nothing was moved")
            await target.commit()
        finally:
            await target.close()
        source.mark_moved(to)
        return Moved(tallies=tallies, resumed=is_there)
    finally:
        source.close()
