"""What a worker needs to know about a task: its name, where it runs, and how to call it."""

from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import msgspec

from mainspring.core.model.base.instant import Micros
from mainspring.core.model.runs.run import HeldRun

#: The result of ``invoke`` if the run was already completed with its result. Never a real result, as it is not JSON.
COMPLETED_BY_HANDLER = b""


class AsyncHandler(msgspec.Struct, frozen=True):
    """A handler on the event loop. ``invoke`` reads the payload, calls the function and returns its result as JSON."""

    task: str
    invoke: Callable[[HeldRun], Coroutine[None, None, bytes | None]]
    #: It cannot crash the worker, so it is never tried alone in a child process, which may not even know it.
    harmless: bool = False
    #: An attempt without a sign of life for this long is stopped.
    heartbeat: Micros | None = None


class SyncHandler(msgspec.Struct, frozen=True):
    """A handler that blocks its thread, and so runs outside the event loop."""

    task: str
    invoke: Callable[[HeldRun], bytes | None]
    #: child: on a thread of a child process, which can be killed.
    #: process: alone in a child process, for CPU-bound work.
    #: thread: on a plain thread of the worker, for code that stops when asked to.
    mode: Literal["child", "process", "thread"] = "child"
    #: An attempt without a sign of life for this long is stopped.
    heartbeat: Micros | None = None


Handler: TypeAlias = AsyncHandler | SyncHandler


class HandlerSource(Protocol):
    """The source of handlers. Child processes import the same object by its path and query it again."""

    def handlers(self) -> Mapping[str, Handler]: ...


@runtime_checkable
class Adopter(Protocol):
    """A source that receives, in a child process, the settings its worker was started with."""

    def adopt(self, settings: bytes) -> None: ...


@runtime_checkable
class Host(Protocol):
    """A source that opens resources before the first run in each process, and closes them after the last one."""

    def hosting(self) -> AbstractAsyncContextManager[None] | None:
        """Return a context that is entered and left on the loop of that process; None if there is nothing to do."""
        ...
