"""Which folder or bucket an address names."""

from collections.abc import Awaitable, Callable
from pathlib import Path

from mainspring.adapters.blobs.folder import FolderBlobs
from mainspring.bootstrap.stores import missing
from mainspring.control.run_logs import RunLogs
from mainspring.domain.blobs import read_blobs
from mainspring.domain.coordination import STORE
from mainspring.ports.blobs import Blobs
from mainspring.sections import BlobsSection
from mainspring.settings import Settings


def make_blobs(address: str, field: str, section: BlobsSection) -> Blobs:
    """``field``: the setting that the address is in."""
    found = read_blobs(address, field)
    if found.kind == "file":
        return FolderBlobs(Path(found.place))
    try:
        from mainspring.adapters.blobs.bucket import BucketBlobs
    except ModuleNotFoundError as error:
        raise missing("a bucket", "s3", error, field) from error
    return BucketBlobs(found, section.read())


def make_run_logs(settings: Settings, whose: Callable[[], Awaitable[str]] | None = None) -> RunLogs | None:
    """Where the logs of runs go that have ended; None: they stay in the store. ``whose``: the store's identity."""
    section = settings.run_logs
    if section.where == STORE:
        return None
    return RunLogs(make_blobs(section.where, "run_logs.where", settings.blobs), whose)
