"""Opens the archive in the settings, for commands that read it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from mainspring.config.servers.blobs import make_blobs
from mainspring.config.settings import Settings
from mainspring.core.model.base.errors import Invalid, StoreUnavailable
from mainspring.core.model.cluster.diagnosis import Finding, blamed, found
from mainspring.core.ports.blobs import Blobs, BlobsUnavailable
from mainspring.core.ports.upkeep.archive import ArchivedRun
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.features.archive.model import Manifest
from mainspring.features.archive.service import read_archived
from mainspring.integrations.files.folder import FolderBlobs

_CHUNK = 1_000


@asynccontextmanager
async def open_archive(settings: Settings) -> AsyncIterator[Blobs]:
    if not settings.retention.archive:
        raise Invalid("retention.archive", "is not set", "a folder, or s3://bucket/prefix")
    blobs = make_blobs(settings.retention.archive, "retention.archive", settings.blobs)
    try:
        yield blobs
    except BlobsUnavailable as error:
        raise StoreUnavailable(str(error)) from error
    finally:
        await blobs.close()


async def restore_archive(blobs: Blobs, parts: list[Manifest], tenant: str | None, into: Path) -> tuple[int, int]:
    """Write the runs of archive parts into an SQLite file.

    Returns how many were read, and how many of them are new.
    """
    from mainspring.stores.sqlite.upkeep.restoring import SqliteArchiveWriter

    target = SqliteArchiveWriter(into, SystemClock())
    await target.open()
    read = new = 0
    try:
        chunk: list[ArchivedRun] = []
        for part in parts:
            async for run in read_archived(blobs, part):
                if tenant in (None, run.run.tenant):
                    chunk.append(run)
                    read += 1
                if len(chunk) == _CHUNK:
                    new += await target.write(chunk)
                    chunk = []
        new += await target.write(chunk)
    finally:
        await target.close()
    return read, new


async def examine_archive(settings: Settings) -> list[Finding]:
    """Check that the archive can be written. Returns no findings if there is no archive."""
    if not settings.retention.archive:
        return []
    try:
        async with open_archive(settings) as blobs:
            await blobs.check()
            modes = [await blobs.examine_modes("archive permissions")] if isinstance(blobs, FolderBlobs) else []
    except (StoreUnavailable, Invalid) as error:
        advice = "fix it, or remove retention.archive; until then, no history is deleted, and the disk fills"
        return [blamed("archive", str(error), advice)]
    return [found("archive", f"{blobs.shown} can be written and read"), *modes]
