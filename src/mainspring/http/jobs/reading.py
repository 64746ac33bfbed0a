"""Reads jobs from requests: builds the run of a one-off job, or the spec of a recurring one."""

import hashlib
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import Instant, Micros, explain_past, parse_instant
from mainspring.core.model.cluster.labels import label_words
from mainspring.core.model.limits.key_template import policy_with_keys, with_keys
from mainspring.core.model.runs.names import MAX_NAME
from mainspring.core.model.runs.new_run import About, Idempotency, JobRef, NewRun
from mainspring.core.model.runs.policy import DEFAULT_POLICY, RunPolicy
from mainspring.core.model.runs.rank import DEFAULT_PRIORITY
from mainspring.core.model.runs.reserved import FAN_OUT
from mainspring.core.model.runs.retry import RetryPolicy
from mainspring.core.model.schedules.calendar import WhenClosed
from mainspring.core.model.schedules.catch_up import CatchUp
from mainspring.core.model.schedules.cron import DstFold, DstGap
from mainspring.core.model.schedules.job import Job, JobSpec, Overlap
from mainspring.core.model.schedules.presets import preset_timeout
from mainspring.core.model.schedules.schedule import CronSchedule, Interval
from mainspring.core.model.schedules.slo import Slo
from mainspring.core.model.tasks.task_entry import DECLARED, New, TaskEntry, fill_in_defaults
from mainspring.core.model.workflows.fan_out import OWN_PRIORITY
from mainspring.http.schemas.common import parse_span
from mainspring.http.schemas.datacenters import read_requires, read_targets
from mainspring.http.schemas.jobs import JobFields, JobIn, JobPatch, is_recurring, read_schedule_type
from mainspring.http.schemas.limits import read_unique
from mainspring.http.schemas.policy_fields import read_policy_fields

SHELL_TASK = "shell"
#: The fields whose defaults come from the task catalog.
_DECLARED = (*sorted(DECLARED), "datacenters")


def read_payload(fields: JobFields) -> bytes:
    return b"null" if fields.payload is UNSET else bytes(fields.payload)


def read_task(fields: JobFields) -> str:
    """Return the task name; for a payload with a script it is the shell task."""
    if fields.task is not UNSET:
        return fields.task
    if fields.payload is not UNSET:
        try:
            script = msgspec.json.decode(fields.payload, type=_Script).script
        except (msgspec.MsgspecError, RecursionError):
            script = ""
        if script:
            return SHELL_TASK
    raise Invalid("task", "is missing", "the name of a task; a payload with a script runs that script")


class _Script(msgspec.Struct):
    script: str


def _read_priority(fields: JobFields) -> int:
    if fields.priority is not UNSET:
        return fields.priority
    return OWN_PRIORITY if read_task(fields) == FAN_OUT else DEFAULT_PRIORITY


def read_policy(fields: JobFields) -> RunPolicy:
    changes: dict[str, Any] = {}
    if fields.retry is not UNSET:
        given = fields.retry
        changes["backoff"] = given.backoff
        if given.first_delay is not None:
            changes["first_delay"] = parse_span(given.first_delay, "retry.firstDelay")
        if given.max_delay is not None:
            changes["max_delay"] = parse_span(given.max_delay, "retry.maxDelay")
        changes["delays"] = tuple(parse_span(delay, "retry.delays") for delay in given.delays)
        changes["retry_on"], changes["never_on"] = given.retry_on, given.never_on
    if fields.max_retries is not UNSET:
        changes["max_retries"] = fields.max_retries
    retry = RetryPolicy(**changes)
    if changes:
        retry.check_meant()
    requires = () if fields.requires is UNSET else label_words("requires", fields.requires)
    if fields.datacenters is not UNSET:
        requires = read_requires(fields.datacenters, requires, one_off=not is_recurring(fields))
    policy = RunPolicy(retry=retry, timeout=_read_timeout(fields), requires=requires, **read_policy_fields(fields))
    # A policy is checked once for each object.
    return DEFAULT_POLICY if policy == DEFAULT_POLICY else policy


def _read_timeout(fields: JobFields) -> Micros:
    if fields.preset is UNSET:
        return DEFAULT_POLICY.timeout if fields.timeout is UNSET else parse_span(fields.timeout, "timeout")
    if fields.timeout is not UNSET:
        raise Invalid("timeout", "is what the preset says", "one of them")
    return preset_timeout(fields.preset, DEFAULT_PRIORITY if fields.priority is UNSET else fields.priority)


