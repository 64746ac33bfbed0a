"""What a worker knows of a task: its name, where it runs, and how to call it."""

from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import msgspec

from mainspring.core.model.base.instant import Micros
from mainspring.core.model.runs.run import HeldRun

#: What ``invoke`` returns when the run is settled already, with its result. No result is empty: that is not JSON.
SETTLED = b""


class AsyncHandler(msgspec.Struct, frozen=True):
    """Runs on the loop. ``invoke`` reads the payload, calls the function and returns its result as JSON."""

    task: str
    invoke: Callable[[HeldRun], Coroutine[None, None, bytes | None]]
    #: It cannot take the worker down, so it is never tried alone in a child process, which may not even know it.
    harmless: bool = False
    #: An attempt that shows no life for so long is stopped.
    heartbeat: Micros | None = None


class SyncHandler(msgspec.Struct, frozen=True):
    """Blocks while it runs, so it runs elsewhere."""

    task: str
    invoke: Callable[[HeldRun], bytes | None]
    #: child: in a child process that hosts threads and can be killed. process: alone in a child process of its own, for
    #: CPU-bound work. thread: a bare thread of the worker, for code that stops when asked to.
    mode: Literal["child", "process", "thread"] = "child"
    #: An attempt that shows no life for so long is stopped.
    heartbeat: Micros | None = None


Handler: TypeAlias = AsyncHandler | SyncHandler


class HandlerSource(Protocol):
    """Where handlers come from. Child processes import the same object by its path and ask it again."""

    def handlers(self) -> Mapping[str, Handler]: ...


@runtime_checkable
class Adopter(Protocol):
    """A source that wants to know, in a child process, what its worker was started with."""

    def adopt(self, settings: bytes) -> None: ...


@runtime_checkable
class Host(Protocol):
    """A source that has something to do in every process that runs its handlers, before the first and after the last
    of them: what they need is opened and closed."""

    def hosting(self) -> AbstractAsyncContextManager[None] | None:
        """Entered and left on the loop of that process; nothing if there is nothing to do."""
        ...
