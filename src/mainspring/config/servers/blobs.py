"""Builds the folder or bucket that an address names."""

from collections.abc import Awaitable, Callable
from pathlib import Path

from mainspring.config.sections.storage import BlobsSection
from mainspring.config.settings import Settings
from mainspring.config.stores import explain_missing
from mainspring.core.logs.run_logs import RunLogs
from mainspring.core.model.cluster.coordination import STORE
from mainspring.core.ports.blobs import Blobs
from mainspring.integrations.files.folder import FolderBlobs
from mainspring.integrations.s3.address import parse_blob_address


def make_blobs(address: str, field: str, section: BlobsSection) -> Blobs:
    """``field``: the setting that has the address."""
    found = parse_blob_address(address, field)
    if found.kind == "file":
        return FolderBlobs(Path(found.location))
    try:
        from mainspring.integrations.s3.bucket import BucketBlobs
    except ModuleNotFoundError as error:
        raise explain_missing("a bucket", "s3", error, field) from error
    return BucketBlobs(found, section.read())


def make_run_logs(settings: Settings, whose: Callable[[], Awaitable[str]] | None = None) -> RunLogs | None:
    """Build the log storage for ended runs, or None if logs stay in the store.

    ``whose``: reads the store's identity.
    """
    section = settings.run_logs
    if section.location == STORE:
        return None
    return RunLogs(make_blobs(section.location, "run_logs.location", settings.blobs), whose)
