"""The sections of retention, run logs and buckets."""

import re

import msgspec

from mainspring.config.sections.values import Span, read_file
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import DAY
from mainspring.core.model.cluster.coordination import STORE


class RetentionSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    succeeded: Span = 7 * DAY
    """Succeeded runs of the retention class ``standard``."""
    unsuccessful: Span = 30 * DAY
    """Failed, cancelled and skipped runs, and attempts that did not succeed."""
    ledger: Span = 90 * DAY
    """The ledger of ticks. A tick is kept at least as long as its run."""
    short: Span = DAY
    """Completed runs of the retention class ``short``, with any outcome."""
    long: Span = 90 * DAY
    """Completed runs of the retention class ``long``."""
    audit: Span = 2_557 * DAY
    """Completed runs of the retention class ``audit``. Default: seven years."""
    archive: str = ""
    """A folder or a bucket, such as ``s3://bucket/prefix``: runs are written there before they are deleted."""


class RunLogsSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    location: str = STORE
    """Where logs of completed runs are kept: ``store``, a folder such as ``/var/lib/mainspring/blobs``, or a
    bucket, ``s3://bucket/prefix?endpoint=https://…&region=…``, ``gs://…`` or ``az://…``."""
    keep: Span = 30 * DAY
    """How long logs are kept in a folder or bucket; for the classes ``long`` and ``audit``, at least as long as
    their runs. In the store, a log is deleted with its run."""


class BlobsSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    credentials_file: str = ""
    """A file with the credentials of buckets, as lines such as ``AWS_SECRET_ACCESS_KEY=…``. Default: the
    environment variables of these names, or the machine's role."""

    def read(self) -> dict[str, str]:
        """Return the credentials by name. Errors never contain text of the file."""
        if not self.credentials_file:
            return {}
        text = read_file("blobs.credentials_file", self.credentials_file).decode(errors="replace")
        lines = [line.strip() for line in text.splitlines()]
        found = {}
        for number, line in enumerate(lines, 1):
            if not line or line.startswith("#"):
                continue
            name, equals, value = line.partition("=")
            if not equals or not re.fullmatch("[A-Z][A-Z0-9_]*", name):
                raise Invalid("blobs.credentials_file", f"line {number} is not NAME=value", "AWS_ACCESS_KEY_ID=…")
            found[name] = value
        return found
