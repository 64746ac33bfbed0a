"""Writes what is about to be forgotten to a folder or a bucket, and reads it again."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable, Collection, Sequence

import msgspec

from mainspring.domain.archive import MANIFEST, ROOT, ArchiveFile, Manifest, sum_of
from mainspring.domain.errors import Conflict
from mainspring.domain.instant import Instant
from mainspring.domain.run import AttemptView, RunView
from mainspring.ports.archive import ArchivedRun, Archiving, Part
from mainspring.ports.blobs import Blobs, BlobsUnavailable
from mainspring.ports.clock import Clock
from mainspring.ports.store import Retention
from mainspring.runtime.log import get_logger

#: Of one file: whichever comes first. What is read at a time.
_RUNS = 50_000
_BYTES = 32 * 1024 * 1024
_READ = 2_000
#: Whoever owns this shard writes; all others look whether it is there.
_SHARD = 0
_LEVEL = 3


class _Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run in a file: payload and result are the JSON that they are."""

    run: RunView
    payload: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    attempts: tuple[AttemptView, ...] = ()


_encoder = msgspec.json.Encoder()
_read_manifest = msgspec.json.Decoder(Manifest).decode
_read_run = msgspec.json.Decoder(_Line).decode
_log = get_logger("mainspring.archive")


class Archiver:
    """Nothing is forgotten that is not there: the spans of what waits are made so long that ``prune`` leaves it."""

    def __init__(
        self,
        store: Archiving,
        blobs: Blobs,
        clock: Clock,
        owned: Callable[[], Collection[int]],
        pause: Callable[[], bool],
    ) -> None:
        """``pause``: whether the store is to be spared."""
        self._store = store
        self._blobs = blobs
        self._clock = clock
        self._owned = owned
        self._pause = pause
        self._done: set[tuple[str, Instant]] = set()
        #: The last file that was written here, and the last run in it.
        self._last: tuple[ArchiveFile, ArchivedRun] | None = None
        #: Why nothing can be written; nothing while it can.
        self.trouble = ""
        #: How many parts wait to be written.
        self.waiting = 0

    async def step(self, retention: Retention) -> tuple[Retention, bool]:
        """Write the next file. What may be forgotten after that, and whether there is more to write."""
        parts = [part for part in await self._store.past_parts(retention) if _key(part) not in self._done]
        first: dict[str, Part] = {}
        wrote = False
        try:
            for part in parts:
                if part.kept_as in first:
                    continue
                manifest = await self._manifest(part)
                if not manifest.complete and not wrote and _SHARD in self._owned() and not self._pause():
                    manifest = await self._write(part, manifest)
                    wrote = True
                if manifest.complete:
                    self._done.add(_key(part))
                else:
                    first[part.kept_as] = part
            self._is_well()
        except BlobsUnavailable as error:
            wrote = False
            self._is_ill(str(error))
            for part in parts:
                if _key(part) not in self._done:
                    first.setdefault(part.kept_as, part)
        self.waiting = sum(_key(part) not in self._done for part in parts)
        now = await self._store.now()
        spans = {name: max(getattr(retention, name), now - part.since) for name, part in first.items()}
        return msgspec.structs.replace(retention, **spans), wrote

    async def _manifest(self, part: Part) -> Manifest:
        manifest = Manifest(
            store=await self._store.identity(), kept_as=part.kept_as, since=part.since, until=part.until
        )
        data = await self._blobs.get(f"{manifest.folder}/{MANIFEST}")
        return manifest if data is None else _read_manifest(data)

    async def _write(self, part: Part, manifest: Manifest) -> Manifest:
        """Its next file, and what is known of it by then."""
        last = None
        if self._last is not None and manifest.files[-1:] == (self._last[0],):
            last = self._last[1]
        elif manifest.files:
            # Where whoever was here before stopped.
            *_, last = [run async for run in _runs_in(self._blobs, manifest.files[-1])]
        lines: list[bytes] = []
        times: list[Instant] = []
        size, ended = 0, False
        while len(lines) < _RUNS and size < _BYTES and not ended:
            began = self._clock.monotonic()
            runs = await self._store.archived_runs(part, last, min(_READ, _RUNS - len(lines)))
            more = await asyncio.to_thread(_lines, runs)
            lines += more
            size += sum(map(len, more))
            times += [run.run.finished_at or 0 for run in runs]
            ended = not runs
            last = runs[-1] if runs else last
            # At most half of the time: live work comes first.
            await self._clock.sleep(self._clock.monotonic() - began)
        if lines and last is not None:
            manifest = await self._put(manifest, lines, times)
            self._last = manifest.files[-1], last
        manifest = msgspec.structs.replace(manifest, complete=ended)
        await self._blobs.put(f"{manifest.folder}/{MANIFEST}", _encoder.encode(manifest))
        if ended:
            _log.info("archived", folder=manifest.folder, runs=manifest.runs, bytes=manifest.size)
        return manifest

    async def _put(self, manifest: Manifest, lines: list[bytes], times: list[Instant]) -> Manifest:
        # The same runs make the same bytes, whoever writes them.
        data = await asyncio.to_thread(lambda: gzip.compress(b"\n".join(lines) + b"\n", _LEVEL, mtime=0))
        file = ArchiveFile(name=manifest.next_name(), runs=len(lines), size=len(data), sha256=sum_of(data))
        await self._blobs.put(file.name, data)
        there = await self._blobs.get(file.name)
        if there is None or sum_of(there) != file.sha256:
            raise BlobsUnavailable(f"{self._blobs.shown}: {file.name} is not what was written")
        ends = [*times, *(at for at in (manifest.first_at, manifest.last_at) if at is not None)]
        return msgspec.structs.replace(
            manifest,
            runs=manifest.runs + len(lines),
            first_at=min(ends),
            last_at=max(ends),
            files=(*manifest.files, file),
        )

    def _is_well(self) -> None:
        if self.trouble:
            _log.info("the archive can be reached again", where=self._blobs.shown)
        self.trouble = ""

    def _is_ill(self, why: str) -> None:
        if why != self.trouble:
            _log.warning("nothing is forgotten, since the archive cannot be written", why=why)
        self.trouble = why


