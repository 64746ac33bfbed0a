"""Captures what handlers print and log, in addition to its usual destination."""

import logging
import sys
import threading
from collections.abc import Iterable
from typing import Any, TextIO, cast

from mainspring.core.runtime.log_lines import shows_output
from mainspring.core.runtime.masking import masks
from mainspring.core.worker.reporting.attempt_reporter import current

#: The loggers of ``context.log`` are below this one.
TASKS = "mainspring.task"

_formatter = logging.Formatter()


class Tee:
    """Wraps a file: writes are captured for the current attempt and passed on to the file."""

    def __init__(self, inner: TextIO) -> None:
        self.inner = inner

    def write(self, text: str) -> int:
        reporter = current.get()
        shown = reporter is not None and shows_output()
        if reporter is not None and (shown or reporter.listener.captures):
            reporter.write(text)
        if not shown:
            self.inner.write(masks.everything(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class MaskedFile(Tee):
    """Wraps a file that is not captured: writes are passed on with secrets masked."""

    def write(self, text: str) -> int:
        self.inner.write(masks.everything(text))
        return len(text)


class _Capture:
    """The capture of the whole process; active as long as at least one user wants it.

    Log records are captured where they are created. A log handler of our own would be removed by code that sets up
    logging later, or would keep ``basicConfig`` from working. It would also miss loggers that do not propagate.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted = 0
        self._there = False
        self._hides = False
        self._make_record: Any = logging.LogRecord

    def begin(self) -> None:
        with self._lock:
            self._wanted += 1
            if not self._there:
                factory = logging.getLogRecordFactory()
                # Code that saved our factory while we captured may have restored it after we had removed it.
                if factory != self._record:
                    self._make_record = factory
                logging.setLogRecordFactory(self._record)
                self._there = True
            self._tee()

    def end(self) -> None:
        with self._lock:
            self._wanted -= 1
            if self._wanted == 0:
                # Another factory may wrap ours; then records still pass through here, and nothing is captured.
                if logging.getLogRecordFactory() == self._record:
                    logging.setLogRecordFactory(self._make_record)
                    self._there = False
                if isinstance(sys.stdout, Tee):
                    sys.stdout = sys.stdout.inner

    def hide(self) -> None:
        """From now on, also mask secrets in the process's own output and logs, until it ends."""
        if not self._hides:
            self._hides = True
            self.begin()
        # They may have been replaced since.
        self._tee()
        if not isinstance(sys.stderr, MaskedFile) and sys.stderr is not None:
            sys.stderr = cast(TextIO, MaskedFile(sys.stderr))

    def show(self) -> None:
        """Stop masking. For tests."""
        if self._hides:
            self._hides = False
            self.end()
            if isinstance(sys.stderr, MaskedFile):
                sys.stderr = sys.stderr.inner

    def renew(self) -> None:
        """Wrap ``sys.stdout`` again. For code that replaces it now and then, such as pytest."""
        if self._wanted:
            self._tee()

    def _tee(self) -> None:
        if not isinstance(sys.stdout, Tee) and sys.stdout is not None:
            sys.stdout = cast(TextIO, Tee(sys.stdout))

    def _record(self, *args: Any, **named: Any) -> logging.LogRecord:
        record: logging.LogRecord = self._make_record(*args, **named)
        if self._hides:
            _hide_in(record)
        reporter = current.get()
        if reporter is not None and reporter.listener.captures and self._wanted and _is_theirs(record.name):
            reporter.log(format_line(record))
        return record


def _is_theirs(name: str | None) -> bool:
    # Our own lines are about the worker, even if a handler caused them. ``context.log`` is kept anyway.
    return name is not None and not name.startswith("mainspring.")


def _hide_in(record: logging.LogRecord) -> None:
    """Mask the record for all of its log handlers, including the application's."""
    if isinstance(record.msg, dict):
        # From structlog, which renders it later; the renderer of the exception masks that part.
        record.msg = {name: value if name == "exc_info" else _hidden(value) for name, value in record.msg.items()}
        return
    text = format_message(record)
    hidden = masks.everything(text)
    if hidden != text:
        record.msg, record.args = hidden, ()
    if record.exc_info and record.exc_info[0] is not None:
        trace = _formatter.formatException(record.exc_info)
        if (shown := masks.everything(trace)) != trace:
            # As part of the message: a log handler that gets the exception would render it again, unmasked.
            record.msg, record.args, record.exc_info = f"{hidden}\n{shown}", (), None


def _hidden(value: object) -> object:
    """Return a value unchanged, unless its text contains a secret."""
    if isinstance(value, str):
        return masks.everything(value)
    try:
        text = repr(value)
    except Exception:
        return value
    return value if (hidden := masks.everything(text)) == text else hidden


def format_message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:
        # Like logging itself: a bad format must not break the program.
        return f"{record.msg} {record.args!r}"


def format_line(record: logging.LogRecord) -> str:
    line = f"{record.levelname} {record.name}: {format_message(record)}"
    if record.exc_info and record.exc_info[0] is not None:
        line = f"{line}\n{_formatter.formatException(record.exc_info)}"
    return line


capture = _Capture()
