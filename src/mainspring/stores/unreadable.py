"""Skips rows that this program cannot decode, for example those of a newer program, and keeps all others."""

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TypeVar

import msgspec

from mainspring.core.runtime.log import get_logger

Row = TypeVar("Row")
T = TypeVar("T")

#: Errors raised while decoding a row with unexpected content.
UNREADABLE = (msgspec.MsgspecError, ValueError)

_log = get_logger("mainspring.store")


def read_rows(rows: Iterable[Row], read: Callable[[Row], T]) -> tuple[list[T], list[tuple[Row, Exception]]]:
    """Return the decoded rows, and the rows that could not be decoded, each with its error."""
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
    """Log a job that cannot be decoded, once: schedulers read it many times a second."""
    _log.error("a job cannot be read and is passed over; declare it again", job=job, version=version, error=error)
