"""Logs of runs that have ended, outside the store: an object each."""

import asyncio
import hashlib
import re
from collections.abc import Collection, Sequence
from datetime import date

from mainspring.control.packed_log import Damaged, from_position, index_size, pack, read_index, unpack
from mainspring.domain.instant import DAY, MINUTE, Instant, Micros, from_datetime, to_datetime
from mainspring.domain.run import RunView
from mainspring.ports.blobs import Blobs, BlobsUnavailable
from mainspring.ports.catalog import LogLine

_FOLDER = "logs"
_URL_VALID_FOR: Micros = 5 * MINUTE
#: Read at first: the index, and all of a log that is not long.
_HEAD = 16 * 1024
#: A part of a name that every file system takes.
_LONGEST = 150
_DELETED_TOGETHER = 1_000


class RunLogs:
    """``logs/<tenant>/<the day it ended>/<run>.jsonl.gz``: whoever has the run knows the name. A day is deleted at
    once."""

    def __init__(self, blobs: Blobs) -> None:
        self.blobs = blobs

    async def put(self, run: RunView, lines: Sequence[LogLine]) -> int:
        """How many bytes it takes there."""
        data = await asyncio.to_thread(pack, lines)
        await self.blobs.put(_name(run), data)
        return len(data)

    async def read(self, run: RunView, after: int, limit: int) -> list[LogLine]:
        """Lines after a position; none where there is no log."""
        name = _name(run)
        head = await self.blobs.get(name, 0, _HEAD)
        if head is None:
            return []
        found: list[LogLine] = []
        try:
            if len(head) < (size := index_size(head)):
                head = await self.blobs.get(name, 0, size) or b""
            for frame in from_position(read_index(head), after):
                end = frame.first + frame.size
                data = head[frame.first : end] if end <= len(head) else None
                if data is None:
                    data = await self.blobs.get(name, frame.first, frame.size) or b""
                found += [line for line in unpack(data) if line.position > after]
                if len(found) >= limit:
                    break
        except Damaged as error:
            raise BlobsUnavailable(f"{self.blobs.shown}: {name} {error}") from error
        return found[:limit]

    async def url(self, run: RunView) -> str | None:
        """Where anybody can read all of it for some minutes. None: there is no log, or no such address."""
        name = _name(run)
        if await self.blobs.get(name, 0, 1) is None:
            return None
        return await self.blobs.signed_url(name, _URL_VALID_FOR)

    async def delete(self, runs: Collection[RunView]) -> None:
        await self.blobs.delete([_name(run) for run in runs])

    async def tenants(self) -> Sequence[str]:
        """The folders of those that have logs here."""
        return await self.blobs.folders(_FOLDER)

    async def forget(self, folder: str, before: Instant) -> int:
        """Delete the days of a tenant that ended before that; how many logs went."""
        gone = 0
        for day in await self.blobs.folders(f"{_FOLDER}/{folder}"):
            if (begin := _begin(day)) is None or begin + DAY > before:
                continue
            names = [blob.name async for batch in self.blobs.list(f"{_FOLDER}/{folder}/{day}") for blob in batch]
            for first in range(0, len(names), _DELETED_TOGETHER):
                await self.blobs.delete(names[first : first + _DELETED_TOGETHER])
            gone += len(names)
        return gone


def folder_of(tenant: str) -> str:
    """A tenant's name as a part of a path: whatever is no letter and no digit as its bytes, behind an equals sign."""
    written = re.sub("[^A-Za-z0-9_-]", lambda found: "".join(f"={byte:02x}" for byte in found[0].encode()), tenant)
    if len(written) <= _LONGEST:
        return written
    return f"{written[:100]}={hashlib.blake2b(tenant.encode(), digest_size=16).hexdigest()}"


def _name(run: RunView) -> str:
    assert run.finished_at is not None
    return f"{_FOLDER}/{folder_of(run.tenant)}/{to_datetime(run.finished_at):%Y-%m-%d}/{run.id}.jsonl.gz"


def _begin(day: str) -> Instant | None:
    """Of a folder that is called by a day; None: somebody else's."""
    try:
        return from_datetime(to_datetime(0).combine(date.fromisoformat(day), to_datetime(0).timetz()))
    except ValueError:
        return None
