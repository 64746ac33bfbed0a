"""The line of an error that says what went wrong: lists, logs and alerts show it, and failures are grouped by it."""

import re

#: Longer errors are not stored, so an error has the same headline before and after it is shortened.
_MAX_ERROR = 16 * 1024
_MAX_HEADLINE = 1_000
_TRACEBACK = "Traceback (most recent call last):"
_GROUP = "+ Exception Group "
_NAME = re.compile(r"[A-Za-z_][\w.]*(?=:|$)")


def find_headline(error: str) -> str:
    """Return the line that names the exception of the last traceback, without the other lines of its message.

    A line below the traceback that names an exception is preferred: it was added after the exception. Without a
    traceback, the last nonempty line is the headline.
    """
    error = error[-_MAX_ERROR:]
    last = _find_last_line(error)
    start = error.rfind(_TRACEBACK)
    if start < 0 or _names_exception(last):
        return last.strip()
    return _find_exception(error, start)[:_MAX_HEADLINE] or last.strip()


def _find_last_line(error: str) -> str:
    lines = error[-_MAX_HEADLINE:].splitlines()
    return next((line for line in reversed(lines) if line.strip()), "")


def _names_exception(line: str) -> bool:
    """Tell ``TimeoutError: …`` from ``DETAIL: …`` and ``Hint: …``, which are parts of a message."""
    found = _NAME.match(line)
    name = "" if found is None else found[0].rpartition(".")[2]
    return name[:1].isupper() and not name.isupper() and sum(map(str.isupper, name)) > 1


def _find_exception(error: str, start: int) -> str:
    """Return the first line after the frames of a traceback. Within an exception group, each line has a margin."""
    margin = error[error.rfind("\n", 0, start) + 1 : start].replace(_GROUP, "| ")
    for line in error[start:].splitlines()[1:]:
        text = line.removeprefix(margin)
        if text.strip() and not text[0].isspace() and text[0] not in "|+":
            return text.strip()
    return ""
