"""Converts a job to the fields of a form, and back."""

from collections.abc import Mapping
from typing import Any

import msgspec

from mainspring.http.problems import RequestFieldError
from mainspring.http.schemas.job_answers import JobOut
from mainspring.web.arguments import build_payload
from mainspring.web.page import read_json_field
from mainspring.web.text import typed

#: The initial values of a new job. Names are those of the API, so that its errors point to fields of the form.
DEFAULTS: dict[str, str] = {
    "kind": "cron",
    "name": "",
    "task": "",
    "payload": "{}",
    "cronExpression": "",
    "timezone": "UTC",
    "dstGap": "run_after",
    "dstFold": "once",
    "every": "",
    "intervalMode": "fixedRate",
    "at": "",
    "scheduleTime": "",
    "endTime": "",
    "jitter": "",
    # Empty: use the default of the task.
    "queue": "",
    "priority": "",
    "maxRetries": "",
    "timeout": "",
    "deadline": "",
    "startWithin": "",
    "overlap": "allow",
    "catchUp": "latest",
    "calendars": "",
    "whenClosed": "skip",
    "retention": "",
    "owner": "",
    "tags": "",
}
#: Values that replace refused fields, so that the other fields are validated as well.
PLACEHOLDERS = {
    **DEFAULTS,
    "name": "a_name",
    "task": "a_task",
    "cronExpression": "0 0 1 1 *",
    "every": "1d",
    "at": "2999-01-01T00:00:00",
}
#: Fields that exist for one kind of schedule only.
_BY_KIND = {
    "cron": ("cronExpression", "timezone", "dstGap", "dstFold"),
    "every": ("every", "intervalMode"),
    "at": ("at",),
    "now": (),
}
_RECURRING = ("scheduleTime", "endTime", "jitter", "overlap", "catchUp", "calendars", "whenClosed")
_ALWAYS = (
    "name",
    "task",
    "payload",
    "queue",
    "priority",
    "maxRetries",
    "timeout",
    "deadline",
    "startWithin",
    "retention",
    "owner",
)
_NUMBERS = ("priority", "maxRetries")
_LISTS = ("calendars", "tags")
#: Times that the form shows in UTC, without a zone.
_TIMES = ("at", "scheduleTime", "endTime")
#: The value that an emptied field gets. Other emptied fields stay unchanged.
_EMPTY_VALUES: dict[str, Any] = {
    "payload": None,
    "scheduleTime": None,
    "endTime": None,
    "deadline": None,
    "startWithin": None,
    "retention": None,
    "jitter": "0s",
    "owner": "",
    "calendars": [],
    "tags": [],
}


def build_form_values(job: JobOut) -> dict[str, str]:
    """Return the values that the form shows for a job."""
    found = {
        "kind": {"cron": "cron", "interval": "every", "future": "at"}.get(job.schedule_type, "now"),
        "name": job.name,
        "task": job.task,
        "payload": typed(job.payload),
        "cronExpression": job.cron_expression,
        "timezone": job.timezone,
        "dstGap": job.dst_gap,
        "dstFold": job.dst_fold,
        "every": job.every,
        "intervalMode": job.interval_mode,
        "jitter": job.jitter,
        "queue": job.queue,
        "priority": str(job.priority),
        "maxRetries": str(job.max_retries),
        "timeout": job.timeout,
        "deadline": job.deadline,
        "startWithin": job.start_within,
        "retention": job.retention,
        "overlap": job.overlap,
        "catchUp": getattr(job.catch_up, "mode", None),
        "whenClosed": job.when_closed,
    }
    if job.version is None:
        found["at"] = _format_local(job.schedule_time)
    else:
        found |= {"scheduleTime": _format_local(job.schedule_time), "endTime": _format_local(job.end_time)}
    given = {name: value for name, value in found.items() if value is not None}
    lists = {"calendars": ", ".join(sorted(job.calendars)), "tags": ", ".join(job.tags), "owner": job.owner or ""}
    # Fields that the kind of schedule lacks get their defaults, because the form can change the kind.
    return {**DEFAULTS, **given, **lists}


