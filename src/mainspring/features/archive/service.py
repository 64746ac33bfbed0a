"""Archiver: writes runs to a folder or bucket before retention deletes them, and reads them back."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence

import msgspec

from mainspring.core.model.base.errors import Conflict
from mainspring.core.model.base.instant import DAY, Instant
from mainspring.core.model.runs.view import AttemptView, RunView
from mainspring.core.ports.blobs import Blobs, BlobsUnavailable
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.storage.upkeep import Retention
from mainspring.core.ports.upkeep.archive import ArchivedRun, ArchivePart, ArchiveStore
from mainspring.core.runtime.log import get_logger
from mainspring.features.archive.model import MANIFEST, ROOT, UNFINISHED, ArchiveFile, Manifest, compute_sha256

#: Limits of one file, whichever comes first.
_MAX_RUNS = 50_000
_MAX_BYTES = 32 * 1024 * 1024
#: Limits of one read, whichever comes first.
_READ_RUNS = 2_000
_READ_BYTES = 4 * 1024 * 1024
#: Pause after a read, as a multiple of its duration, because live work comes first. It is shorter when more parts wait
#: than two days produce.
_PAUSE_FACTOR = 3
_PAUSE_FACTOR_IF_BEHIND = 1
_BEHIND_PARTS = 10
#: The scheduler that owns this shard writes; the others only check what is there.
_SHARD = 0
_GZIP_LEVEL = 3
#: The fields of ``Retention`` that say how long runs are kept.
_RETENTION_FIELDS = ("succeeded", "unsuccessful", "short", "long", "audit")


class _Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run in a file; payload and result are embedded as JSON."""

    run: RunView
    payload: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    attempts: tuple[AttemptView, ...] = ()


_encoder = msgspec.json.Encoder()
_decode_manifest = msgspec.json.Decoder(Manifest).decode
_decode_line = msgspec.json.Decoder(_Line).decode
_log = get_logger("mainspring.archive")


class Archiver:
    """Archives runs before they are deleted. ``prune`` receives the time since when unarchived runs must be kept."""

    def __init__(
        self,
        store: ArchiveStore,
        blobs: Blobs,
        clock: Clock,
        owned: Callable[[], Collection[int]],
        is_loaded: Callable[[], bool],
    ) -> None:
        """``is_loaded``: whether the store is under load."""
        self._store = store
        self._blobs = blobs
        self._clock = clock
        self._owned = owned
        self._is_loaded = is_loaded
        self._done: set[tuple[str, Instant]] = set()
        #: The last file written by this process, and the last run in it.
        self._last: tuple[ArchiveFile, ArchivedRun] | None = None
        #: The current error of the archive; empty if there is none.
        self.trouble = ""
        #: Parts that wait to be written.
        self.waiting = 0

    async def step(self, retention: Retention, stop: Callable[[], bool] = lambda: False) -> tuple[Retention, bool]:
        """Write the next file; return the retention that is safe now, and whether there is more to write.

        ``stop``: whether to stop before the next write.
        """
        # Read the time before the parts, so that everything past by then is among them.
        now = await self._store.now()
        parts = [part for part in await self._store.past_parts(retention) if _build_key(part) not in self._done]
        waiting: dict[str, Instant] = {}
        trouble, unavailable, wrote = "", False, False
        for part in parts:
            if part.kept_as in waiting:
                continue
            complete = False
            if not unavailable:
                try:
                    before = await self._manifest(part)
                    after = before if before.complete or wrote else await self._write(part, before, stop)
                    wrote = wrote or after != before
                    complete = after.complete
                except (BlobsUnavailable, Conflict) as error:
                    trouble, unavailable = str(error), isinstance(error, BlobsUnavailable)
            if complete:
                self._done.add(_build_key(part))
            else:
                waiting[part.kept_as] = part.since
        self._set_trouble(trouble)
        self.waiting = sum(_build_key(part) not in self._done for part in parts)
        return msgspec.structs.replace(
            retention, kept_since=compute_kept_since(retention, now, waiting)
        ), wrote and not unavailable

    async def _manifest(self, part: ArchivePart) -> Manifest:
        manifest = Manifest(
            store=await self._store.identity(), kept_as=part.kept_as, since=part.since, until=part.until
        )
        for name in (MANIFEST, UNFINISHED):
            found = await _read_manifest(self._blobs, f"{manifest.folder}/{name}")
            if found is not None:
                return found
        return manifest

    def _may_write(self, stop: Callable[[], bool]) -> bool:
        return _SHARD in self._owned() and not stop()

    async def _write(self, part: ArchivePart, manifest: Manifest, stop: Callable[[], bool]) -> Manifest:
        """Write the part's next file and manifest. Ownership is checked after every wait, since it may have changed."""
        if not self._may_write(stop) or self._is_loaded():
            return manifest
        last = await self._read_last_run(manifest)
        lines: list[bytes] = []
        times: list[Instant] = []
        size, ended = 0, False
        while len(lines) < _MAX_RUNS and size < _MAX_BYTES and not ended and not self._is_loaded():
            began = self._clock.monotonic()
            runs = await self._store.archived_runs(part, last, min(_READ_RUNS, _MAX_RUNS - len(lines)), _READ_BYTES)
            more = await asyncio.to_thread(_encode_lines, runs)
            lines += more
            size += sum(map(len, more))
            times += [run.run.finished_at or 0 for run in runs]
            ended = not runs
            last = runs[-1] if runs else last
            pause_factor = _PAUSE_FACTOR_IF_BEHIND if self.waiting > _BEHIND_PARTS else _PAUSE_FACTOR
            await self._clock.sleep(pause_factor * (self._clock.monotonic() - began))
            if not self._may_write(stop):
                return manifest
        written = msgspec.structs.replace(manifest, complete=ended)
        if lines and last is not None:
            written = await self._put(written, lines, times)
            self._last = written.files[-1], last
        if written == manifest or not self._may_write(stop):
            return manifest
        await self._blobs.put(written.name, _encoder.encode(written))
        if ended:
            _log.info("part archived", folder=written.folder, runs=written.runs, bytes=written.size)
        return written

    async def _read_last_run(self, manifest: Manifest) -> ArchivedRun | None:
        """Return the last archived run of the part, written by this process or an earlier writer."""
        if not manifest.files:
            return None
        if self._last is not None and manifest.files[-1] == self._last[0]:
            return self._last[1]
        *_, line = await _read_lines(self._blobs, manifest.files[-1])
        return _decode_run(line, manifest.files[-1])

    async def _put(self, manifest: Manifest, lines: list[bytes], times: list[Instant]) -> Manifest:
        # ``mtime=0``: the same runs give the same bytes in every process.
        data = await asyncio.to_thread(lambda: gzip.compress(b"\n".join(lines) + b"\n", _GZIP_LEVEL, mtime=0))
        sha256 = compute_sha256(data)
        file = ArchiveFile(name=manifest.next_name(sha256), runs=len(lines), size=len(data), sha256=sha256)
        await self._blobs.put(file.name, data)
        stored = await self._blobs.get(file.name)
        if stored is None or compute_sha256(stored) != file.sha256:
            raise BlobsUnavailable(f"{self._blobs.shown}: {file.name} differs from what was written")
        ends = [*times, *(at for at in (manifest.first_at, manifest.last_at) if at is not None)]
        return msgspec.structs.replace(
            manifest,
            runs=manifest.runs + len(lines),
            first_at=min(ends),
            last_at=max(ends),
            files=(*manifest.files, file),
        )

    def _set_trouble(self, trouble: str) -> None:
        if trouble and trouble != self.trouble:
            _log.warning("archive unavailable, runs are kept in the store", error=trouble)
        if self.trouble and not trouble:
            _log.info("archive available again", archive=self._blobs.shown)
        self.trouble = trouble


