"""Rows that this program cannot read, say because a newer one wrote them. They must not take their neighbours along."""

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TypeVar

import msgspec

from mainspring.core.runtime.log import get_logger

Row = TypeVar("Row")
T = TypeVar("T")

#: What reading a row raises that says something else than it should.
UNREADABLE = (msgspec.MsgspecError, ValueError)

_log = get_logger("mainspring.store")


def read_rows(rows: Iterable[Row], read: Callable[[Row], T]) -> tuple[list[T], list[tuple[Row, Exception]]]:
    """What could be read, and the rows that could not, each with the reason."""
    good: list[T] = []
    bad: list[tuple[Row, Exception]] = []
    for row in rows:
        try:
            good.append(read(row))
        except UNREADABLE as error:
            bad.append((row, error))
    return good, bad


@lru_cache(maxsize=10_000)
def name_unreadable_job(job: str, version: int, error: str) -> None:
    """Tell of a job that cannot be read, once: it is looked at many times a second."""
    _log.error("a job cannot be read and is passed over; declare it again", job=job, version=version, error=error)
