"""Hooks, middleware and resources of an application."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from contextvars import ContextVar
from functools import wraps
from typing import Any, TypeVar

from mainspring.core.model.base.errors import Conflict, Invalid
from mainspring.core.model.runs.cause import TIMED_OUT, build_cause
from mainspring.core.model.runs.completion import tries_again
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.runtime.log import get_logger
from mainspring.core.worker.attempt import Stop
from mainspring.sdk.arguments.signature import Arguments
from mainspring.sdk.context import Context, attempt_context, find_context
from mainspring.sdk.resources import Provided, Resources

Hook = TypeVar("Hook", bound=Callable[[], object])
Middleware = TypeVar(
    "Middleware", bound=Callable[[Context], AbstractContextManager[Any] | AbstractAsyncContextManager[Any]]
)
OnSuccess = TypeVar("OnSuccess", bound=Callable[[Context, Any], object])
OnFailure = TypeVar("OnFailure", bound=Callable[[Context, BaseException, bool], object])
Yielding = TypeVar("Yielding", bound=Callable[..., Any])
T = TypeVar("T")

_log = get_logger("mainspring.hooks")
#: The value that the function of this attempt returned.
_returned: ContextVar[list[object] | None] = ContextVar("mainspring returned", default=None)


class _Host:
    """A process, or a worker in it, that runs handlers: its loop and its open resources."""

    def __init__(self, values: dict[Any, object]) -> None:
        self.loop = asyncio.get_running_loop()
        self.values = values


class Hooks:
    """The hooks of an application."""

    def __init__(self) -> None:
        self._on_start: list[Callable[[], object]] = []
        self._on_stop: list[Callable[[], object]] = []
        self._around: list[Callable[[Context], Any]] = []
        self._on_success: list[Callable[[Context, Any], object]] = []
        self._on_failure: list[Callable[[Context, BaseException, bool], object]] = []
        self._resources = Resources()
        #: The newest is last. A worker that replaces another one starts before that one has stopped.
        self._hosts: list[_Host] = []

    def on_start(self, function: Hook, /) -> Hook:
        """Call a sync or async function in every process that runs tasks, before its first task."""
        self._on_start.append(_check_function("on_start", function))
        return function

    def on_stop(self, function: Hook, /) -> Hook:
        """Call a sync or async function in every process that ran tasks, after its last task."""
        self._on_stop.append(_check_function("on_stop", function))
        return function

    def resource(self, function: Yielding, /) -> Yielding:
        """Make a resource of a generator function with a return annotation such as ``-> AsyncIterator[Pool]``.

        Every process that runs tasks opens it before the first task and closes it after the last. Tasks and other
        resources receive it through a parameter such as ``pool: Pool = provided()``.
        """
        self._resources.add(function)
        return function

    def around(self, function: Middleware, /) -> Middleware:
        """Wrap every attempt in the sync or async context manager that ``function(context)`` returns.

        The first defined one is the outermost. An exception in it fails the attempt.
        """
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            kind = "asynccontextmanager" if inspect.isasyncgenfunction(function) else "contextmanager"
            raise Invalid("around", "is given a generator function", f"put @{kind} under @app.around")
        self._around.append(_check_function("around", function))
        return function

    def on_success(self, function: OnSuccess, /) -> OnSuccess:
        """Call a sync or async ``function(context, result)`` after a successful attempt, before its outcome is
        reported.

        An error in the function is logged and changes nothing.
        """
        self._on_success.append(_check_function("on_success", function))
        return function

    def on_failure(self, function: OnFailure, /) -> OnFailure:
        """Call a sync or async ``function(context, error, final)`` after an attempt that failed or was stopped.

        ``final``: no further attempt follows. It is not called if a process dies. An error in the function is
        logged and changes nothing.
        """
        self._on_failure.append(_check_function("on_failure", function))
        return function

    def hosting(self) -> AbstractAsyncContextManager[None] | None:
        """Return a context manager for the lifetime of a process that runs tasks, or None if there are no hooks."""
        parts = (self._on_start, self._on_stop, self._around, self._on_success, self._on_failure, self._resources)
        return self._hosting() if any(parts) else None

    @asynccontextmanager
    async def _hosting(self) -> AsyncIterator[None]:
        # One asyncio task opens and closes everything, because some context managers must exit in the task that
        # entered them.
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        leave = asyncio.Event()
        task = asyncio.create_task(self._run_host(ready, leave), name="hosting")
        await ready
        try:
            yield
        finally:
            leave.set()
            await task

    async def _run_host(self, ready: "asyncio.Future[None]", leave: asyncio.Event) -> None:
        try:
            async with AsyncExitStack() as stack:
                for function in self._on_stop:
                    stack.push_async_callback(_call, function)
                for function in self._on_start:
                    await _call(function)
                host = _Host(await self._resources.open(stack))
                self._hosts.append(host)
                stack.callback(self._hosts.remove, host)
                ready.set_result(None)
                await leave.wait()
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    def check_needs(self, task: str, arguments: Arguments) -> None:
        """Check that every resource that a task needs is provided."""
        self._resources.check(f"task {task}", _find_needs(arguments))

    def provide_to(self, arguments: Arguments) -> None:
        """Provide a task's resources together with its arguments."""
        needs = _find_needs(arguments)
        if needs:
            arguments.provide = lambda: {name: self._host.values[kind] for name, kind in needs.items()}

    @property
    def _host(self) -> _Host:
        if not self._hosts:
            raise Conflict("the application's resources are not open: only a worker opens them")
        return self._hosts[-1]

    def record_result(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that also records its result, or the function itself without ``on_success`` hooks."""
        if not self._on_success:
            return function
        if inspect.iscoroutinefunction(function):

            @wraps(function)
            async def record_result(*args: object, **named: object) -> object:
                return _record_result(await function(*args, **named))

            return record_result

        @wraps(function)
        def record_blocking(*args: object, **named: object) -> object:
            return _record_result(function(*args, **named))

        return record_blocking

    def wrap(
        self, invoke: Callable[[HeldRun], Coroutine[None, None, bytes | None]]
    ) -> Callable[[HeldRun], Coroutine[None, None, bytes | None]]:
        if not (self._around or self._on_success or self._on_failure):
            return invoke

        async def invoke_within(held: HeldRun) -> bytes | None:
            context = find_context(held, self)
            attempt_context.set(context)
            box: list[object] = [None]
            _returned.set(box)
            result: bytes | None = None
            try:
                async with AsyncExitStack() as stack:
                    for make in self._around:
                        manager = make(context)
                        if hasattr(manager, "__aenter__"):
                            await stack.enter_async_context(manager)
                        else:
                            stack.enter_context(manager)
                    result = await invoke(held)
            except BaseException as error:
                for failed in self._on_failure:
                    await _call_safely(failed, context, error, _is_final(held, context, error))
                raise
            for succeeded in self._on_success:
                await _call_safely(succeeded, context, box[0])
            return result

        return invoke_within

    def wrap_blocking(self, invoke: Callable[[HeldRun], bytes | None]) -> Callable[[HeldRun], bytes | None]:
        if not (self._around or self._on_success or self._on_failure):
            return invoke

        def invoke_within(held: HeldRun) -> bytes | None:
            context = find_context(held, self)
            attempt_context.set(context)
            box: list[object] = [None]
            _returned.set(box)
            result: bytes | None = None
            try:
                with ExitStack() as stack:
                    for make in self._around:
                        manager = make(context)
                        if hasattr(manager, "__aenter__"):
                            manager = self._for_threads(manager)
                        stack.enter_context(manager)
                    result = invoke(held)
            except BaseException as error:
                for failed in self._on_failure:
                    self._call_blocking(failed, context, error, _is_final(held, context, error))
                raise
            for succeeded in self._on_success:
                self._call_blocking(succeeded, context, box[0])
            return result

        return invoke_within

    @contextmanager
    def _for_threads(self, manager: AbstractAsyncContextManager[Any]) -> Iterator[None]:
        """Use an async context manager from blocking code."""
        enter, leave = type(manager).__aenter__, type(manager).__aexit__
        self._run(enter(manager))
        try:
            yield
        except BaseException as error:
            if not self._run(leave(manager, type(error), error, error.__traceback__)):
                raise
        else:
            self._run(leave(manager, None, None, None))

    def _call_blocking(self, function: Callable[..., object], context: Context, *args: object) -> None:
        """Call a hook from blocking code. An async hook runs on the loop of the process."""
        try:
            answer = function(context, *args)
            if inspect.isawaitable(answer):
                self._run(answer)
        except Exception:
            _log_failure(function, context)

    def _run(self, work: Awaitable[T]) -> T:
        return asyncio.run_coroutine_threadsafe(_await(work), self._host.loop).result()


def _check_function(hook: str, function: T) -> T:
    if not callable(function):
        raise Invalid(hook, f"{function!r:.40} is not a function", f"@app.{hook} stands above a function")
    return function


def _find_needs(arguments: Arguments) -> dict[str, Any]:
    """Return the resources that a task needs, by parameter."""
    return {name: arguments.marked[name] for name, one in arguments.markers.items() if isinstance(one, Provided)}


def _record_result(result: object) -> object:
    box = _returned.get()
    if box is not None:
        box[0] = result
    return result


def _is_final(held: HeldRun, context: Context, error: BaseException) -> bool:
    """Return whether no further attempt follows."""
    reporter = context._reporter
    stop = None if reporter is None else reporter.stop
    if stop == Stop.CANCEL.value:
        return True
    if stop in (Stop.RELEASE.value, Stop.FENCED.value):
        return held.policy.guarantee == "at-most-once"
    # The attempt exceeded the deadline of the run.
    at_deadline = stop == Stop.TIMEOUT.value and held.attempt_until == held.deadline
    return at_deadline or not tries_again(held, build_cause(error) if stop is None else TIMED_OUT)


async def _call(function: Callable[..., object], *args: object) -> None:
    answer = function(*args)
    if inspect.isawaitable(answer):
        await answer


async def _call_safely(function: Callable[..., object], context: Context, *args: object) -> None:
    try:
        await _call(function, context, *args)
    except Exception:
        _log_failure(function, context)


def _log_failure(function: Callable[..., object], context: Context) -> None:
    name = getattr(function, "__name__", repr(function))
    _log.exception("hook failed", hook=name, run=context.run_id, task=context.task)


async def _await(work: Awaitable[T]) -> T:
    return await work
