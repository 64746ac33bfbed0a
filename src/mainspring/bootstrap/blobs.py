"""Which folder or bucket an address names."""

from pathlib import Path

from mainspring.adapters.blobs.folder import FolderBlobs
from mainspring.bootstrap.stores import missing
from mainspring.domain.blobs import read_blobs
from mainspring.ports.blobs import Blobs
from mainspring.sections import BlobsSection


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
