"""Where the runs of an archive are, and how it is known that they are all there."""

import hashlib
from datetime import UTC, datetime
from typing import Literal

import msgspec

from mainspring.core.model.base.instant import DAY, SECOND, Instant

#: What every name of an archive begins with.
ROOT = "runs"
MANIFEST = "manifest.json"
#: What is known of a part that is not all there.
UNFINISHED = "unfinished.json"


class ArchiveFile(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Lines of JSON, compressed by gzip."""

    name: str
    runs: int
    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What there is of a part. It is written after each of its files, so that whoever comes back goes on from there."""

    format: Literal[1] = 1
    store: str
    kept_as: str
    since: Instant
    until: Instant
    complete: bool = False
    runs: int = 0
    #: When the first and the last of them ended.
    first_at: Instant | None = None
    last_at: Instant | None = None
    files: tuple[ArchiveFile, ...] = ()

    @property
    def folder(self) -> str:
        days = (self.until - self.since) // DAY
        span = day_name(self.since) if days == 1 else f"{day_name(self.since)}_{days}d"
        return f"{ROOT}/{self.store}/{self.kept_as}/{span}"

    @property
    def name(self) -> str:
        """Two names: whoever comes late can put nothing unfinished in the place of what is whole."""
        return f"{self.folder}/{MANIFEST if self.complete else UNFINISHED}"

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def next_name(self, sha256: str) -> str:
        """Of a file of that content: two who write at once may end their files at different runs."""
        return f"{self.folder}/{len(self.files):05}-{sha256[:12]}.jsonl.gz"


def day_name(at: Instant) -> str:
    return datetime.fromtimestamp(at // SECOND, UTC).strftime("%Y-%m-%d")


def sum_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
