"""Rows of the task catalog."""

from collections.abc import Iterable

import msgspec

from mainspring.core.model.tasks.task_entry import KnownTask, TaskEntry
from mainspring.stores.unreadable import read_rows

#: rev, version, body, registered_by, registered_at
Row = tuple[int, int, bytes, str, int]
_entry = msgspec.json.Decoder(TaskEntry)


def read_tasks(rows: Iterable[Row]) -> list[KnownTask]:
    """Decode the entries that this program can read. A newer program may have written others."""
    return read_rows(rows, _read)[0]


def _read(row: Row) -> KnownTask:
    rev, version, body, registered_by, registered_at = row
    return KnownTask(
        entry=_entry.decode(body), version=version, rev=rev, registered_by=registered_by, registered_at=registered_at
    )
