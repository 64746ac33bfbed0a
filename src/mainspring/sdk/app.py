"""The application: its tasks, its schedules, and the store or API it submits to."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from enum import StrEnum
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FrameType, TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    Protocol,
    Self,
    TypeAlias,
    TypeVar,
    cast,
    overload,
)

import msgspec

from mainspring.config.loading import load
from mainspring.config.runtime import Runtime, system_clock
from mainspring.config.settings import Settings
from mainspring.core.model.base.checks import check_word
from mainspring.core.model.base.errors import Conflict, Invalid
from mainspring.core.model.base.ids import JobId, RunId, check_id
from mainspring.core.model.base.instant import SECOND, Duration, Micros, from_datetime, parse_duration
from mainspring.core.model.cluster.labels import label_words
from mainspring.core.model.limits.key_template import check_template
from mainspring.core.model.runs.names import check_name, check_queue, check_tenant
from mainspring.core.model.runs.new_run import About
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.model.runs.rank import DEFAULT_PRIORITY, check_priority
from mainspring.core.model.runs.reserved import WORKFLOW, check_own_task
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.schedules.calendar import WhenClosed
from mainspring.core.model.schedules.cron import DstFold, DstGap
from mainspring.core.model.schedules.job import Job, JobSpec, JobState, NewJob, Overlap
from mainspring.core.model.schedules.presets import preset_timeout
from mainspring.core.model.schedules.schedule import CronSchedule, Interval
from mainspring.core.model.schedules.slo import Slo
from mainspring.core.model.tasks.task_entry import TaskEntry
from mainspring.core.ports.storage.catalog import JobFilter
from mainspring.core.ports.storage.transactions import Request, Transactional
from mainspring.core.store import Accepted
from mainspring.core.worker.handler import Handler
from mainspring.sdk.backends.embedded import Backend, StoreBackend, check_times, new_ids
from mainspring.sdk.blocking import BlockingLoop
from mainspring.sdk.context import Context
from mainspring.sdk.datacenters import targets
from mainspring.sdk.handle import RunHandle, SyncHandle
from mainspring.sdk.hooks import Hooks
from mainspring.sdk.limits import Breaker, Limit, Unique, breaker_of, limits_of
from mainspring.sdk.pausing import Pausing
from mainspring.sdk.per_loop import PerLoop
from mainspring.sdk.policies import CatchUp, RetryPolicy, catch_up_policy, combine_retries
from mainspring.sdk.task import (
    NamedArguments,
    Options,
    Prepared,
    Submitter,
    Task,
    given_options,
    new_run,
    new_runs,
    of_one_call,
)
from mainspring.sdk.transactions import connection_of, submit_on, submit_on_blocking, transactional
from mainspring.sdk.workflow import Workflow

if TYPE_CHECKING:
    from mainspring.sdk.backends.remote import RemoteBackend

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)
#: Heartbeats of a child process arrive up to 100 ms late, so shorter limits are not reliable.
SHORTEST_HEARTBEAT = SECOND
#: The return type of an async function when it is called.
Async: TypeAlias = Coroutine[Any, Any, T]


class MakeTask(Protocol):
    """Makes a task of a function. A leading context parameter is not an argument of the call."""

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], Async[T]], /) -> Task[P, Async[T], T]: ...

    @overload
    def __call__(self, function: Callable[P, Async[T]], /) -> Task[P, Async[T], T]: ...

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R, R]: ...


class MakeSchedule(Protocol):
    """Puts a task, a function that becomes a task, or a prepared call on a schedule."""

    @overload
    def __call__(self, function: Prepared[T], /) -> Prepared[T]: ...

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


class Mainspring(Hooks, Pausing):
    """The tasks and schedules of an application, and the methods to submit them.

    ``Mainspring()`` uses the store that ``MAINSPRING_STORE`` or ``mainspring.toml`` names, by default
    ``./mainspring.db``. ``Mainspring("postgresql://…")`` uses a PostgreSQL database.
    """

    def __init__(
        self,
        store: str | Sequence[str] | None = None,
        *,
        tenant: str = "default",
        name: str | None = None,
        scripts: str | Path | None = None,
    ) -> None:
        """``name``: identifies the schedules that this application declares, so that removed ones can be deleted.
        The default is the module that creates the application.

        ``scripts``: a folder with scripts that workers run for jobs with a payload such as ``{"script":
        "cleanup.py"}``.
        """
        super().__init__()
        self._flags: dict[str, object] = {} if store is None else {"store": store}
        if scripts is not None:
            self._flags["tasks.scripts"] = str(scripts)
        self.tenant = check_tenant("tenant", tenant)
        self.name = check_name("name", name or _calling_module())
        self._runtimes = PerLoop(self._new_runtime)
        self._remote: PerLoop[RemoteBackend] | None = None
        self._blocking = BlockingLoop()
        self._tasks: dict[str, Task[..., Any, Any]] = {}
        self._jobs: dict[str, tuple[JobSpec, bytes]] = {}
        #: The settings that the process was started with, including flags, if known.
        self._completed: Settings | None = None
        #: Returns the runtime while a test replaces the store.
        self._stand_in: Callable[[], Runtime] | None = None

    @classmethod
    def connect(cls, url: str, *, key: str | None = None, tenant: str = "default", name: str | None = None) -> Self:
        """Create an application that submits to an API instead of a store, with the same methods.

        A request without an answer is sent again with the same key, so that a lost answer creates no second job.
        """
        # Imported here, because it takes 100 ms and most programs use a store.
        from mainspring.sdk.backends.client import ApiClient, checked_url
        from mainspring.sdk.backends.remote import RemoteBackend

        app = cls("memory:", tenant=tenant, name=name)
        checked_url(url)
        app._remote = PerLoop(lambda: RemoteBackend(ApiClient(url, key, system_clock())))
        return app

    def settings(self, flags: Mapping[str, object] | None = None, file: Path | None = None) -> Settings:
        """Return the settings of this application. Values that are set in code override everything except flags."""
        if self._completed is not None and flags is None and file is None:
            return self._completed
        given = {name: value for name, value in (flags or {}).items() if value is not None}
        return load({**self._flags, **given}, file=file)

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
    ) -> MakeTask: ...

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
    ) -> Task[..., Any, Any] | MakeTask:
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
            chosen = check_name("task", name or _name_of(function))
            known_as = (chosen, *(check_name("aliases", alias) for alias in aliases))
            taken = {other for task in self._tasks.values() for other in (task.name, *task.aliases)}
            for one in known_as:
                check_own_task(one)
                if one in taken:
                    raise Conflict(f"task {one!r} is defined twice; give one of them a name of its own")
            policy = RunPolicy(
                retry=combine_retries(retries, retry, RunPolicy().retry),
                timeout=_timeout(timeout, preset, check_priority(priority)),
                guarantee=guarantee,
                requires=label_words("requires", requires or {}),
                limits=limits_of(chosen, limit, limits),
                breaker=breaker_of(breaker),
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
                about=_about(tags),
            )
            task: Task[..., Any, Any] = Task(self, function, chosen, options, executor, known_as[1:], upgrade, beat)
            for kept in policy.limits:
                check_template(kept.key, "limits", task.argument_names)
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
        calendars: Sequence[str] = (),
        when_closed: WhenClosed | Literal["skip", "before", "after"] = "skip",
        slo: Mapping[str, Duration] | None = None,
        datacenters: Sequence[str] | Literal["all"] = (),
    ) -> MakeSchedule:
        """Run a task by a cron expression of 5 fields, or 6 with seconds first. Its parameters must have defaults.

        ``calendars``: the names of its calendars. ``when_closed``: what happens to a tick in a closed period.

        ``slo``: its objectives, such as ``{"start_within": "5m", "succeed_every": "26h"}``. A miss emits an event.

        ``datacenters``: every tick has a run in each of these data centers. For one run in the first available one,
        use ``@app.task(requires={"datacenter": prefer("us", "eu")})``.
        """
        schedule = CronSchedule(
            expression=expression,
            timezone=timezone,
            gap=_member("dst_gap", dst_gap, DstGap),
            fold=_member("dst_fold", dst_fold, DstFold),
            start=None if start is None else from_datetime(start, "start"),
            end=None if end is None else from_datetime(end, "end"),
            jitter=parse_duration(jitter, "jitter"),
        )
        return self._scheduled(
            schedule,
            name,
            overlap,
            catch_up,
            calendars=tuple(calendars),
            when_closed=_member("when_closed", when_closed, WhenClosed),
            slo=_slo(slo),
            datacenters=targets(datacenters),
        )

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
        calendars: Sequence[str] = (),
        when_closed: WhenClosed | Literal["skip", "before", "after"] = "skip",
        slo: Mapping[str, Duration] | None = None,
        datacenters: Sequence[str] | Literal["all"] = (),
    ) -> MakeSchedule:
        """Run a task at a fixed rate, or with a fixed delay from the end of one run to the start of the next."""
        schedule = Interval(
            every=parse_duration(interval, "every"),
            mode=mode,
            start=None if start is None else from_datetime(start, "start"),
            end=None if end is None else from_datetime(end, "end"),
            jitter=parse_duration(jitter, "jitter"),
        )
        return self._scheduled(
            schedule,
            name,
            overlap,
            catch_up,
            calendars=tuple(calendars),
            when_closed=_member("when_closed", when_closed, WhenClosed),
            slo=_slo(slo),
            datacenters=targets(datacenters),
        )

    def _scheduled(
        self,
        schedule: CronSchedule | Interval,
        name: str | None,
        overlap: Overlap,
        catch_up: CatchUp | Literal["none", "latest", "all"],
        **other: Any,
    ) -> MakeSchedule:
        """``other``: further fields of the spec."""

        def decorate(function: Callable[..., Any] | Prepared[Any]) -> Task[..., Any, Any] | Prepared[Any]:
            if isinstance(function, Prepared):
                self.schedule_call(function, schedule, name or function.task, overlap, catch_up, **other)
                return function
            task: Task[..., Any, Any] = function if isinstance(function, Task) else self.task(function)
            self.schedule_call(task.prepare(), schedule, name or task.name, overlap, catch_up, **other)
            return task

        return cast(MakeSchedule, decorate)

    def schedule_call(
        self,
        call: Prepared[Any],
        schedule: CronSchedule | Interval,
        name: str,
        overlap: Overlap,
        catch_up: CatchUp | Literal["none", "latest", "all"],
        **other: Any,
    ) -> None:
        """Put a call on a schedule, under a name. ``other``: further fields of the spec."""
        options = call.options
        if (lost := of_one_call(options)) is not None:
            raise Invalid(lost, "is for a call that is submitted", "a schedule makes its own")
        spec = JobSpec(
            name=name,
            task=call.task,
            schedule=schedule,
            queue=options.queue,
            priority=options.priority,
            policy=options.policy,
            start_within=options.start_within,
            deadline=options.deadline,
            tags=() if options.about is None else options.about.tags,
            overlap=_member("overlap", overlap, Overlap),
            catch_up=catch_up_policy(catch_up),
            source=self.source,
            **other,
        )
        spec.check()
        if spec.name in self._jobs:
            raise Conflict(f"schedule {spec.name!r} is defined twice; give one of them a name of its own")
        self._jobs[spec.name] = (spec, call.payload)

    @property
    def source(self) -> str:
        """The ``source`` field of the schedules of this application."""
        return f"app:{self.name}"

    def schedules(self) -> Sequence[tuple[JobSpec, bytes]]:
        """Return the schedules of this application, each with the payload of its runs."""
        return list(self._jobs.values())

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers that a worker can run, by task name."""
        from mainspring.config.tasks import make_fan_out_handlers, make_workflow_handler

        found = make_fan_out_handlers(self.runtime)
        for task in self._tasks.values():
            handler = task.handler()
            found.update(dict.fromkeys((task.name, *task.aliases), handler))
        if any(spec.task == WORKFLOW for spec, _ in self._jobs.values()):
            found.setdefault(WORKFLOW, make_workflow_handler(self.runtime))
        return found

    def entries(self) -> list[TaskEntry]:
        """Return the entries of these tasks for the task catalog."""
        return [entry for task in self._tasks.values() for entry in task.entries()]

    def queues(self) -> Collection[str]:
        """Return the queues that its tasks are submitted to."""
        return {task.default_options.queue for task in self._tasks.values()} or {"default"}

    async def declare(self) -> Sequence[Job]:
        """Write the schedules of this application to the store.

        New ones are created, changed ones get a new version.
        """
        if not self._jobs:
            return []
        jobs = (await self.runtime()).jobs
        put = await jobs.put_jobs(
            [
                NewJob(id=jobs.new_job_id(self.tenant, spec.name), spec=spec, payload=payload, tenant=self.tenant)
                for spec, payload in self._jobs.values()
            ]
        )
        return [answer.job for answer in put]

    async def left_over(self) -> list[str]:
        """Return the names of active schedules that this application declared earlier and no longer declares."""
        store = (await self.runtime()).store
        ticking = frozenset({JobState.SCHEDULED, JobState.PAUSED})
        wanted = JobFilter(tenant=self.tenant, source=self.source, states=ticking)
        names: list[str] = []
        after: JobId | None = None
        while True:
            page = await store.list_jobs(wanted, after, 1_000)
            names += [job.spec.name for job in page.items if job.spec.name not in self._jobs]
            if page.after is None:
                return sorted(names)
            after = JobId(page.after)

    def named(self, task: str) -> Submitter[..., Any]:
        """Return a task by its name, for code that cannot import it:
        ``app.named("send_welcome").submit(user_id=42)``.

        Its arguments must be named. If another program declares the task, its registered options and argument
        schema apply. Values from ``options`` override them.
        """
        other = Options(given=frozenset())
        return self._tasks.get(task) or Submitter(self, check_name("task", task), NamedArguments(), other)

    async def submit(
        self,
        task: str,
        payload: Mapping[str, object] | None = None,
        *,
        at: datetime | None = None,
        delay: Duration | None = None,
        queue: str | None = None,
        priority: int | None = None,
        retries: int | None = None,
        timeout: Duration | None = None,
        ordering_key: str | None = None,
        unique: str | Unique | None = None,
        connection: object | None = None,
    ) -> RunHandle[Any]:
        """Submit a task by its name: ``await app.submit("send_welcome", {"user_id": 42}, delay="10m")``.

        ``payload``: the arguments by name. If another program declares the task, its registered options apply
        unless you set them here. For more options see ``app.named(task).options(…)``.
        """
        call = self._named_call(
            task,
            payload,
            at=at,
            delay=delay,
            queue=queue,
            priority=priority,
            retries=retries,
            timeout=timeout,
            ordering_key=ordering_key,
            unique=unique,
        )
        return (await self.submit_many([call], connection=connection))[0]

    def submit_sync(
        self,
        task: str,
        payload: Mapping[str, object] | None = None,
        *,
        at: datetime | None = None,
        delay: Duration | None = None,
        queue: str | None = None,
        priority: int | None = None,
        retries: int | None = None,
        timeout: Duration | None = None,
        ordering_key: str | None = None,
        unique: str | Unique | None = None,
        connection: object | None = None,
    ) -> SyncHandle[Any]:
        """Submit a task by its name like ``submit``, from blocking code."""
        call = self._named_call(
            task,
            payload,
            at=at,
            delay=delay,
            queue=queue,
            priority=priority,
            retries=retries,
            timeout=timeout,
            ordering_key=ordering_key,
            unique=unique,
        )
        return self.submit_many_sync([call], connection=connection)[0]

    def _named_call(self, task: str, payload: Mapping[str, object] | None, **options: Any) -> Prepared[Any]:
        if payload is not None and not isinstance(payload, Mapping):
            raise Invalid("payload", f"{payload!r:.40} does not name its arguments", 'for example {"user_id": 42}')
        return self.named(task).options(**options).prepare_call((), payload or {})

    async def submit_many(
        self, calls: Iterable[Prepared[T]], *, connection: object | None = None
    ) -> list[RunHandle[T]]:
        """Submit calls of one or several tasks in one round trip: ``await app.submit_many([task.prepare(1), …])``.

        The handles are in the order of the calls. When it returns, all are committed. Raises ``Conflict`` if a key
        was used for something else; the other calls are committed then.

        ``connection``: your connection to the store's own database, in a transaction. The calls commit with that
        transaction.
        """
        wanted = list(calls)
        chosen = connection_of(wanted, connection)
        if chosen is not None:
            return self._handles(wanted, await submit_on(chosen, *await self._requests(wanted)))
        backend = await self.backend()
        ids = new_ids(backend, wanted, self.tenant)
        runs = new_runs(ids, wanted, self.tenant)
        return self._handles(wanted, await backend.submit(runs, given_options(runs, wanted)))

    def workflow(self, name: str) -> Workflow:
        """Create an empty workflow, which you build and submit as a whole: ``flow = app.workflow("nightly")``."""
        return Workflow(self, name)

    async def broadcast(self, call: Prepared[T]) -> list[RunHandle[T]]:
        """Run a call once on every live worker that knows its task: ``await app.broadcast(task.prepare(…))``.

        Each worker gets one run, and retries stay on that worker. If the worker leaves before the run is done, the
        run is ``skipped``. Workers that start later get none.
        """
        backend = await self.backend()
        [run_id] = new_ids(backend, [call], self.tenant)
        run = new_run(run_id, call, self.tenant)
        accepted = await backend.broadcast(run, given_options([run], [call]))
        return self._handles([call] * len(accepted), accepted)

    def broadcast_sync(self, call: Prepared[T]) -> list[SyncHandle[T]]:
        """Run a call on every live worker like ``broadcast``, from blocking code."""
        return [handle.sync for handle in self.block_on(self.broadcast(call))]

    def _handles(self, wanted: Sequence[Prepared[T]], accepted: Sequence[Accepted]) -> list[RunHandle[T]]:
        handles: list[RunHandle[T]] = []
        for answer, call in zip(accepted, wanted, strict=True):
            if answer.conflict and isinstance(call.options.unique, str):
                raise Conflict(f"unique key {call.options.unique!r} was used for something else, run {answer.id}")
            if answer.conflict:
                raise Conflict(f"its unique key is taken by run {answer.id}")
            handles.append(RunHandle(self, answer.id, answer.state, call.read, new=answer.new))
        return handles

    async def _requests(self, wanted: Sequence[Prepared[T]]) -> tuple[Transactional, list[Request]]:
        """Return the statements that submit calls on a connection of the caller."""
        if self._remote is not None:
            raise Invalid("connection", "is of no use to an API", "give the application the store itself")
        runtime = await self.runtime()
        store = transactional(runtime.store)
        ids = runtime.jobs.new_run_ids([call.options.policy.ordering_key for call in wanted], tenant=self.tenant)
        runs = new_runs(ids, wanted, self.tenant)
        runs = list(await runtime.catalog.fill_in(runs, given_options(runs, wanted)))
        for run in runs:
            run.check()
        await check_times(runtime, runs)
        if runtime.tracing is not None and (submitting := runtime.tracing.submitting(runs, runtime.clock)) is not None:
            # The span ends when the statements are built, because the caller decides when they commit.
            with submitting:
                return store, await store.requests_for(submitting.runs)
        return store, await store.requests_for(runs)

    def submit_many_sync(
        self, calls: Iterable[Prepared[T]], *, connection: object | None = None
    ) -> list[SyncHandle[T]]:
        """Submit calls like ``submit_many``, from blocking code."""
        wanted = list(calls)
        chosen = connection_of(wanted, connection)
        if chosen is None:
            handles = self.block_on(self.submit_many(wanted))
        else:
            accepted = submit_on_blocking(chosen, *self.block_on(self._requests(wanted)))
            handles = self._handles(wanted, accepted)
        return [handle.sync for handle in handles]

    def handle(self, run_id: str) -> RunHandle[Any]:
        """Return the handle of a run by its id."""
        check_id("run", run_id)
        return RunHandle(self, RunId(run_id), RunState.QUEUED, NamedArguments().read_result)

    def block_on(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop of a separate thread, and block until it is done."""
        return self._blocking.run(work)

    async def backend(self) -> Backend:
        """Return the store or API that calls are submitted to."""
        if self._remote is not None and self._stand_in is None:
            return await self._remote.get()
        return StoreBackend(await self.runtime())

    async def runtime(self) -> Runtime:
        """Return the open runtime of this event loop. It is opened on first use and closed when the loop ends."""
        if self._stand_in is not None:
            return self._stand_in()
        runtime = await self._runtimes.get()
        await runtime.open()
        return runtime

    def _new_runtime(self) -> Runtime:
        if self._remote is not None:
            raise Conflict("this application goes through an API and has no store of its own")
        if self._completed is not None and self._completed.store == "memory:":
            raise Invalid("store", "memory: is there for one event loop alone", "a path, or submit from there")
        return Runtime(self.settings())

    def use(self, runtime: Runtime) -> None:
        """Submit from this loop through a runtime that the caller opened and will close.

        Other loops use the same store.
        """
        self._completed = runtime.settings
        self._runtimes.lend(runtime)

    @contextmanager
    def standing_in(self, runtime: Callable[[], Runtime]) -> Iterator[None]:
        """Replace the runtime of every loop by an open one. ``mainspring.testing`` uses this to replace the store."""
        if self._stand_in is not None:
            raise Conflict("the application is in a test already")
        self._stand_in = runtime
        try:
            yield
        finally:
            self._stand_in = None

    def adopt(self, settings: bytes) -> None:
        """Take over the worker's settings in a child process, so that handlers submit to the same store."""
        self._completed = msgspec.json.decode(settings, type=Settings)

    async def close(self) -> None:
        """Close the connections of this loop, and those of blocking code."""
        await self._runtimes.close()
        if self._remote is not None:
            await self._remote.close()
        await asyncio.to_thread(self._blocking.close)

    @asynccontextmanager
    async def running(
        self, *, scheduler: bool = True, worker: bool = True, http: bool = False, path: str | None = None
    ) -> AsyncIterator[None]:
        """Run services inside a program that has an event loop, for example in the lifespan of a web server.

        ``path`` is where child processes find this application, as ``module:attribute``. Without it sync tasks run
        on plain threads, which cannot be killed after a timeout.
        """
        # Imported here, so that a process that only submits does not load the services.
        from mainspring.config.node import Node, Role

        wanted = {Role.SCHEDULER: scheduler, Role.WORKER: worker, Role.HTTP: http}
        node = Node(self.settings(), {role for role, is_wanted in wanted.items() if is_wanted}, self, path)
        await node.runtime.open()
        try:
            self.use(node.runtime)
            await self.declare()
            await node.start()
            try:
                yield
            finally:
                await node.stop()
        finally:
            await self._runtimes.close()
            await node.runtime.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections of blocking code."""
        self._blocking.close()

    async def __aenter__(self) -> Self:
        await self.backend()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _calling_module() -> str:
    """Return the module that creates the application. For a script it is the name it would be imported by."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("mainspring.sdk."):
        frame = frame.f_back
    there = {} if frame is None else frame.f_globals
    module = str(there.get("__name__") or "main")
    if module != "__main__":
        return module
    spec: ModuleSpec | None = there.get("__spec__")
    return (spec.name.removesuffix(".__main__") if spec else Path(there.get("__file__") or "main").stem) or "main"


def _name_of(function: Callable[..., Any]) -> str:
    name: str | None = getattr(function, "__name__", None)
    if name is None:
        raise Invalid("task", f"{function!r:.40} has no name", "make it a function of its own")
    return name


def _about(tags: Sequence[str]) -> About | None:
    if isinstance(tags, str):
        raise Invalid("tags", f"{tags!r:.40} is not a list", "for example tags=['billing']")
    about = About(tags=tuple(tags))
    about.check()
    return about if about.tags else None


def _timeout(timeout: Duration | None, preset: str | None, priority: int) -> Micros:
    if preset is None:
        return parse_duration("1h" if timeout is None else timeout, "timeout")
    if timeout is not None:
        raise Invalid("timeout", "is what the preset says", "one of them")
    return preset_timeout(preset, priority)


def _slo(slo: Mapping[str, Duration] | None) -> Slo | None:
    """Parse the objectives of a schedule, such as ``{"start_within": "5m", "succeed_every": "26h"}``."""
    if slo is None:
        return None
    if not isinstance(slo, Mapping):
        raise Invalid("slo", f"{slo!r:.40} is not a mapping", 'for example {"start_within": "5m"}')
    unknown = set(slo) - {"start_within", "succeed_every"}
    if unknown:
        raise Invalid("slo", f"has no {min(unknown)!r:.40}", "start_within, succeed_every")
    return Slo(**{name: parse_duration(value, f"slo.{name}") for name, value in slo.items()})


def _member(field: str, word: str, kind: type[E]) -> E:
    try:
        return kind(word)
    except ValueError:
        raise Invalid(field, f"{word!r:.40} is not one of its words", ", ".join(kind)) from None
