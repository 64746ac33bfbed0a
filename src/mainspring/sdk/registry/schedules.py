"""Declares schedules, and writes them to the store."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import (
    Any,
    Literal,
    TypeVar,
    cast,
)

from mainspring.config.runtime import Runtime
from mainspring.core.model.base.errors import Conflict, Invalid
from mainspring.core.model.base.ids import JobId
from mainspring.core.model.base.instant import Duration, from_datetime, parse_duration
from mainspring.core.model.schedules.calendar import WhenClosed
from mainspring.core.model.schedules.cron import DstFold, DstGap
from mainspring.core.model.schedules.job import Job, JobSpec, JobState, NewJob, Overlap
from mainspring.core.model.schedules.schedule import CronSchedule, Interval
from mainspring.core.model.schedules.slo import Slo
from mainspring.core.ports.storage.catalog import JobFilter
from mainspring.sdk.calls.options import PreparedCall, find_single_call_option
from mainspring.sdk.datacenters import read_targets
from mainspring.sdk.policies import CatchUp, build_catch_up
from mainspring.sdk.registry.decorators import ScheduleDecorator
from mainspring.sdk.registry.tasks import TaskRegistry
from mainspring.sdk.task import Task

E = TypeVar("E", bound=StrEnum)


class ScheduleRegistry(TaskRegistry):
    """The tasks and schedules of an application."""

    tenant: str
    name: str

    def __init__(self) -> None:
        super().__init__()
        self._jobs: dict[str, tuple[JobSpec, bytes]] = {}

    async def runtime(self) -> Runtime:
        """Return the open runtime of this event loop. It is opened on first use and closed when the loop ends."""
        raise NotImplementedError

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
    ) -> ScheduleDecorator:
        """Run a task by a cron expression of 5 fields, or 6 with seconds first. Its parameters must have defaults.

        ``calendars``: the names of its calendars. ``when_closed``: what happens to a tick in a closed period.

        ``slo``: its objectives, such as ``{"start_within": "5m", "succeed_every": "26h"}``. A miss emits an event.

        ``datacenters``: every tick has a run in each of these data centers. For one run in the first available one,
        use ``@app.task(requires={"datacenter": prefer("us", "eu")})``.
        """
        schedule = CronSchedule(
            expression=expression,
            timezone=timezone,
            gap=_parse_member("dst_gap", dst_gap, DstGap),
            fold=_parse_member("dst_fold", dst_fold, DstFold),
            start=None if start is None else from_datetime(start, "start"),
            end=None if end is None else from_datetime(end, "end"),
            jitter=parse_duration(jitter, "jitter"),
        )
        return self._scheduled(schedule, name, overlap, catch_up, calendars, when_closed, slo, datacenters)

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
    ) -> ScheduleDecorator:
        """Run a task at a fixed rate, or with a fixed delay from the end of one run to the start of the next."""
        schedule = Interval(
            every=parse_duration(interval, "every"),
            mode=mode,
            start=None if start is None else from_datetime(start, "start"),
            end=None if end is None else from_datetime(end, "end"),
            jitter=parse_duration(jitter, "jitter"),
        )
        return self._scheduled(schedule, name, overlap, catch_up, calendars, when_closed, slo, datacenters)

    def _scheduled(
        self,
        schedule: CronSchedule | Interval,
        name: str | None,
        overlap: Overlap,
        catch_up: CatchUp | Literal["none", "latest", "all"],
        calendars: Sequence[str],
        when_closed: WhenClosed | Literal["skip", "before", "after"],
        slo: Mapping[str, Duration] | None,
        datacenters: Sequence[str] | Literal["all"],
    ) -> ScheduleDecorator:
        other = {
            "calendars": tuple(calendars),
            "when_closed": _parse_member("when_closed", when_closed, WhenClosed),
            "slo": _parse_slo(slo),
            "datacenters": read_targets(datacenters),
        }

        def decorate(function: Callable[..., Any] | PreparedCall[Any]) -> Task[..., Any, Any] | PreparedCall[Any]:
            if isinstance(function, PreparedCall):
                self.schedule_call(function, schedule, name or function.task, overlap, catch_up, **other)
                return function
            task: Task[..., Any, Any] = function if isinstance(function, Task) else self.task(function)
            self.schedule_call(task.prepare(), schedule, name or task.name, overlap, catch_up, **other)
            return task

        return cast(ScheduleDecorator, decorate)

    def schedule_call(
        self,
        call: PreparedCall[Any],
        schedule: CronSchedule | Interval,
        name: str,
        overlap: Overlap,
        catch_up: CatchUp | Literal["none", "latest", "all"],
        **other: Any,
    ) -> None:
        """Put a call on a schedule, under a name. ``other``: further fields of the spec."""
        options = call.options
        if (lost := find_single_call_option(options)) is not None:
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
            overlap=_parse_member("overlap", overlap, Overlap),
            catch_up=build_catch_up(catch_up),
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

    async def list_removed(self) -> list[str]:
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


def _parse_slo(slo: Mapping[str, Duration] | None) -> Slo | None:
    """Parse the objectives of a schedule, such as ``{"start_within": "5m", "succeed_every": "26h"}``."""
    if slo is None:
        return None
    if not isinstance(slo, Mapping):
        raise Invalid("slo", f"{slo!r:.40} is not a mapping", 'for example {"start_within": "5m"}')
    unknown = set(slo) - {"start_within", "succeed_every"}
    if unknown:
        raise Invalid("slo", f"has no {min(unknown)!r:.40}", "start_within, succeed_every")
    return Slo(**{name: parse_duration(value, f"slo.{name}") for name, value in slo.items()})


def _parse_member(field: str, word: str, kind: type[E]) -> E:
    try:
        return kind(word)
    except ValueError:
        raise Invalid(field, f"{word!r:.40} is not one of its words", ", ".join(kind)) from None