def _read_slo(fields: JobFields) -> Slo | None:
    given = fields.slo
    if given is UNSET or given is None:
        return None
    return Slo(
        start_within=_parse_optional_span(given.start_within, "slo.startWithin"),
        succeed_every=_parse_optional_span(given.succeed_every, "slo.succeedEvery"),
    )


def build_spec(fields: JobFields) -> JobSpec:
    """Return the spec of a recurring job."""
    if fields.name is UNSET:
        raise Invalid("name", "is missing", "a recurring job is known by its name")
    if isinstance(fields, JobIn) and fields.unique is not UNSET:
        raise Invalid("unique", "is for one-off jobs", "a recurring one has its overlap rule")
    if isinstance(fields, JobIn) and fields.depends_on is not UNSET:
        raise Invalid("dependsOn", "is for one-off jobs", "a recurring workflow is a job of the task workflow")
    if fields.delay is not UNSET:
        raise Invalid("delay", "is for one-off jobs", "a recurring one begins at its scheduleTime")
    start = _parse_optional_time(fields.schedule_time, "scheduleTime")
    end = _parse_optional_time(fields.end_time, "endTime")
    jitter = 0 if fields.jitter is UNSET else parse_span(fields.jitter, "jitter")
    schedule: CronSchedule | Interval
    if read_schedule_type(fields) == "cron":
        assert fields.cron_expression is not UNSET
        if fields.interval_mode is not UNSET:
            raise Invalid("intervalMode", "is for intervals")
        schedule = CronSchedule(
            expression=fields.cron_expression,
            timezone="UTC" if fields.timezone is UNSET else fields.timezone,
            gap=DstGap.RUN_AFTER if fields.dst_gap is UNSET else DstGap(fields.dst_gap),
            fold=DstFold.ONCE if fields.dst_fold is UNSET else DstFold(fields.dst_fold),
            start=start,
            end=end,
            jitter=jitter,
        )
    else:
        assert fields.every is not UNSET
        for name, value in (("timezone", fields.timezone), ("dstGap", fields.dst_gap), ("dstFold", fields.dst_fold)):
            if value is not UNSET:
                raise Invalid(name, "is for cron")
        schedule = Interval(
            every=parse_span(fields.every, "every"),
            mode="fixed_delay" if fields.interval_mode == "fixedDelay" else "fixed_rate",
            start=start,
            end=end,
            jitter=jitter,
        )
    return JobSpec(
        name=fields.name,
        task=read_task(fields),
        schedule=schedule,
        queue="default" if fields.queue is UNSET else fields.queue,
        priority=_read_priority(fields),
        policy=policy_with_keys(read_policy(fields), read_payload(fields)),
        overlap=Overlap.ALLOW if fields.overlap is UNSET else Overlap(fields.overlap),
        catch_up=_read_catch_up(fields),
        start_within=_parse_optional_span(fields.start_within, "startWithin"),
        deadline=_parse_optional_span(fields.deadline, "deadline"),
        slo=_read_slo(fields),
        calendars=() if fields.calendars is UNSET else fields.calendars,
        when_closed=WhenClosed.SKIP if fields.when_closed is UNSET else WhenClosed(fields.when_closed),
        owner="" if fields.owner is UNSET else fields.owner,
        tags=() if fields.tags is UNSET else fields.tags,
        datacenters=read_targets(fields.datacenters),
    )


def explain_past_time(run: NewRun, now: Instant) -> Invalid | None:
    """Return an error if the run's time is in the past. ``now``: the store's time, or an estimate of it."""
    return None if run.at is None else explain_past(run.at, now, "scheduleTime")


def check_key(key: str | None, header: str | None) -> str | None:
    """Validate an idempotency key that is in the body, in the header, or in both."""
    if header is not None and key != header:
        raise Invalid("idempotencyKey", "differs from the header Idempotency-Key")
    if key is not None and (not 0 < len(key) <= MAX_NAME or not key.isprintable()):
        raise Invalid("idempotencyKey", "is not a key", f"1 to {MAX_NAME} printable characters")
    return key


def build_idempotency(key: str | None, said: object) -> Idempotency | None:
    """Return the idempotency key with a fingerprint of the request."""
    if key is None:
        return None
    if not 0 < len(key) <= MAX_NAME or not key.isprintable():
        raise Invalid("idempotencyKey", "is not a key", f"1 to {MAX_NAME} printable characters")
    return Idempotency(key, hashlib.blake2b(msgspec.json.encode(said), digest_size=16).digest())


