"""Stores the logs of ended runs as objects outside the store, one per run."""

import hashlib
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from functools import lru_cache

from mainspring.core.logs.packed_log import Damaged, Frame, from_position, index_size, read_index, unpack
from mainspring.core.model.base.instant import DAY, MINUTE, Instant, Micros, from_datetime, to_datetime
from mainspring.core.model.runs.retention import CLASSES
from mainspring.core.model.runs.view import RunView
from mainspring.core.ports.blobs import Blobs, BlobsUnavailable
from mainspring.core.ports.storage.catalog import LogLine

_FOLDER = "logs"
#: The object that names the store these logs belong to.
_OWNER = "logs-of"
_URL_VALID_FOR: Micros = 5 * MINUTE
#: Bytes of the first read: the index, and the whole of a short log.
_HEAD = 16 * 1024
#: The longest part of a name that every file system accepts.
_LONGEST = 150


class RunLogs:
    """Reads and writes ``logs/<tenant>/<class>/<the day it ended>/<run>.jsonl.gz``.

    The run alone determines the name. A day of a class is deleted at once.

    The logs belong to one store. A copy of that store has runs with the same ids and would overwrite them; a different
    store does not know how long they must be kept.
    """

    def __init__(self, blobs: Blobs, whose: Callable[[], Awaitable[str]] | None = None) -> None:
        """``whose``: returns the identity of the store; None for a store that does not outlive its process."""
        self.blobs = blobs
        self._whose = whose
        self._is_ours = whose is None

    async def check_owner(self) -> bool:
        """Return whether the owner is recorded and is this store.

        Raises ``BlobsUnavailable`` if the logs belong to another store.
        """
        owner = None if self._whose is None else await self.blobs.get(_OWNER)
        if self._whose is None or owner is None:
            return False
        if owner != (await self._whose()).encode():
            raise BlobsUnavailable(
                f"{self.blobs.shown} has the logs of another store; "
                f"use another place, or delete {_OWNER} there if that store is gone for good"
            )
        return True

    async def make_ours(self) -> None:
        """Record this store as the owner; call before anything is written or deleted here.

        Raises ``BlobsUnavailable`` if the logs of another store are here.
        """
        if not self._is_ours and self._whose is not None:
            if not await self.check_owner():
                await self.blobs.put(_OWNER, (await self._whose()).encode())
            # Two processes may have done so at once.
            self._is_ours = await self.check_owner()

    async def put(self, logs: Sequence[tuple[RunView, bytes]]) -> None:
        """Write packed logs. If it raises, some of them may be written: put them again."""
        await self.make_ours()
        await self.blobs.put_all([(_name(run), packed) for run, packed in logs])

    async def read(self, run: RunView, after: int, limit: int) -> list[LogLine]:
        """Return lines after a position; empty if there is no log."""
        found: list[LogLine] = []
        with self._whole(name := _name(run)):
            head, frames = await self._index(name)
            for frame in from_position(frames, after):
                found += [line for line in await self._unpack(name, head, frame) if line.position > after]
                if len(found) >= limit:
                    break
        return found[:limit]

    async def read_before(self, run: RunView, before: int, limit: int) -> list[LogLine]:
        """Return the last lines before a position; empty if there is no log."""
        found: list[LogLine] = []
        with self._whole(name := _name(run)):
            head, frames = await self._index(name)
            for frame in reversed([frame for frame in frames if frame.position < before]):
                lines = await self._unpack(name, head, frame)
                found = [line for line in lines if line.position < before] + found
                if len(found) >= limit:
                    break
        return found[-limit:]

    async def _index(self, name: str) -> tuple[bytes, list[Frame]]:
        """Return the first bytes of the object and its frames; empty if there is no log."""
        head = await self.blobs.get(name, 0, _HEAD)
        if head is None:
            return b"", []
        if len(head) < (size := index_size(head)):
            head = await self.blobs.get(name, 0, size) or b""
        return head, read_index(head)

    async def _unpack(self, name: str, head: bytes, frame: Frame) -> list[LogLine]:
        end = frame.first + frame.size
        if end <= len(head):
            return unpack(head[frame.first : end])
        return unpack(await self.blobs.get(name, frame.first, frame.size) or b"")

    @contextmanager
    def _whole(self, name: str) -> Iterator[None]:
        try:
            yield
        except Damaged as error:
            raise BlobsUnavailable(f"{self.blobs.shown}: {name} {error}") from error

    async def url(self, run: RunView) -> str | None:
        """Return a URL under which anyone can read the whole log for 5 minutes.

        None: no log, or no URLs are supported.
        """
        name = _name(run)
        if await self.blobs.get(name, 0, 1) is None:
            return None
        return await self.blobs.signed_url(name, _URL_VALID_FOR)

    async def delete(self, runs: Collection[RunView]) -> None:
        await self.make_ours()
        await self.blobs.delete([_name(run) for run in runs])

    async def forget(self, now: Instant, keep: Callable[[str, str], Micros]) -> AsyncGenerator[int, None]:
        """Delete the days whose retention has passed, in batches; yields how many logs were deleted.

        ``keep``: how long the logs of a tenant's folder and a class are kept, counted from the end of their day.
        """
        await self.make_ours()
        for tenant in await self.blobs.folders(_FOLDER):
            yield 0
            for name in await self.blobs.folders(f"{_FOLDER}/{tenant}"):
                if name not in CLASSES:
                    continue
                before = now - keep(tenant, name)
                for day in await self.blobs.folders(f"{_FOLDER}/{tenant}/{name}"):
                    if (begin := _begin(day)) is None or begin + DAY > before:
                        continue
                    async for batch in self.blobs.list(f"{_FOLDER}/{tenant}/{name}/{day}"):
                        await self.blobs.delete([blob.name for blob in batch])
                        yield len(batch)


@lru_cache(maxsize=1_000)
def build_folder_name(tenant: str) -> str:
    """Return a tenant's name as a part of a path.

    Characters other than ASCII letters, digits, ``_`` and ``-`` become ``=`` and their bytes in hex. Long names are cut
    and end with a hash.
    """
    written = re.sub("[^A-Za-z0-9_-]", lambda found: "".join(f"={byte:02x}" for byte in found[0].encode()), tenant)
    if len(written) <= _LONGEST:
        return written
    return f"{written[:100]}={hashlib.blake2b(tenant.encode(), digest_size=16).hexdigest()}"


def _name(run: RunView) -> str:
    assert run.finished_at is not None
    day = to_datetime(run.finished_at).date().isoformat()
    return f"{_FOLDER}/{build_folder_name(run.tenant)}/{run.kept_as}/{day}/{run.id}.jsonl.gz"


def _begin(day: str) -> Instant | None:
    """Return the start of the day that a folder is named after. None: the folder is not ours."""
    try:
        return from_datetime(to_datetime(0).combine(date.fromisoformat(day), to_datetime(0).timetz()))
    except ValueError:
        return None
