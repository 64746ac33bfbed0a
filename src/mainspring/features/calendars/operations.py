"""Operations on calendars, which close schedules at certain times."""

import asyncio
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from mainspring.core.model.access.access import DEFAULT_TENANT, Permission, Principal
from mainspring.core.model.base.instant import DAY, isoformat, parse_instant
from mainspring.core.model.runs.names import check_queue
from mainspring.core.model.schedules.calendar import Calendar, CalendarSpec
from mainspring.core.model.schedules.closed_periods import ClosedPeriods, CompiledCalendar
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.wakeups import SCHEDULES
from mainspring.features.calendars.ical import read_ical
from mainspring.http.context import Api
from mainspring.http.operation import Answer, Call, Empty, Resource
from mainspring.http.problems import ObjectNotFound, Problem, RequestError
from mainspring.http.schemas.calendars import CalendarIn, CalendarOut, read_calendar_spec, render_calendar
from mainspring.http.schemas.common import Limit, Name, Request, Text, Time, Wire

calendars = Resource(
    "Calendars",
    "Weekends, holidays, business hours and freezes that the schedules of a tenant share. Every version is kept.",
)

_MAX_BODY = 2 * 1024 * 1024
_PREVIEW_LENGTH = 366 * DAY


class TenantQuery(Request):
    tenant: Name | None = None


class CalendarList(Wire):
    items: list[CalendarOut]


class CalendarVersionsQuery(TenantQuery):
    limit: Limit = 20


class DeleteCalendarIn(Request):
    why: Text = ""
    tenant: Name | UnsetType = UNSET


class DeletedCalendar(Wire):
    name: str
    deleted: bool


class ImportCalendarIn(Request):
    """An iCalendar file."""

    ical: Annotated[str, Meta(max_length=_MAX_BODY)]
    timezone: Annotated[str, Meta(max_length=64)] | UnsetType = UNSET
    """Time zone of the calendar, and of times without a zone; default: unchanged, or UTC for a new calendar."""
    why: Text = ""
    tenant: Name | UnsetType = UNSET


class CalendarPreviewQuery(TenantQuery):
    since: Time | None = None
    until: Time | None = None
    limit: Limit = 20


class ClosedPeriod(Wire):
    start: str
    end: str | None
    label: str = ""


class CalendarPreviewOut(Wire):
    name: str
    version: int
    closed: list[ClosedPeriod]


@calendars.operation("GET", "/v1/calendars", permission=Permission.READ, query=TenantQuery, answers={200: CalendarList})
async def list_calendars(api: Api, call: Call[Empty, TenantQuery]) -> Answer:
    """List calendars, by tenant and name.

    Returns the newest version of each calendar that your key can read.
    """
    found = await api.seen_by(call.principal).calendars(api.choose_listed(call.principal, call.query.tenant))
    return Answer(200, CalendarList(items=[render_calendar(calendar) for calendar in found]))


@calendars.operation(
    "GET",
    "/v1/calendars/{name}",
    permission=Permission.READ,
    query=TenantQuery,
    answers={200: CalendarOut, 404: Problem},
)
async def get_calendar(api: Api, call: Call[Empty, TenantQuery]) -> Answer:
    """Get a calendar.

    Returns its newest version. 404: the calendar does not exist, or your key has no access to it.
    """
    return Answer(200, render_calendar(await _find(api, call.principal, call.query.tenant, call.path["name"])))


@calendars.operation(
    "PUT",
    "/v1/calendars/{name}",
    permission=Permission.OPERATE,
    body=CalendarIn,
    answers={200: CalendarOut, 409: Problem},
    largest_body=_MAX_BODY,
    example={
        "timezone": "Europe/Paris",
        "closedDays": ["sat", "sun"],
        "holidays": [{"date": "2026-12-25", "label": "Christmas"}],
    },
)
async def put_calendar(api: Api, call: Call[CalendarIn, Empty]) -> Answer:
    """Create or change a calendar.

    A change creates a new version, which applies to all ticks from now on. Sending the same definition again
    changes nothing. Existing runs are not affected, even if they wait for the calendar to open.
    """
    body = call.body
    spec = read_calendar_spec(body)
    expected = None if body.expected_version is UNSET else body.expected_version
    saved = await _put(api, call.principal, body.tenant, call.path["name"], spec, body.why, expected)
    return Answer(200, render_calendar(saved))


@calendars.operation(
    "DELETE",
    "/v1/calendars/{name}",
    permission=Permission.OPERATE,
    body=DeleteCalendarIn,
    body_optional=True,
    answers={200: DeletedCalendar, 404: Problem, 409: Problem},
)
async def delete_calendar(api: Api, call: Call[DeleteCalendarIn, Empty]) -> Answer:
    """Delete a calendar.

    Its versions are kept. 409: a job uses it.
    """
    tenant, name = await _choose_owner(api, call.principal, call.body.tenant), call.path["name"]
    if not await api.store.delete_calendar(tenant, name, Author(call.principal.name, tenant, call.body.why)):
        raise ObjectNotFound
    api.wakeups.notify([SCHEDULES])
    return Answer(200, DeletedCalendar(name=name, deleted=True))


