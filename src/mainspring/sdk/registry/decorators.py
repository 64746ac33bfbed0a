"""The types of the decorators that make tasks and schedules of functions."""

from collections.abc import Callable, Coroutine
from typing import (
    Any,
    Concatenate,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    overload,
)

from mainspring.sdk.calls.options import PreparedCall
from mainspring.sdk.context import Context
from mainspring.sdk.task import Task

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
#: The return type of an async function when it is called.
Async: TypeAlias = Coroutine[Any, Any, T]


class TaskDecorator(Protocol):
    """Makes a task of a function. A leading context parameter is not an argument of the call."""

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], Async[T]], /) -> Task[P, Async[T], T]: ...

    @overload
    def __call__(self, function: Callable[P, Async[T]], /) -> Task[P, Async[T], T]: ...

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R, R]: ...


class ScheduleDecorator(Protocol):
    """Puts a task, a function that becomes a task, or a prepared call on a schedule."""

    @overload
    def __call__(self, function: PreparedCall[T], /) -> PreparedCall[T]: ...

    # A task is also callable, so this overload must come before those for functions.
    @overload
    def __call__(self, function: Task[P, R, T], /) -> Task[P, R, T]: ...  # type: ignore[overload-overlap]

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], Async[T]], /) -> Task[P, Async[T], T]: ...

    @overload
    def __call__(self, function: Callable[P, Async[T]], /) -> Task[P, Async[T], T]: ...

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R, R]: ...