def build_body(form: Mapping[str, str]) -> dict[str, Any]:
    """Build the request for a new job from the form."""
    kind = form.get("kind", "cron")
    recurring = kind in ("cron", "every")
    names = (*_ALWAYS, "tags", *_BY_KIND.get(kind, ()), *(_RECURRING if recurring else ()))
    body = {_named(name): _value(form, name) for name in names if _text(form, name)}
    if (payload := build_payload(form)) is not None:
        body["payload"] = payload
    if kind in ("cron", "every"):
        # Name the type, so that the error names the field that was left empty.
        body["scheduleType"] = "cron" if kind == "cron" else "interval"
    elif kind == "at":
        body["scheduleType"] = "future"
    return body


def build_patch(job: JobOut, form: Mapping[str, str]) -> dict[str, Any]:
    """Build the request that changes what was edited in the form."""
    current, kind = build_form_values(job), form.get("kind", "cron")
    names = (*_ALWAYS, "tags", *(() if job.version is None else _RECURRING), *_BY_KIND.get(kind, ()))
    other_kind = kind != current["kind"]
    body: dict[str, Any] = {}
    for name in names:
        given = _text(form, name)
        if _is_unchanged(name, given, current[name]) and not (other_kind and name in _BY_KIND.get(kind, ())):
            continue
        if given:
            body[_named(name)] = _value(form, name)
        elif name in _EMPTY_VALUES:
            body[_named(name)] = _EMPTY_VALUES[name]
    if other_kind:
        body["scheduleType"] = {"cron": "cron", "every": "interval"}.get(kind, "future")
        if kind == "now":
            body["delay"] = 0
    if why := form.get("why", "").strip():
        body["why"] = why
    if form.get("version", "").isdecimal():
        body["expectedVersion"] = int(form["version"])
    return body


def keeps_payload(job: JobOut, form: Mapping[str, str]) -> bool:
    """Return whether the payload is unedited. The form lacks parts of a payload that is cut or redacted."""
    return _is_unchanged("payload", _text(form, "payload"), build_form_values(job)["payload"])


def _is_unchanged(name: str, given: str, current: str) -> bool:
    # Names and words are compared as text: the API refuses characters that a page would show differently.
    if given == current.strip() or name != "payload":
        return given == current.strip()
    try:
        return _canonicalize(given) == _canonicalize(current)
    except msgspec.DecodeError:
        return False


def _canonicalize(text: str) -> bytes:
    """Return one canonical text for equal JSON. Values will not do: in Python ``1``, ``1.0`` and ``True`` are equal."""
    return msgspec.json.encode(msgspec.json.decode(text), order="sorted")


def _named(name: str) -> str:
    return "scheduleTime" if name == "at" else name


def _text(form: Mapping[str, str], name: str) -> str:
    if name == "calendars":
        # Each calendar has a checkbox. A form without checkboxes has one text with commas.
        ticked = [field.partition(".")[2] for field in form if field.startswith("calendar.")]
        return ", ".join(sorted(ticked)) or form.get(name, "").strip()
    return form.get(name, "").replace("\r\n", "\n").strip()


def _value(form: Mapping[str, str], name: str) -> Any:
    text = _text(form, name)
    if name == "payload":
        return read_json_field(form, name)
    if name in _LISTS:
        return [word for part in text.split(",") if (word := part.strip())]
    if name in _NUMBERS:
        if not text.removeprefix("-").isdecimal():
            raise RequestFieldError(name, "is not a whole number", "for example 3")
        return int(text)
    if name in _TIMES and "Z" not in text and "+" not in text:
        return f"{text}Z"
    return text


def _format_local(iso: str | None) -> str:
    """Format a time for an input of date and time: in UTC, to the second."""
    return "" if iso is None else iso[:19]