def compute_kept_since(retention: Retention, now: Instant, waiting: Mapping[str, Instant]) -> dict[str, Instant]:
    """Return by class since when runs must be kept.

    That is the first day not fully past retention, or the start of the oldest part that waits for the archive.
    """
    midnights = {name: (now - getattr(retention, name)) // DAY * DAY for name in _RETENTION_FIELDS}
    return {name: min(at, waiting.get(name, at)) for name, at in midnights.items()}


def _build_key(part: ArchivePart) -> tuple[str, Instant]:
    return part.kept_as, part.since


async def list_manifests(blobs: Blobs) -> list[Manifest]:
    """List the manifests of an archive by time."""
    names = [blob.name async for batch in blobs.list(ROOT) for blob in batch]
    of_folder = {name.rpartition("/")[0]: name for name in names if name.endswith(f"/{UNFINISHED}")}
    of_folder |= {name.rpartition("/")[0]: name for name in names if name.endswith(f"/{MANIFEST}")}
    read = [await _read_manifest(blobs, name) for name in of_folder.values()]
    return sorted(
        (manifest for manifest in read if manifest is not None),
        key=lambda manifest: (manifest.since, manifest.kept_as, manifest.store),
    )


async def _read_manifest(blobs: Blobs, name: str) -> Manifest | None:
    data = await blobs.get(name)
    try:
        return None if data is None else _decode_manifest(data)
    except msgspec.DecodeError as error:
        raise Conflict(f"{name} is damaged, or was written by a newer version: {error}") from error


async def read_archived(blobs: Blobs, manifest: Manifest) -> AsyncIterator[ArchivedRun]:
    """Read the runs of one part. ``Conflict`` if a file is missing or damaged."""
    for file in manifest.files:
        for line in await _read_lines(blobs, file):
            yield _decode_run(line, file)


async def _read_lines(blobs: Blobs, file: ArchiveFile) -> list[bytes]:
    data = await blobs.get(file.name)
    if data is None or compute_sha256(data) != file.sha256:
        raise Conflict(f"{file.name} is {'missing' if data is None else 'different from what was written'}")
    return (await asyncio.to_thread(gzip.decompress, data)).splitlines()


def _decode_run(line: bytes, file: ArchiveFile) -> ArchivedRun:
    try:
        read = _decode_line(line)
    except msgspec.DecodeError as error:
        raise Conflict(f"{file.name} has a line that is not a run: {error}") from error
    payload, result = (None if one is msgspec.UNSET else bytes(one) for one in (read.payload, read.result))
    return ArchivedRun(run=msgspec.structs.replace(read.run, payload=payload, result=result), attempts=read.attempts)


def _encode_lines(runs: Sequence[ArchivedRun]) -> list[bytes]:
    return [
        _encoder.encode(
            _Line(
                run=msgspec.structs.replace(one.run, payload=None, result=None),
                payload=_compact_json(one.run.payload),
                result=_compact_json(one.run.result),
                attempts=one.attempts,
            )
        )
        for one in runs
    ]


def _compact_json(value: bytes | None) -> msgspec.Raw | msgspec.UnsetType:
    """Put JSON on one line; text that is not JSON becomes a JSON string."""
    if value is None:
        return msgspec.UNSET
    try:
        return msgspec.Raw(msgspec.json.format(value, indent=-1))
    except msgspec.DecodeError:
        return msgspec.Raw(_encoder.encode(value.decode(errors="replace")))
