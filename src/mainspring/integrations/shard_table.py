"""Encodes the table of shard owners, grouped by owner to keep it small."""

from collections import defaultdict
from collections.abc import Mapping

import msgspec

from mainspring.core.model.base.ids import SessionId

_decoder = msgspec.json.Decoder(dict[int, list[int]])


def encode_owners(owners: Mapping[int, SessionId]) -> bytes:
    shards: defaultdict[int, list[int]] = defaultdict(list)
    for shard, owner in sorted(owners.items()):
        shards[owner].append(shard)
    return msgspec.json.encode(shards)


def decode_owners(table: bytes) -> dict[int, SessionId]:
    """Decode a table of owners. Empty bytes are an empty table."""
    found = _decoder.decode(table) if table else {}
    return {shard: SessionId(owner) for owner, shards in found.items() for shard in shards}
