"""Jobs in requests: the fields that a client sends. ``http/jobs/reading.py`` converts them to the model."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.runs.names import MAX_NAME, MAX_WEIGHT
from mainspring.core.model.runs.retry import MAX_PATTERN, MAX_PATTERNS, MAX_RETRIES
from mainspring.core.model.schedules.calendar import MOST_CALENDARS
from mainspring.core.model.workflows.dependencies import MAX_PARENTS
from mainspring.http.docs.portable import SHORTHAND
from mainspring.http.schemas.common import Id, Labels, Name, Request, RetentionName, Span, Tags, Text, Time
from mainspring.http.schemas.datacenters import DatacentersIn
from mainspring.http.schemas.limits import BreakerIn, Limits, UniqueIn

ScheduleType: TypeAlias = Literal["immediate", "future", "cron", "interval"]


When: TypeAlias = Annotated[
    Literal["all-succeeded", "all-done", "any-succeeded", "any-failed"],
    Meta(description="Of what waits for others: when it goes. What can never go is skipped."),
]
Kinds = Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=MAX_PATTERN)], ...], Meta(max_length=MAX_PATTERNS)]


class Retry(Request, omit_defaults=True):
    """The delays between attempts, and the errors that are retried."""

    backoff: Literal["exponential", "fixed", "list"] = "exponential"
    first_delay: Span | None = None
    """The first delay (`exponential`) or every delay (`fixed`)."""
    max_delay: Span | None = None
    delays: Annotated[tuple[Span, ...], Meta(max_length=100)] = ()
    """The delays one by one; the last one repeats."""
    retry_on: Kinds = ()
    """Kinds of errors, as patterns such as `ConnectionError` or `smtplib.*`. If set, only these errors are
    retried.
    """
    never_on: Kinds = ()
    """Kinds of errors that are never retried."""


#: A catch-up rule with only a mode.
CatchUpMode: TypeAlias = Annotated[Literal["none", "latest", "all"], Meta(extra_json_schema=SHORTHAND)]


class CatchUpIn(Request, omit_defaults=True):
    """How missed ticks are handled."""

    mode: Literal["none", "latest", "all"] = "latest"
    grace: Span | None = None
    cap: Annotated[int, Meta(ge=0, le=10_000)] | None = None
    max_age: Span | None = None
    pace: Span | None = None


class SloIn(Request, omit_defaults=True):
    """The objectives of a schedule. A miss emits an event, and so does its end."""

    start_within: Span | None = None
    """The run of each tick starts within this time after the tick."""
    succeed_every: Span | None = None
    """A run succeeds at least this often."""


class JobFields(Request, omit_defaults=True):
    """The fields of a job. Only what to run is required."""

    #: Names of these fields in other schedulers. A request may use them in snake_case or camelCase.
    OTHER_NAMES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "task": ("job_type", "type"),
        "schedule_time": ("execute_at",),
        "max_retries": ("retries",),
    }

    name: Name | UnsetType = UNSET
    task: Name | UnsetType = UNSET
    payload: msgspec.Raw | UnsetType = UNSET
    """The input of the task: any JSON, up to 256 KiB."""
    schedule_type: ScheduleType | UnsetType = UNSET
    """Derived from `cronExpression`, `every` or `scheduleTime` if you omit it."""
    schedule_time: Time | UnsetType | None = UNSET
    """When a future job runs; for a recurring job the earliest time of a tick."""
    end_time: Time | UnsetType | None = UNSET
    """Recurring job: the latest time of a tick."""
    cron_expression: Annotated[str, Meta(max_length=200)] | UnsetType = UNSET
    """Five fields, or six with seconds first; also `@hourly` and similar words."""
    every: Span | UnsetType = UNSET
    interval_mode: Literal["fixedRate", "fixedDelay"] | UnsetType = UNSET
    timezone: Annotated[str, Meta(max_length=64)] | UnsetType = UNSET
    dst_gap: Literal["run_after", "skip"] | UnsetType = UNSET
    dst_fold: Literal["once", "twice"] | UnsetType = UNSET
    jitter: Span | UnsetType = UNSET
    delay: Span | UnsetType = UNSET
    """One-off job: run after this delay."""
    queue: Name | UnsetType = UNSET
    priority: Annotated[int, Meta(ge=1, le=10)] | UnsetType = UNSET
    """From 1 (urgent) to 10 (idle)."""
    max_retries: Annotated[int, Meta(ge=0, le=MAX_RETRIES)] | UnsetType = UNSET
    retry: Retry | UnsetType = UNSET
    timeout: Span | UnsetType = UNSET
    """How long one attempt may take."""
    deadline: Span | UnsetType | None = UNSET
    """The run fails if it has not ended this long after it was due."""
    start_within: Span | UnsetType | None = UNSET
    """The run is skipped if it has not started this long after it was due."""
    overlap: Literal["allow", "skip", "queue", "cancel"] | UnsetType = UNSET
    catch_up: CatchUpMode | CatchUpIn | UnsetType = UNSET
    """How missed ticks are handled. A mode alone is accepted, too: `"latest"`."""
    calendars: Annotated[tuple[Name, ...], Meta(max_length=MOST_CALENDARS)] | UnsetType = UNSET
    """Recurring job: the names of its calendars."""
    when_closed: Literal["skip", "before", "after"] | UnsetType = UNSET
    """What happens to a tick in a closed period: it is skipped, or runs right before or right after the period."""
    slo: SloIn | UnsetType | None = UNSET
    """Recurring job: its objectives."""
    preset: Literal["payouts"] | UnsetType = UNSET
    """Sets the timeout by priority: 1 minute for priority 1, 5 for 2, 30 for the others."""
    ordering_key: Annotated[str, Meta(max_length=MAX_NAME)] | UnsetType = UNSET
    """Runs with the same key run one at a time, in order."""
    requires: Labels | UnsetType = UNSET
    """Required labels, such as `{"gpu": "a100"}`. Only a worker that has all of them runs it."""
    datacenters: DatacentersIn | UnsetType = UNSET
    """Where it runs. `["us", "eu"]` or `"all"`: each tick has a run in each of these data centers. `{"prefer":
    ["us", "eu"], "failoverAfter": "30s"}`: one run, in the first of them that has a live worker. `"any"`: any
    data center with a worker.
    """
    weight: Annotated[int, Meta(ge=1, le=MAX_WEIGHT)] | UnsetType = UNSET
    """How many slots of a worker a run takes."""
    retention: RetentionName | UnsetType | None = UNSET
    """How long ended runs are kept. The default, or null, is the tenant's class."""
    guarantee: Literal["at-least-once", "at-most-once"] | UnsetType = UNSET
    limits: Limits | UnsetType = UNSET
    """How many runs with the same key run at once, or start in a period."""
    breaker: BreakerIn | UnsetType | None = UNSET
    owner: Annotated[str, Meta(max_length=MAX_NAME)] | UnsetType = UNSET
    tags: Tags | UnsetType = UNSET


