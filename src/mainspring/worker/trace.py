"""An exception as the short text that is kept with the attempt."""

import traceback
from pathlib import Path
from types import TracebackType

_PACKAGE = str(Path(__file__).resolve().parents[1])
_LAST_FRAMES = 12


def describe(error: BaseException) -> str:
    """The last frames, without our own in front of them, and ``TypeName: message`` as the last line."""
    try:
        lines = traceback.format_exception(type(error), error, _without_ours(error.__traceback__), limit=-_LAST_FRAMES)
        return "".join(lines).rstrip()
    except Exception:
        # An exception whose own text cannot be had must not take the worker down with it.
        return type(error).__name__


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    theirs = trace
    while theirs is not None and theirs.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        theirs = theirs.tb_next
    return theirs if theirs is not None else trace