def build_run(fields: JobFields, run_id: RunId, tenant: str, author: str) -> NewRun:
    """Build the run of a one-off job."""
    for name, value in (
        ("endTime", fields.end_time),
        ("timezone", fields.timezone),
        ("jitter", fields.jitter),
        ("overlap", fields.overlap),
        ("catchUp", fields.catch_up),
        ("slo", fields.slo),
        ("calendars", fields.calendars),
        ("whenClosed", fields.when_closed),
        ("intervalMode", fields.interval_mode),
        ("dstGap", fields.dst_gap),
        ("dstFold", fields.dst_fold),
    ):
        if value not in (UNSET, None):
            raise Invalid(name, "is for recurring jobs", "give cronExpression or every as well")
    at = _parse_optional_time(fields.schedule_time, "scheduleTime")
    delay = 0 if fields.delay is UNSET else parse_span(fields.delay, "delay")
    if at is not None and delay:
        raise Invalid("delay", "cannot be given together with scheduleTime")
    start_within = _parse_optional_span(fields.start_within, "startWithin")
    deadline = _parse_optional_span(fields.deadline, "deadline")
    name = "" if fields.name is UNSET else fields.name
    owner = "" if fields.owner is UNSET else fields.owner
    tags = () if fields.tags is UNSET else fields.tags
    run = NewRun(
        id=run_id,
        task=read_task(fields),
        payload=read_payload(fields),
        queue="default" if fields.queue is UNSET else fields.queue,
        tenant=tenant,
        priority=_read_priority(fields),
        policy=read_policy(fields),
        at=at,
        delay=delay,
        start_within=start_within,
        deadline=deadline,
        about=About(name=name, owner=owner, tags=tags) if name or owner or tags else None,
        author=author,
        unique=read_unique(fields.unique) if isinstance(fields, JobIn) and fields.unique is not UNSET else None,
        placement=read_placement(fields),
    )
    return with_keys(run)


def apply_defaults(new: New, fields: JobFields, entry: TaskEntry | None) -> New:
    """Fill in the options that the task declares and the request does not set."""
    if entry is None:
        return new
    preset = None if fields.preset is UNSET else fields.preset
    return fill_in_defaults(new, entry, list_given_names(fields), read_payload(fields), preset)


def changes_task(patch: JobPatch) -> bool:
    """Return whether a patch changes the task or its payload."""
    return patch.task is not UNSET or patch.payload is not UNSET


def list_given_names(fields: JobFields) -> set[str]:
    """Return the names of the set fields among the options that a task can declare."""
    return {name for name in _DECLARED if getattr(fields, name) is not UNSET}


def read_placement(fields: JobFields) -> str:
    return fields.placement if isinstance(fields, JobIn) and fields.placement is not UNSET else ""


def build_run_of_job(job: Job, run_id: RunId, payload: bytes | None, ref: JobRef, author: str) -> NewRun:
    """Build a run of a recurring job outside its schedule."""
    spec = job.spec
    return NewRun(
        id=run_id,
        task=spec.task,
        payload=job.payload if payload is None else payload,
        queue=spec.queue,
        tenant=job.tenant,
        priority=spec.priority,
        policy=spec.policy,
        start_within=spec.start_within,
        deadline=spec.deadline,
        job=ref,
        author=author,
    )


def apply_patch(base: JobFields, changes: JobPatch) -> JobFields:
    """Apply a patch to the fields of a job. A new kind of schedule removes the fields of the old kind."""
    values: dict[str, Any] = {name: getattr(base, name) for name in JobFields.__struct_fields__}
    given = {name: value for name in JobFields.__struct_fields__ if (value := getattr(changes, name)) is not UNSET}
    if "cron_expression" in given:
        values.update(every=UNSET, interval_mode=UNSET, schedule_type=UNSET)
    elif "every" in given:
        values.update(cron_expression=UNSET, timezone=UNSET, dst_gap=UNSET, dst_fold=UNSET, schedule_type=UNSET)
    if "preset" in given:
        values.update(timeout=UNSET)
    return JobFields(**(values | given))


def _parse_optional_time(value: str | UnsetType | None, field: str) -> Instant | None:
    return None if value is UNSET or value is None else parse_instant(value, field)


def _parse_optional_span(value: str | float | UnsetType | None, field: str) -> Micros | None:
    return None if value is UNSET or value is None else parse_span(value, field)


def _read_catch_up(fields: JobFields) -> CatchUp:
    given = fields.catch_up
    if given is UNSET:
        return CatchUp()
    if isinstance(given, str):
        return CatchUp(mode=given)
    changes: dict[str, Any] = {"mode": given.mode}
    for name, value in (("grace", given.grace), ("max_age", given.max_age), ("pace", given.pace)):
        if value is not None:
            changes[name] = parse_span(value, f"catchUp.{name}")
    if given.cap is not None:
        changes["cap"] = given.cap
    found = CatchUp(**changes)
    found.check_meant()
    return found
