"""Calls user code on a thread in a way that can be interrupted."""

import ctypes
import threading
from collections.abc import Callable
from typing import TypeAlias

from mainspring.core.model.runs.cause import UNKNOWN, Cause, build_cause
from mainspring.core.worker.reporting.trace import describe

#: The result, or the text and cause of the error.
Ending: TypeAlias = tuple[bytes | None, str | None, Cause]


class Interrupted(BaseException):
    """Raised in the thread of a sync handler that must stop.

    Not an ``Exception``, so that it is only caught deliberately.

    It arrives between two steps of Python code. Code that waits inside C (a long ``time.sleep``, a query without a time
    limit) does not see it before that returns.
    """


class Call:
    """One call. ``interrupt`` takes effect at most once, and never after the call has ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._interrupted = False
        self._over = False

    def run(self, invoke: Callable[[], bytes | None]) -> Ending:
        """Call the function on this thread; an exception becomes its text."""
        ending: Ending = (None, "Interrupted", UNKNOWN)
        try:
            try:
                self._enter()
                ending = (invoke(), None, UNKNOWN)
            except BaseException as error:
                ending = (None, describe(error), build_cause(error))
            self._leave()
        except Interrupted:
            # The interruption arrived between two steps of our own. There is no second one to disturb this.
            self._leave()
        return ending

    def interrupt(self) -> None:
        """Raise ``Interrupted`` in the thread of the call; a call that has not begun will not begin."""
        with self._lock:
            if not self._interrupted and not self._over:
                self._interrupted = True
                if self._thread is not None:
                    _raise_in(self._thread, Interrupted)

    def _enter(self) -> None:
        with self._lock:
            if self._interrupted:
                raise Interrupted("stopped before it began")
            self._thread = threading.get_ident()

    def _leave(self) -> None:
        with self._lock:
            self._over = True
        if self._interrupted:
            _absorb_pending()


def _absorb_pending() -> None:
    """Catch an ``Interrupted`` that has not been raised yet: it would interrupt the next call of this thread.

    Python can also withdraw it, but 3.11 then leaves its flag for pending work set. That slows down the whole process
    and makes it hang under a debugger or a coverage tool.
    """
    try:
        # A thread has at most one pending exception, so this one replaces the other.
        _raise_in(threading.get_ident(), Interrupted)
        while True:
            pass
    except Interrupted:
        return


def _raise_in(thread: int, kind: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind))
