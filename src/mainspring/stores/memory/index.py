"""The sorted index that all tables of a memory store use."""

from bisect import bisect_left, insort
from collections.abc import Iterator


class Index:
    """Rows in the order of a number, then of their id.

    A plain sorted list: an insertion moves all later entries, which stays cheap up to some hundred thousand rows. It
    never holds stale entries.
    """

    def __init__(self) -> None:
        self.entries: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, number: int, row: str) -> None:
        insort(self.entries, (number, row))

    def remove(self, number: int, row: str) -> None:
        at = bisect_left(self.entries, (number, row))
        if at < len(self.entries) and self.entries[at] == (number, row):
            del self.entries[at]

    def until(self, number: int) -> Iterator[tuple[int, str]]:
        """Yield the entries up to and including a number. The index must not change meanwhile."""
        for entry in self.entries:
            if entry[0] > number:
                return
            yield entry
