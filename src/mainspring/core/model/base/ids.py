"""Identifiers: time-ordered, created without coordination, with the shard inside.

An id is 32 hexadecimal digits in the layout of a version 7 UUID, so PostgreSQL keeps it in 16 bytes and its index grows
at one end:

    tttttttttttt 7 sss hhhh rrrrrrrrrrrr
    │            │ │   │    └ 48 random bits
    │            │ │   └ variant bits (10) and 14 bits of shard
    │            │ └ sequence within the millisecond: ids of one process sort in the order of their creation
    │            └ version: 7 for random ids, 8 for ids derived from the object they identify
    └ milliseconds since 1970
"""

import hashlib
import re
from random import Random
from typing import NewType

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import MILLISECOND, Instant

RunId = NewType("RunId", str)
JobId = NewType("JobId", str)
SessionId = NewType("SessionId", int)

MAX_SHARDS = 1 << 14

_is_id = re.compile("[0-9a-f]{12}[78][0-9a-f]{19}").fullmatch


class IdMaker:
    """Creates ids that sort in the order of creation, even if the clock jumps."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._millisecond = 0
        self._sequence = 0

    def make(self, now: Instant, shard: int) -> str:
        millisecond = now // MILLISECOND
        if millisecond > self._millisecond:
            self._millisecond = millisecond
            self._sequence = 0
        else:
            self._sequence += 1
            if self._sequence > 0xFFF:
                self._millisecond += 1
                self._sequence = 0
        return f"{self._millisecond:012x}7{self._sequence:03x}{0x8000 | shard:04x}{self._random.getrandbits(48):012x}"

    def run(self, now: Instant, shard: int) -> RunId:
        return RunId(self.make(now, shard))

    def job(self, now: Instant, shard: int) -> JobId:
        return JobId(self.make(now, shard))


def derived_id(at: Instant, shard: int, *parts: object) -> str:
    """Derive an id from its parts, the same on every node: a tick's run, a job version's body."""
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).hexdigest()
    return f"{at // MILLISECOND:012x}8{digest[:3]}{0x8000 | shard:04x}{digest[3:15]}"


def decode_shard(identifier: str) -> int:
    """Return the shard encoded in an id."""
    return int(identifier[16:20], 16) & 0x3FFF


def made_at(identifier: str) -> Instant:
    """Return when an id was created, to the millisecond."""
    return int(identifier[:12], 16) * MILLISECOND


def first_id(at: Instant) -> str:
    """Return a lower bound of all ids created at this instant or later."""
    return f"{at // MILLISECOND:012x}{0:020x}"


def is_derived(identifier: str) -> bool:
    """Return whether an id was derived from its parts. Its ``made_at`` may lie long before its creation."""
    return identifier[12] == "8"


def is_id(text: str) -> bool:
    """Return whether a text has the form of an id, whether or not the object exists."""
    return _is_id(text) is not None


def check_id(field: str, identifier: str) -> None:
    if not isinstance(identifier, str) or _is_id(identifier) is None:
        raise Invalid(field, f"{identifier!r:.40} is not an id", "32 hexadecimal digits of a version 7 or 8 UUID")


def shard_for(key: str, shards: int) -> int:
    """Return the shard of a key: work that must be consistent shares a shard."""
    return stable_hash(key) % shards


def stable_hash(key: str) -> int:
    """Return a 63-bit hash that is the same on every machine and in every process."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") >> 1
