"""Formats an exception as the short text that is kept with the attempt."""

import os
import traceback
from pathlib import Path
from types import TracebackType

from mainspring.core.model.base.errors import MainspringError
from mainspring.core.runtime.masking import masks
from mainspring.core.worker.reporting.attempt_reporter import current

_ROOT = Path(__file__).resolve().parents[3]
_PACKAGE = f"{_ROOT}{os.sep}"
#: The demo's tasks are application code, although they are in the package.
_DEMO = f"{_ROOT / 'demo'}{os.sep}"
_LAST_FRAMES = 12


class ReportedError(Exception):
    """A failure outside this program whose message says everything: its traceback is omitted."""


def describe(error: BaseException) -> str:
    """Return the last frames, without our own leading ones, and ``TypeName: message`` as the last line.

    Secrets of the attempt's tenant are masked.
    """
    text = _describe(error)
    if not masks.any:
        return text
    reporter = current.get()
    return masks.everything(text) if reporter is None else masks.text(reporter.tenant, text)


def _describe(error: BaseException) -> str:
    try:
        if isinstance(error, ReportedError):
            # The last line is the headline; printed output precedes it.
            before, _, last = str(error).rpartition("\n")
            return f"{before}\n{type(error).__name__}: {last}".lstrip("\n")
        theirs = _without_ours(error.__traceback__)
        if theirs is None and isinstance(error, MainspringError) and _stands_alone(error):
            # Our own error: the message says what is wrong, and a traceback would not help.
            return f"{type(error).__name__}: {error}"
        trace = theirs or error.__traceback__
        lines = traceback.format_exception(type(error), error, trace, limit=-_LAST_FRAMES)
        return "".join(lines).rstrip()
    except Exception:
        # An exception that fails to render its own text must not crash the worker.
        return type(error).__name__


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    theirs = trace
    while theirs is not None and _is_ours(theirs.tb_frame.f_code.co_filename):
        theirs = theirs.tb_next
    return theirs


def _is_ours(file: str) -> bool:
    return file.startswith(_PACKAGE) and not file.startswith(_DEMO)


def _stands_alone(error: BaseException) -> bool:
    """Return True if no other exception would be shown as its cause."""
    return error.__cause__ is None and (error.__suppress_context__ or error.__context__ is None)
