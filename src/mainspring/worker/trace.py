"""An exception as the short text that is kept with the attempt."""

import traceback
from pathlib import Path
from types import TracebackType

_PACKAGE = str(Path(__file__).resolve().parents[1])
_LAST_FRAMES = 12


class Told(Exception):
    """A failure of something outside, told in full by its message. Where it was raised is of no interest."""


def describe(error: BaseException) -> str:
    """The last frames, without our own in front of them, and ``TypeName: message`` as the last line."""
    try:
        if isinstance(error, Told):
            # Its last line is what failures are grouped by; what was printed stands before it.
            before, _, last = str(error).rpartition("\n")
            return f"{before}\n{type(error).__name__}: {last}".lstrip("\n")
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