class JobIn(JobFields, omit_defaults=True):
    """A job to create."""

    idempotency_key: Annotated[str, Meta(min_length=1, max_length=MAX_NAME)] | UnsetType = UNSET
    """The same request with the same key creates no second job. The header `Idempotency-Key` does the same."""
    unique: UniqueIn | UnsetType = UNSET
    """One-off job: allow only one run with this key."""
    depends_on: Annotated[tuple[Name, ...], Meta(max_length=MAX_PARENTS)] | UnsetType = UNSET
    """One-off job: the ids of the runs it depends on; in a batch also `#0` for its first job."""
    when: When | UnsetType = UNSET
    placement: Name | UnsetType = UNSET
    """One-off job in a sharded store: runs with the same key share a placement group, separate from the tenant's
    other runs.
    """
    tenant: Name | UnsetType = UNSET


class BroadcastIn(JobFields, omit_defaults=True):
    """A one-off job for every worker. A worker that does not take its queue gets it through its own first queue."""

    broadcast_id: Id | UnsetType = UNSET
    """An id that you choose, in the form of a run id. The same id again creates no second run on any worker."""
    tenant: Name | UnsetType = UNSET


class JobPatch(JobFields, omit_defaults=True):
    """The fields to change. Other fields keep their values."""

    expected_version: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    """Refuse with 409 if the job has another version."""
    why: Text | UnsetType = UNSET


def is_recurring(fields: JobFields) -> bool:
    return read_schedule_type(fields) in ("cron", "interval")


def read_schedule_type(fields: JobFields) -> ScheduleType:
    given = fields.schedule_type
    if fields.cron_expression is not UNSET and fields.every is not UNSET:
        raise Invalid("every", "does not go with cronExpression", "one of them")
    found: ScheduleType = (
        "cron"
        if fields.cron_expression is not UNSET
        else "interval"
        if fields.every is not UNSET
        else "future"
        if fields.schedule_time not in (UNSET, None) or fields.delay is not UNSET
        else "immediate"
    )
    if given is UNSET:
        return found
    needs = {"cron": "cronExpression", "interval": "every", "future": "scheduleTime"}.get(given)
    if needs == "cronExpression" and fields.cron_expression is UNSET:
        raise Invalid("cronExpression", "is missing", 'for example "0 30 9 * * MON"')
    if needs == "every" and fields.every is UNSET:
        raise Invalid("every", "is missing", 'for example "10m"')
    if needs == "scheduleTime" and found == "immediate":
        raise Invalid("scheduleTime", "is missing", "for example 2026-12-31T23:59:59Z")
    for kind, name, value in (
        ("cron", "cronExpression", fields.cron_expression),
        ("interval", "every", fields.every),
    ):
        if value is not UNSET and given != kind:
            raise Invalid(name, f"does not go with scheduleType {given}", f'scheduleType "{kind}", or leave it out')
    if given == "immediate" and found == "future":
        raise Invalid("scheduleTime", "does not go with scheduleType immediate", 'scheduleType "future"')
    return given