def _key(part: Part) -> tuple[str, Instant]:
    return part.kept_as, part.since


async def manifests(blobs: Blobs) -> list[Manifest]:
    """What there is in an archive, by time."""
    found = []
    async for batch in blobs.list(ROOT):
        for blob in batch:
            if blob.name.endswith(f"/{MANIFEST}"):
                data = await blobs.get(blob.name)
                if data is not None:
                    found.append(_read_manifest(data))
    return sorted(found, key=lambda manifest: (manifest.since, manifest.kept_as, manifest.store))


async def archived(blobs: Blobs, manifest: Manifest) -> AsyncIterator[ArchivedRun]:
    """The runs of one part. A file that is not as it was written is an error."""
    for file in manifest.files:
        async for run in _runs_in(blobs, file):
            yield run


async def _runs_in(blobs: Blobs, file: ArchiveFile) -> AsyncIterator[ArchivedRun]:
    data = await blobs.get(file.name)
    if data is None or sum_of(data) != file.sha256:
        raise Conflict(f"{file.name} is {'missing' if data is None else 'not as it was written'}")
    for line in (await asyncio.to_thread(gzip.decompress, data)).splitlines():
        read = _read_run(line)
        payload, result = (None if one is msgspec.UNSET else bytes(one) for one in (read.payload, read.result))
        yield ArchivedRun(run=msgspec.structs.replace(read.run, payload=payload, result=result), attempts=read.attempts)


def _lines(runs: Sequence[ArchivedRun]) -> list[bytes]:
    return [
        _encoder.encode(
            _Line(
                run=msgspec.structs.replace(one.run, payload=None, result=None),
                payload=msgspec.UNSET if one.run.payload is None else msgspec.Raw(one.run.payload),
                result=msgspec.UNSET if one.run.result is None else msgspec.Raw(one.run.result),
                attempts=one.attempts,
            )
        )
        for one in runs
    ]
