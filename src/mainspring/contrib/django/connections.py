"""Maintains Django's database connections around each run, as Django does around each request."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from asgiref.sync import SyncToAsync
from django.db import close_old_connections, connections

from mainspring.sdk.context import Context


class _OfThread(threading.local):
    """Per thread: the number of runs that use the connections of a test, and the thread's own connections."""

    runs = 0
    own: dict[str, Any] = {}  # noqa: RUF012


_of_thread = _OfThread()
#: The connections of a test, by alias, while it lends them.
_lent: dict[str, Any] = {}


def around_run(context: Context) -> AbstractContextManager[None]:
    """Close connections that are too old or broken, before and after a run, on the thread that uses them.

    Async handlers reach the database on the one thread of ``sync_to_async``. Functions submitted to it run in order, so
    nothing has to wait here. A handler without a database must not wait for the query of another handler.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _around(_call)
    return _around(SyncToAsync.single_thread_executor.submit)


@contextmanager
def lend_connections() -> Iterator[None]:
    """Let runs use the connections of this thread, so that they see what a test has not committed."""
    lent = {connection.alias: connection for connection in map(connections.__getitem__, connections)}
    for connection in lent.values():
        connection.inc_thread_sharing()
    _lent.update(lent)
    try:
        yield
    finally:
        _lent.clear()
        for connection in lent.values():
            connection.dec_thread_sharing()


@contextmanager
def _around(call: Callable[[Callable[[], None]], object]) -> Iterator[None]:
    call(_enter)
    try:
        yield
    finally:
        call(_leave)


def _call(function: Callable[[], None]) -> None:
    function()


def _enter() -> None:
    if not _lent:
        close_old_connections()
        return
    if _of_thread.runs == 0:
        _of_thread.own = {connection.alias: connection for connection in connections.all(initialized_only=True)}
        for alias, connection in _lent.items():
            connections[alias] = connection
    _of_thread.runs += 1


def _leave() -> None:
    if _of_thread.runs == 0:
        close_old_connections()
        return
    _of_thread.runs -= 1
    if _of_thread.runs == 0:
        for alias in list(connections):
            if alias in _of_thread.own:
                connections[alias] = _of_thread.own[alias]
            else:
                del connections[alias]
