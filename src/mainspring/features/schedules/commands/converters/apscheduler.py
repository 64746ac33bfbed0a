"""Converter for APScheduler 3: imports a scheduler and reads its jobs."""

import re
from collections.abc import Iterable
from datetime import UTC, datetime, tzinfo
from typing import Any

from mainspring.cli.options import load_module
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import SECOND, format_duration
from mainspring.features.schedules.commands.converters.calendar import Calendar, build_cron
from mainspring.features.schedules.commands.converters.commands import RETRIES_NOTE, TIMEOUT_NOTE
from mainspring.features.schedules.commands.converters.conversion import Conversion, UntranslatableError
from mainspring.features.schedules.commands.converters.functions import build_payload

_GENERATED_ID = re.compile("[0-9a-f]{32}").fullmatch
#: The least grace period, in seconds. A healthy scheduler may be late by some seconds, which APScheduler's default of
#: one second would not allow.
_MIN_GRACE = 60


def convert(source: str, *, timezone: str | None) -> Conversion:
    """Convert the jobs of ``module:scheduler``."""
    try:
        from apscheduler.schedulers.base import BaseScheduler
    except ImportError:
        raise Invalid("source", "APScheduler 3 is not installed here", "run this where your scheduler runs") from None
    module_name, _, attribute = source.partition(":")
    if not attribute:
        raise Invalid("source", f"{source!r} is not of the form module:scheduler", "for example tasks:scheduler")
    scheduler: Any = getattr(load_module(module_name, "source"), attribute, None)
    if not isinstance(scheduler, BaseScheduler):
        raise Invalid("source", f"{module_name} has no scheduler called {attribute!r}")
    found = Conversion()
    for job in scheduler.get_jobs():
        _convert_job(found, job, getattr(scheduler, "_job_defaults", {}), timezone)
    if found.translated:
        found.note(RETRIES_NOTE)
        found.note(TIMEOUT_NOTE)
        found.note("tasks are named after their functions: declare each with @app.task")
    return found


def _convert_job(found: Conversion, job: Any, defaults: dict[str, Any], timezone: str | None) -> None:
    name = job.name if _GENERATED_ID(job.id) else job.id
    where = f"job {name!r}"
    warnings: list[str] = []
    try:
        if getattr(job, "next_run_time", job) is None:
            raise UntranslatableError("it is paused; resume it first, or omit it")
        task = getattr(job.func, "__name__", "")
        if not task.isidentifier():
            raise UntranslatableError("its function has no importable name")
        fields: dict[str, object] = {"name": name, "task": task, **_convert_trigger(job.trigger, timezone)}
        payload = build_payload(job.func, job.args, job.kwargs)
        if payload:
            fields["payload"] = payload
        fields["maxRetries"] = 0
        _convert_policies(fields, job, defaults, warnings)
    except UntranslatableError as error:
        found.refuse(where, name, str(error))
        return
    found.add(where, fields, warnings)


def _convert_policies(fields: dict[str, object], job: Any, defaults: dict[str, Any], warnings: list[str]) -> None:
    def option(name: str, default: object) -> Any:
        return getattr(job, name, defaults.get(name, default))

    together = option("max_instances", 1)
    if together == 1:
        fields["overlap"] = "skip"
    else:
        warnings.append(f"max_instances {together} is dropped: any number of runs may be active")
    grace = option("misfire_grace_time", 1)
    if grace is not None:
        fields["catchUp"] = {"mode": "none", "grace": f"{max(grace, _MIN_GRACE)}s"} if grace > _MIN_GRACE else "none"
    elif not option("coalesce", True):
        fields["catchUp"] = "all"
        warnings.append("at most 100 missed ticks are caught up, none older than a day")


def _convert_trigger(trigger: Any, timezone: str | None) -> dict[str, object]:
    from apscheduler.triggers.cron import CronTrigger
    from apscheduler.triggers.date import DateTrigger
    from apscheduler.triggers.interval import IntervalTrigger

    fields: dict[str, object]
    if type(trigger) is CronTrigger:
        fields = {"cronExpression": _convert_cron(trigger), "timezone": _get_zone_name(trigger.timezone, timezone)}
        start = trigger.start_date
    elif type(trigger) is IntervalTrigger:
        fields = {"every": format_duration(round(trigger.interval_length * SECOND))}
        # Without a start, APScheduler uses the time of the import, which has microseconds. Ignore it.
        start = trigger.start_date if trigger.start_date and not trigger.start_date.microsecond else None
    elif type(trigger) is DateTrigger:
        raise UntranslatableError(f"it runs once, at {trigger.run_date.isoformat()}: submit it as a one-off job")
    else:
        raise UntranslatableError(f"{type(trigger).__name__} has no counterpart: split it into several schedules")
    for field, moment in (("scheduleTime", start), ("endTime", trigger.end_date)):
        if moment is not None:
            fields[field] = _convert_instant(moment)
    if trigger.jitter:
        fields["jitter"] = f"{round(trigger.jitter)}s"
    return fields


def _convert_instant(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _get_zone_name(zone: tzinfo, default: str | None) -> str:
    """Return the IANA name of a zone. Each zone library keeps it in another attribute."""
    name = getattr(zone, "key", None) or getattr(zone, "zone", None)
    if name is None and zone.utcoffset(None) == UTC.utcoffset(None):
        name = "UTC"
    if name is None:
        if default is None:
            raise UntranslatableError(f"its time zone {zone} has no name; set one with --tz")
        name = default
    return str(name)


def _convert_cron(trigger: Any) -> str:
    fields = {field.name: field for field in trigger.fields}
    for name in ("year", "week"):
        if str(fields[name]) != "*":
            raise UntranslatableError(f"{name}={fields[name]}: a cron expression has no {name}")
    days: set[int] = set()
    numbered: list[tuple[int, int]] = []
    last_day = False
    for expression in fields["day"].expressions:
        match type(expression).__name__:
            case "WeekdayPositionExpression":
                # APScheduler's 5 means the last one, which is 0 here.
                place = 0 if expression.option_num == 5 else expression.option_num + 1
                numbered.append(((expression.weekday + 1) % 7, place))
            case "LastDayOfMonthExpression":
                last_day = True
            case _:
                days |= _parse_values([expression], 1, 31)
    return build_cron(
        Calendar(
            seconds=_parse_values(fields["second"].expressions, 0, 59),
            minutes=_parse_values(fields["minute"].expressions, 0, 59),
            hours=_parse_values(fields["hour"].expressions, 0, 23),
            days=frozenset(days),
            months=_parse_values(fields["month"].expressions, 1, 12),
            # Monday is 0 in APScheduler and 1 here.
            weekdays=frozenset((day + 1) % 7 for day in _parse_values(fields["day_of_week"].expressions, 0, 6)),
            numbered=tuple(numbered),
            last_day=last_day,
        )
    )


def _parse_values(expressions: Iterable[Any], low: int, high: int) -> frozenset[int]:
    values: set[int] = set()
    for expression in expressions:
        first = getattr(expression, "first", low)
        last = getattr(expression, "last", None)
        values |= set(range(first, (high if last is None else last) + 1, expression.step or 1))
        if last is None and expression.step is None and hasattr(expression, "first"):
            # A single name such as "fri" has no last value: it is one day.
            values -= set(range(first + 1, high + 1))
    return frozenset(values)
