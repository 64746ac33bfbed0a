"""Declares tasks, and lists what a worker needs to run them."""

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    TypeAlias,
    TypeVar,
    cast,
    overload,
)

from mainspring.core.model.base.checks import check_word
from mainspring.core.model.base.errors import Conflict, Invalid
from mainspring.core.model.base.instant import SECOND, Duration, Micros, parse_duration
from mainspring.core.model.cluster.labels import label_words
from mainspring.core.model.limits.key_template import check_template
from mainspring.core.model.runs.names import check_name, check_queue
from mainspring.core.model.runs.new_run import About
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.model.runs.rank import DEFAULT_PRIORITY, check_priority
from mainspring.core.model.runs.reserved import check_own_task
from mainspring.core.model.schedules.presets import preset_timeout
from mainspring.core.model.tasks.task_entry import TaskEntry
from mainspring.sdk.calls.options import Options
from mainspring.sdk.context import Context
from mainspring.sdk.limits import Breaker, Limit, build_breaker, build_limits
from mainspring.sdk.policies import RetryPolicy, combine_retries
from mainspring.sdk.registry.decorators import TaskDecorator
from mainspring.sdk.task import Task

if TYPE_CHECKING:
    from mainspring.sdk.app import Mainspring

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
#: Heartbeats of a child process arrive up to 100 ms late, so shorter limits are not reliable.
SHORTEST_HEARTBEAT = SECOND
#: The return type of an async function when it is called.
Async: TypeAlias = Coroutine[Any, Any, T]


