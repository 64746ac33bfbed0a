"""Converter for Celery's beat schedule: of an application that is imported, or of a file that is parsed."""

import importlib.util
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

from mainspring.cli.options import load_module
from mainspring.core.model.base.errors import Invalid
from mainspring.features.schedules.commands.converters.celery_literals import NAMES, ZONES, read_literals
from mainspring.features.schedules.commands.converters.celery_schedules import (
    CrontabFields,
    Interval,
    UnknownSchedule,
    convert_schedule,
)
from mainspring.features.schedules.commands.converters.commands import TIMEOUT_NOTE
from mainspring.features.schedules.commands.converters.conversion import Conversion, UntranslatableError
from mainspring.features.schedules.commands.converters.functions import build_payload

_MIN_PRIORITY = 9
_RETRIES_NOTE = "maxRetries: 0 wins over the code: delete it where the task had autoretry_for"


def convert(source: str, *, timezone: str | None) -> Conversion:
    """Convert ``module:app``, a module, or a Python file."""
    path = Path(source)
    installed = importlib.util.find_spec("celery") is not None
    tasks: Mapping[str, Any] = {}
    zone: str | None
    entries: Mapping[str, Any]
    deadline = None
    if path.suffix == ".py" and not installed:
        entries, zone = read_literals(_read_text(path), str(path))
    else:
        found = _import_module(path) if path.suffix == ".py" else load_module(source.partition(":")[0], "source")
        entries, zone, tasks, deadline = _find_settings(found, source)
    conversion = Conversion()
    for name, entry in entries.items():
        _convert_entry(conversion, str(name), entry, timezone or zone or "UTC", tasks, deadline)
    if conversion.translated:
        conversion.note(_RETRIES_NOTE)
        conversion.note(TIMEOUT_NOTE)
        conversion.note('tasks keep their names: declare yours with the same, as in @app.task(name="…")')
    return conversion


def _read_text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(str(path), f"cannot be read: {error}") from None


def _import_module(path: Path) -> ModuleType:
    _read_text(path)
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return load_module(path.stem, "source")


def _find_settings(
    module: ModuleType, source: str
) -> tuple[Mapping[str, Any], str | None, Mapping[str, Any], float | None]:
    from celery import Celery, schedules

    _, _, attribute = source.partition(":")
    found: Any = module
    for name in filter(None, attribute.split(".")):
        found = getattr(found, name, None)
        if found is None:
            raise Invalid("source", f"{module.__name__} has no {attribute!r}")
    if isinstance(found, ModuleType):
        entries = next((getattr(found, name) for name in NAMES if hasattr(found, name)), None)
        apps = [value for value in vars(found).values() if isinstance(value, Celery)]
        if entries is None and len({id(app) for app in apps}) == 1:
            found = apps[0]
        elif entries is not None:
            zone = next((getattr(found, name) for name in ZONES if hasattr(found, name)), None)
            return _convert_schedules(entries, schedules), None if zone is None else str(zone), {}, None
    if isinstance(found, Mapping):
        return _convert_schedules(found, schedules), None, {}, None
    if not isinstance(found, Celery):
        raise Invalid("source", f"{source} has no beat schedule", "module:celery_app, or a file with beat_schedule")
    found.finalize()
    zone = found.conf.timezone
    return (
        _convert_schedules(found.conf.beat_schedule or {}, schedules),
        None if zone is None else str(zone),
        found.tasks,
        found.conf.beat_cron_starting_deadline,
    )


def _convert_schedules(entries: Mapping[str, Any], kinds: Any) -> dict[str, Any]:
    """Return the entries with Celery's schedules replaced by our types."""
    if not isinstance(entries, Mapping):
        raise Invalid("source", "its beat schedule is not a dict")

    def plain(schedule: Any) -> object:
        if isinstance(schedule, kinds.crontab):
            names = CrontabFields.__struct_fields__
            return CrontabFields(**{name: getattr(schedule, name) for name in names})
        if isinstance(schedule, kinds.solar):
            return UnknownSchedule("its solar schedule has no cron equivalent")
        if type(schedule) is kinds.schedule:
            return Interval(schedule.run_every.total_seconds())
        if isinstance(schedule, kinds.BaseSchedule):
            return UnknownSchedule(f"{type(schedule).__name__} is a custom schedule type")
        return schedule

    return {
        name: {**entry, "schedule": plain(entry.get("schedule"))} if isinstance(entry, Mapping) else entry
        for name, entry in entries.items()
    }


def _convert_entry(
    conversion: Conversion, name: str, entry: object, zone: str, tasks: Mapping[str, Any], deadline: float | None
) -> None:
    where = f"entry {name!r}"
    warnings: list[str] = []
    try:
        if isinstance(entry, UnknownSchedule):
            raise UntranslatableError(entry.why)
        if not isinstance(entry, Mapping) or not entry.get("task"):
            raise UntranslatableError("it has no task")
        task = str(entry["task"])
        fields: dict[str, object] = {"name": name, "task": task, **convert_schedule(entry.get("schedule"))}
        if "cronExpression" in fields:
            fields["timezone"] = zone
            if deadline:
                fields["catchUp"] = {"mode": "all", "cap": 1, "maxAge": f"{round(deadline)}s"}
        function: Callable[..., object] | None = getattr(tasks.get(task), "run", None)
        payload = build_payload(function, tuple(entry.get("args") or ()), entry.get("kwargs") or {})
        if payload:
            fields["payload"] = payload
        fields["maxRetries"] = 0
        _convert_options(fields, entry.get("options") or {}, warnings)
    except UntranslatableError as error:
        conversion.refuse(where, name, str(error))
        return
    except (TypeError, ValueError, AttributeError) as error:
        conversion.refuse(where, name, f"it is invalid: {error}")
        return
    conversion.add(where, fields, warnings)


def _convert_options(fields: dict[str, object], options: Mapping[str, Any], warnings: list[str]) -> None:
    for option, value in options.items():
        match option:
            case "queue" if isinstance(value, str):
                fields["queue"] = value
            case "priority" if isinstance(value, int):
                fields["priority"] = 10 - max(0, min(value, _MIN_PRIORITY))
                warnings.append(
                    f"priority {value} is read in RabbitMQ's order, 9 highest: {fields['priority']} of 1 to 10 here; "
                    "on Redis 0 is highest"
                )
            case "expires" if isinstance(value, timedelta):
                fields["startWithin"] = f"{round(value.total_seconds())}s"
            case "expires" if isinstance(value, int | float) and not isinstance(value, bool):
                fields["startWithin"] = f"{round(value)}s"
            case _:
                warnings.append(f"option {option} is dropped")
