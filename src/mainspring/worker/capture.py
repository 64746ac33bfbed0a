"""Catches what handlers print and log, beside where it goes anyway."""

import logging
import sys
import threading
from collections.abc import Iterable
from typing import Any, TextIO, cast

from mainspring.worker.telling import current

#: The loggers of ``context.log`` are below this one.
TASKS = "mainspring.task"

_formatter = logging.Formatter()


class Tee:
    """A file that is written to, and what it stands before."""

    def __init__(self, inner: TextIO) -> None:
        self.inner = inner

    def write(self, text: str) -> int:
        telling = current.get()
        if telling is not None and telling.ear.captures:
            telling.write(text)
        return self.inner.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class _Capture:
    """Of the whole process; there as long as somebody wants it.

    Log records are caught where they are made: a handler of our own would be removed by whoever sets up logging after
    us, or would keep ``basicConfig`` from doing it, and would hear nothing of loggers that do not propagate.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted = 0
        self._there = False
        self._make_record: Any = logging.LogRecord

    def begin(self) -> None:
        with self._lock:
            self._wanted += 1
            if not self._there:
                self._make_record = logging.getLogRecordFactory()
                logging.setLogRecordFactory(self._record)
                self._there = True
            self._tee()

    def end(self) -> None:
        with self._lock:
            self._wanted -= 1
            if self._wanted == 0:
                # Somebody may have come after us; then they still pass through here, and nothing is caught.
                if logging.getLogRecordFactory() == self._record:
                    logging.setLogRecordFactory(self._make_record)
                    self._there = False
                if isinstance(sys.stdout, Tee):
                    sys.stdout = sys.stdout.inner

    def renew(self) -> None:
        """For who replaces ``sys.stdout`` now and then, as pytest does."""
        if self._wanted:
            self._tee()

    def _tee(self) -> None:
        if not isinstance(sys.stdout, Tee) and sys.stdout is not None:
            sys.stdout = cast(TextIO, Tee(sys.stdout))

    def _record(self, *args: Any, **named: Any) -> logging.LogRecord:
        record: logging.LogRecord = self._make_record(*args, **named)
        telling = current.get()
        if telling is not None and telling.ear.captures and self._wanted and _is_theirs(record.name):
            telling.log(line_of(record))
        return record


def _is_theirs(name: str | None) -> bool:
    # Our own lines are about the worker, even if they come of what a handler did. ``context.log`` is kept anyway.
    return name is not None and not name.startswith("mainspring.")


def line_of(record: logging.LogRecord) -> str:
    try:
        text = record.getMessage()
    except Exception:
        # As logging itself: a bad format must not break the program.
        text = f"{record.msg} {record.args!r}"
    line = f"{record.levelname} {record.name}: {text}"
    if record.exc_info and record.exc_info[0] is not None:
        line = f"{line}\n{_formatter.formatException(record.exc_info)}"
    return line


capture = _Capture()