class TaskRegistry:
    """The tasks of an application."""

    def __init__(self) -> None:
        super().__init__()
        self._tasks: dict[str, Task[..., Any, Any]] = {}

    @overload
    def task(self, function: Callable[Concatenate[Context, P], Async[T]], /) -> Task[P, Async[T], T]: ...

    @overload
    def task(self, function: Callable[P, Async[T]], /) -> Task[P, Async[T], T]: ...

    @overload
    def task(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R, R]: ...

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R, R]: ...

    @overload
    def task(
        self,
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        priority: int = DEFAULT_PRIORITY,
        retries: int | None = None,
        retry: RetryPolicy | None = None,
        timeout: Duration | None = None,
        preset: Literal["payouts"] | None = None,
        guarantee: Literal["at-least-once", "at-most-once"] = "at-least-once",
        executor: Literal["child", "process", "thread"] = "child",
        requires: Mapping[str, str] | None = None,
        limit: int | None = None,
        limits: Sequence[Limit] = (),
        breaker: Breaker | None = None,
        weight: int = 1,
        retention: str = "",
        tags: Sequence[str] = (),
        heartbeat: Duration | None = None,
        aliases: Sequence[str] = (),
        upgrade: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    ) -> TaskDecorator: ...

    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        priority: int = DEFAULT_PRIORITY,
        retries: int | None = None,
        retry: RetryPolicy | None = None,
        timeout: Duration | None = None,
        preset: Literal["payouts"] | None = None,
        guarantee: Literal["at-least-once", "at-most-once"] = "at-least-once",
        executor: Literal["child", "process", "thread"] = "child",
        requires: Mapping[str, str] | None = None,
        limit: int | None = None,
        limits: Sequence[Limit] = (),
        breaker: Breaker | None = None,
        weight: int = 1,
        retention: str = "",
        tags: Sequence[str] = (),
        heartbeat: Duration | None = None,
        aliases: Sequence[str] = (),
        upgrade: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    ) -> Task[..., Any, Any] | TaskDecorator:
        """Make a task of a function. An async function runs on the event loop of the worker.

        ``executor``: where a sync function runs. ``child``: on a thread of a child process, which can be killed.
        ``process``: in its own child process, for CPU-bound work. ``thread``: on a thread of the worker, which
        cannot be killed; use it only for code that always ends in time.

        ``retries``: how often a failed run is retried, 3 by default. ``retry``: also the delays, and the errors to
        retry.

        ``timeout``: how long an attempt may take before it is stopped, 1 hour by default. ``preset="payouts"`` sets
        the timeout by priority: 1 minute for priority 1, 5 for 2, 30 for the others.

        ``requires``: labels that a worker must have to run it, such as ``{"gpu": "a100"}``.

        ``limit``: how many of its runs may be active at once, across all workers. ``limits``: the same per key or
        period. ``breaker``: after repeated failures its runs pause, then one run probes.

        ``weight``: how many slots of a worker a run takes. A run with more weight than the worker has slots runs
        alone.

        ``retention``: how long ended runs are kept: ``short``, ``standard``, ``long`` or ``audit``. The default is
        the tenant's class. ``tags``: words to find its runs by.

        ``heartbeat``: an attempt that has not called ``context.heartbeat()`` or ``context.progress()`` for this
        long is stopped like after a timeout.

        ``aliases``: former names of the task, under which runs may still be queued. ``upgrade``: converts the
        arguments of an old run, as JSON values, that no longer fit the function.
        """

        def decorate(function: Callable[..., Any]) -> Task[..., Any, Any]:
            if not callable(function):
                raise Invalid("task", f"{function!r:.40} is not a function", "a name is given as name=…")
            chosen = check_name("task", name or _read_name(function))
            known_as = (chosen, *(check_name("aliases", alias) for alias in aliases))
            taken = {other for task in self._tasks.values() for other in (task.name, *task.aliases)}
            for one in known_as:
                check_own_task(one)
                if one in taken:
                    raise Conflict(f"task {one!r} is defined twice; give one of them a name of its own")
            policy = RunPolicy(
                retry=combine_retries(retries, retry, RunPolicy().retry),
                timeout=_read_timeout(timeout, preset, check_priority(priority)),
                guarantee=guarantee,
                requires=label_words("requires", requires or {}),
                limits=build_limits(chosen, limit, limits),
                breaker=build_breaker(breaker),
                weight=weight,
                retention=retention,
            )
            policy.check()
            check_word("executor", executor, ("child", "process", "thread"))
            beat = None if heartbeat is None else parse_duration(heartbeat, "heartbeat")
            if beat is not None and beat < SHORTEST_HEARTBEAT:
                raise Invalid("heartbeat", f"{heartbeat!r:.40} is too short", "1s at least")
            options = Options(
                queue=check_queue("queue", queue),
                priority=check_priority(priority),
                policy=policy,
                preset=preset,
                about=_build_about(tags),
            )
            task: Task[..., Any, Any] = Task(
                cast("Mainspring", self), function, chosen, options, executor, known_as[1:], upgrade, beat
            )
            for kept in policy.limits:
                check_template(kept.key, "limits", task.argument_names)
            self._tasks[chosen] = task
            return task

        return cast(TaskDecorator, decorate) if function is None else decorate(function)

    def entries(self) -> list[TaskEntry]:
        """Return the entries of these tasks for the task catalog."""
        return [entry for task in self._tasks.values() for entry in task.entries()]

    def queues(self) -> Collection[str]:
        """Return the queues that its tasks are submitted to."""
        return {task.default_options.queue for task in self._tasks.values()} or {"default"}


def _read_name(function: Callable[..., Any]) -> str:
    name: str | None = getattr(function, "__name__", None)
    if name is None:
        raise Invalid("task", f"{function!r:.40} has no name", "make it a function of its own")
    return name


def _build_about(tags: Sequence[str]) -> About | None:
    if isinstance(tags, str):
        raise Invalid("tags", f"{tags!r:.40} is not a list", "for example tags=['billing']")
    about = About(tags=tuple(tags))
    about.check()
    return about if about.tags else None


def _read_timeout(timeout: Duration | None, preset: str | None, priority: int) -> Micros:
    if preset is None:
        return parse_duration("1h" if timeout is None else timeout, "timeout")
    if timeout is not None:
        raise Invalid("timeout", "is what the preset says", "one of them")
    return preset_timeout(preset, priority)
