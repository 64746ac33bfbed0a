"""Archive layout: the names of files and the manifests that record whether a part is complete."""

import hashlib
from datetime import UTC, datetime
from typing import Literal

import msgspec

from mainspring.core.model.base.instant import DAY, SECOND, Instant

#: Prefix of every name in an archive.
ROOT = "runs"
MANIFEST = "manifest.json"
#: Name of the manifest of an incomplete part.
UNFINISHED = "unfinished.json"


class ArchiveFile(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A gzip file of JSON lines."""

    name: str
    runs: int
    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The files of a part. It is written after each file, so that another writer can continue from there."""

    format: Literal[1] = 1
    store: str
    kept_as: str
    since: Instant
    until: Instant
    complete: bool = False
    runs: int = 0
    #: When the first and the last of these runs ended.
    first_at: Instant | None = None
    last_at: Instant | None = None
    files: tuple[ArchiveFile, ...] = ()

    @property
    def folder(self) -> str:
        days = (self.until - self.since) // DAY
        span = format_day(self.since) if days == 1 else f"{format_day(self.since)}_{days}d"
        return f"{ROOT}/{self.store}/{self.kept_as}/{span}"

    @property
    def name(self) -> str:
        """Path of the manifest.

        An incomplete manifest has another name, so that a slow writer cannot overwrite a complete one.
        """
        return f"{self.folder}/{MANIFEST if self.complete else UNFINISHED}"

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def next_name(self, sha256: str) -> str:
        """Return the name of the next file.

        It includes the content hash, since two concurrent writers may end a file at different runs.
        """
        return f"{self.folder}/{len(self.files):05}-{sha256[:12]}.jsonl.gz"


def format_day(at: Instant) -> str:
    return datetime.fromtimestamp(at // SECOND, UTC).strftime("%Y-%m-%d")


def compute_sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
