"""The application: its tasks, its schedules, and the store they are submitted to."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, Self, TypeVar, cast, overload

import msgspec

from mainspring import settings as configuration
from mainspring.bootstrap import Engine
from mainspring.domain.catch_up import CatchUp
from mainspring.domain.checks import check_word
from mainspring.domain.cron import DstFold, DstGap
from mainspring.domain.errors import Conflict, Invalid
from mainspring.domain.instant import Duration, from_datetime, parse_duration
from mainspring.domain.job import Job, JobSpec, NewJob, Overlap
from mainspring.domain.rank import DEFAULT_PRIORITY, check_priority
from mainspring.domain.retry import RetryPolicy, check_retries
from mainspring.domain.run import RunPolicy, check_name, check_queue, check_tenant
from mainspring.domain.schedule import CronSchedule, Interval
from mainspring.sdk.context import Context
from mainspring.sdk.handle import RunHandle
from mainspring.sdk.task import Options, Task, new_run
from mainspring.settings import Settings
from mainspring.worker.handler import Handler

P = ParamSpec("P")
R = TypeVar("R")
E = TypeVar("E", bound=StrEnum)


class MakeTask(Protocol):
    """Makes a task of a function. A context that comes first is not an argument of the call."""

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


class MakeSchedule(Protocol):
    """Puts a task, or a function that becomes one, on a schedule."""

    @overload
    def __call__(self, function: Task[P, R], /) -> Task[P, R]: ...

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


class Mainspring:
    """Tasks and schedules of one application, and the way to submit them.

    ``Mainspring()`` keeps everything in ``./mainspring.db``, or where ``MAINSPRING_STORE`` or ``mainspring.toml`` says;
    ``Mainspring("postgresql://…")`` on a server.
    """

    def __init__(self, store: str | None = None, *, tenant: str = "default") -> None:
        self._flags: dict[str, object] = {} if store is None else {"store": store}
        self.tenant = check_tenant("tenant", tenant)
        self._tasks: dict[str, Task[..., Any]] = {}
        self._jobs: dict[str, tuple[JobSpec, bytes]] = {}
        #: What the process was started with, flags and all, where somebody has said so.
        self._settled: Settings | None = None
        self._engines: dict[asyncio.AbstractEventLoop, Engine] = {}
        self._kept: dict[asyncio.AbstractEventLoop, AsyncGenerator[None, None]] = {}

    def settings(self, flags: Mapping[str, object] | None = None, file: Path | None = None) -> Settings:
        """The settings of this application; what is said here in code gives way to flags only."""
        if self._settled is not None and flags is None and file is None:
            return self._settled
        given = {name: value for name, value in (flags or {}).items() if value is not None}
        return configuration.load({**self._flags, **given}, file=file)

    @overload
    def task(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...

    @overload
    def task(
        self,
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        priority: int = DEFAULT_PRIORITY,
        retries: int = 3,
        retry: RetryPolicy | None = None,
        timeout: Duration = "1h",
        guarantee: Literal["at-least-once", "at-most-once"] = "at-least-once",
        executor: Literal["child", "process", "thread"] = "child",
    ) -> MakeTask: ...

    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        priority: int = DEFAULT_PRIORITY,
        retries: int = 3,
        retry: RetryPolicy | None = None,
        timeout: Duration = "1h",
        guarantee: Literal["at-least-once", "at-most-once"] = "at-least-once",
        executor: Literal["child", "process", "thread"] = "child",
    ) -> Task[..., Any] | MakeTask:
        """Make a task of a function. An async one runs on the worker's loop; for a sync one ``executor`` says where.

        ``child``: on a thread of a child process, which can be killed. ``process``: in a child process of its own, for
        work that needs a processor. ``thread``: a thread of the worker, only for code that ends when it should.
        """

        def decorate(function: Callable[..., Any]) -> Task[..., Any]:
            if not callable(function):
                raise Invalid("task", f"{function!r:.40} is not a function", "a name is given as name=…")
            chosen = check_name("task", name or _name_of(function))
            if chosen in self._tasks:
                raise Conflict(f"task {chosen!r} is defined twice; give one of them a name of its own")
            policy = RunPolicy(
                retry=retry or RetryPolicy(max_retries=check_retries("retries", retries)),
                timeout=parse_duration(timeout, "timeout"),
                guarantee=guarantee,
            )
            policy.check()
            check_word("executor", executor, ("child", "process", "thread"))
            options = Options(queue=check_queue("queue", queue), priority=check_priority(priority), policy=policy)
            task: Task[..., Any] = Task(self, function, chosen, options, executor)
            self._tasks[chosen] = task
            return task

        return cast(MakeTask, decorate) if function is None else decorate(function)

    def cron(
        self,
        expression: str,
        *,
        timezone: str = "UTC",
        name: str | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        jitter: Duration = 0,
        dst_gap: DstGap = DstGap.RUN_AFTER,
        dst_fold: DstFold = DstFold.ONCE,
        overlap: Overlap = Overlap.ALLOW,
        catch_up: CatchUp | Literal["none", "latest", "all"] = "latest",
    ) -> MakeSchedule:
        """Run a task by a cron expression of 5 fields, or 6 with seconds first. Its parameters must have defaults."""
        schedule = CronSchedule(
            expression=expression,
            timezone=timezone,
            gap=_member("dst_gap", dst_gap, DstGap),
            fold=_member("dst_fold", dst_fold, DstFold),
            start=None if start is None else from_datetime(start, "start"),
            end=None if end is None else from_datetime(end, "end"),
            jitter=parse_duration(jitter, "jitter"),
        )
        return self._scheduled(schedule, name, overlap, catch_up)

    def every(
        self,
        interval: Duration,
        *,
        mode: Literal["fixed_rate", "fixed_delay"] = "fixed_rate",
        name: str | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        jitter: Duration = 0,
        overlap: Overlap = Overlap.ALLOW,
        catch_up: CatchUp | Literal["none", "latest", "all"] = "latest",
    ) -> MakeSchedule:
        """Run a task at a fixed rate, or with a fixed delay from the end of one run to the start of the next."""
        schedule = Interval(
            every=parse_duration(interval, "every"),
            mode=mode,
            start=None if start is None else from_datetime(start, "start"),
            end=None if end is None else from_datetime(end, "end"),
            jitter=parse_duration(jitter, "jitter"),
        )
        return self._scheduled(schedule, name, overlap, catch_up)

    def _scheduled(
        self,
        schedule: CronSchedule | Interval,
        name: str | None,
        overlap: Overlap,
        catch_up: CatchUp | Literal["none", "latest", "all"],
    ) -> MakeSchedule:
        def decorate(function: Callable[..., Any]) -> Task[..., Any]:
            task: Task[..., Any] = function if isinstance(function, Task) else self.task(function)
            options = task.default_options
            spec = JobSpec(
                name=name or task.name,
                task=task.name,
                schedule=schedule,
                queue=options.queue,
                priority=options.priority,
                policy=options.policy,
                overlap=_member("overlap", overlap, Overlap),
                catch_up=catch_up if isinstance(catch_up, CatchUp) else CatchUp(mode=catch_up),
            )
            spec.check()
            if spec.name in self._jobs:
                raise Conflict(f"schedule {spec.name!r} is defined twice; give one of them a name of its own")
            self._jobs[spec.name] = (spec, task.payload())
            return task

        return cast(MakeSchedule, decorate)

    def handlers(self) -> Mapping[str, Handler]:
        """What a worker can run."""
        return {name: task.handler() for name, task in self._tasks.items()}

    def queues(self) -> Collection[str]:
        """The queues that its tasks are submitted to."""
        return {task.default_options.queue for task in self._tasks.values()} or {"default"}

    async def declare(self) -> Sequence[Job]:
        """Bring the schedules of this application into the store: new ones are made, changed ones get a new version."""
        if not self._jobs:
            return []
        jobs = (await self.engine()).jobs
        put = await jobs.put_jobs(
            [
                NewJob(id=jobs.new_job_id(self.tenant, spec.name), spec=spec, payload=payload, tenant=self.tenant)
                for spec, payload in self._jobs.values()
            ]
        )
        return [answer.job for answer in put]

    async def submit(self, task: str, payload: bytes, options: Options) -> RunHandle:
        """Submit by name, with a payload that is JSON already. Tasks have a ``submit`` that is typed."""
        engine = await self.engine()
        run_id = engine.jobs.new_run_id(options.policy.ordering_key)
        run = new_run(run_id, task, payload, options, self.tenant)
        accepted = await engine.jobs.submit(run)
        return RunHandle(self, accepted.id, accepted.state)

    async def engine(self) -> Engine:
        """The open engine of this loop; opened when it is first needed, and closed when the loop ends."""
        loop = asyncio.get_running_loop()
        engine = self._engines.get(loop)
        if engine is None:
            if self._settled is not None and self._settled.store == "memory:":
                raise Invalid("store", "memory: is there for one event loop alone", "a path, or submit from there")
            engine = self._engines[loop] = Engine(self.settings())
            kept = self._kept[loop] = self._keep(engine)
            await anext(kept)
        await engine.open()
        return engine

    def use(self, engine: Engine) -> None:
        """Submit from this loop through an engine that somebody else opened and will close, and from other loops to
        the same store."""
        self._settled = engine.settings
        self._engines[asyncio.get_running_loop()] = engine

    def adopt(self, settings: bytes) -> None:
        """In a child process: the settings of the worker, so that what handlers submit goes to the same store."""
        self._settled = msgspec.json.decode(settings, type=Settings)

    async def close(self) -> None:
        """Let go of this loop's engine."""
        loop = asyncio.get_running_loop()
        self._engines.pop(loop, None)
        kept = self._kept.pop(loop, None)
        if kept is not None:
            await kept.aclose()

    async def _keep(self, engine: Engine) -> AsyncGenerator[None, None]:
        """A loop that ends closes its async generators first: so ``asyncio.run(task.submit())`` leaves nothing open."""
        loop = asyncio.get_running_loop()
        try:
            yield
        finally:
            self._kept.pop(loop, None)
            if self._engines.get(loop) is engine:
                del self._engines[loop]
            await engine.close()

    async def __aenter__(self) -> Self:
        await self.engine()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _name_of(function: Callable[..., Any]) -> str:
    name: str | None = getattr(function, "__name__", None)
    if name is None:
        raise Invalid("task", f"{function!r:.40} has no name", "make it a function of its own")
    return name


def _member(field: str, word: str, kind: type[E]) -> E:
    try:
        return kind(word)
    except ValueError:
        raise Invalid(field, f"{word!r:.40} is not one of its words", ", ".join(kind)) from None