@calendars.operation(
    "GET",
    "/v1/calendars/{name}/versions",
    permission=Permission.READ,
    query=CalendarVersionsQuery,
    answers={200: CalendarList, 404: Problem},
)
async def calendar_versions(api: Api, call: Call[Empty, CalendarVersionsQuery]) -> Answer:
    """List the versions of a calendar, newest first.

    Each version has its definition, its author, its time and the reason that was given.
    """
    tenant = call.principal.choose_tenant(call.query.tenant) or DEFAULT_TENANT
    found = await api.seen_by(call.principal).calendar_versions(tenant, call.path["name"], call.query.limit)
    if not found:
        raise ObjectNotFound
    return Answer(200, CalendarList(items=[render_calendar(calendar) for calendar in found]))


@calendars.operation(
    "POST",
    "/v1/calendars/{name}/import",
    permission=Permission.OPERATE,
    body=ImportCalendarIn,
    answers={200: CalendarOut},
    largest_body=_MAX_BODY,
)
async def import_calendar(api: Api, call: Call[ImportCalendarIn, Empty]) -> Answer:
    """Import holidays and freezes from an iCalendar file.

    They replace the holidays and freezes of the calendar; weekdays and business hours stay. Recurring events are
    expanded for ten years.
    """
    body, name = call.body, call.path["name"]
    tenant = await _choose_owner(api, call.principal, body.tenant)
    known = {calendar.name: calendar for calendar in await api.store.calendars(tenant)}.get(name)
    spec = CalendarSpec() if known is None else known.spec
    timezone = spec.timezone if body.timezone is UNSET else body.timezone
    # In a thread, because a large file takes a second.
    holidays, freezes = await asyncio.to_thread(read_ical, body.ical, timezone, api.clock.now())
    spec = msgspec.structs.replace(spec, timezone=timezone, holidays=holidays, freezes=freezes)
    why = body.why or f"imported {len(holidays)} holidays and {len(freezes)} freezes"
    saved = await _put(api, call.principal, tenant, name, spec, why, 0 if known is None else known.version)
    return Answer(200, render_calendar(saved))


@calendars.operation(
    "GET",
    "/v1/calendars/{name}/preview",
    permission=Permission.READ,
    query=CalendarPreviewQuery,
    answers={200: CalendarPreviewOut, 404: Problem},
)
async def preview_calendar(api: Api, call: Call[Empty, CalendarPreviewQuery]) -> Answer:
    """List the next times at which a calendar is closed.

    Covers the next year, unless you set `since` and `until`.
    """
    query = call.query
    found = await _find(api, call.principal, query.tenant, call.path["name"])
    since = await api.store.now() if query.since is None else parse_instant(query.since, "since")
    until = since + _PREVIEW_LENGTH if query.until is None else parse_instant(query.until, "until")
    periods = ClosedPeriods([CompiledCalendar(found)]).spans(since, until, query.limit)
    closed = [
        ClosedPeriod(
            start=isoformat(period.start), end=None if period.end is None else isoformat(period.end), label=period.label
        )
        for period in periods
    ]
    return Answer(200, CalendarPreviewOut(name=found.name, version=found.version, closed=closed))


async def _put(
    api: Api,
    principal: Principal,
    requested_tenant: str | UnsetType | None,
    name: str,
    spec: CalendarSpec,
    why: str,
    expected: int | None,
) -> Calendar:
    tenant = await _choose_owner(api, principal, requested_tenant)
    # The name is part of a path, like that of a queue.
    check_queue("name", name)
    spec.check()
    author = Author(principal.name, tenant, why)
    saved = await api.store.put_calendar(tenant, name, spec, author, expected_version=expected)
    api.wakeups.notify([SCHEDULES])
    return saved


async def _find(api: Api, principal: Principal, requested_tenant: str | None, name: str) -> Calendar:
    tenant = principal.choose_tenant(requested_tenant) or DEFAULT_TENANT
    for calendar in await api.seen_by(principal).calendars(tenant):
        if calendar.name == name:
            return calendar
    raise ObjectNotFound


async def _choose_owner(api: Api, principal: Principal, requested_tenant: str | UnsetType | None) -> str:
    """Return the tenant that owns the calendar. A key limited to queues is refused: calendars affect all queues."""
    if not principal.reaches(()):
        raise RequestError(403, "Forbidden", "a calendar belongs to a tenant, and this key is limited to queues")
    return await api.choose_owner(principal, requested_tenant)
