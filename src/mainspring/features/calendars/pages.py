"""Dashboard page of the calendar: upcoming load, the schedules that cause it, and closed periods."""

import asyncio
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from mainspring.core.model.access.access import Permission
from mainspring.core.model.base.instant import HOUR, Instant, Micros, isoformat, to_datetime
from mainspring.core.model.schedules.cron import load_zone
from mainspring.features.calendars.operations import CalendarPreviewOut, list_calendars, preview_calendar
from mainspring.http.schemas.calendars import CalendarOut
from mainspring.web import heat_map as heat_map
from mainspring.web.formatting import instant
from mainspring.web.heat_map import list_busiest
from mainspring.web.page import Pages, Reply, Visit
from mainspring.web.zones import read_zone

calendar = Pages()

_HOURS = {"day": 24, "week": 24 * 7}
#: Limited because the closed periods of each are queried.
_MAX_CALENDARS = 20
_MAX_PERIODS = 40
_WIDTH = 1_000


class CalendarQuery(msgspec.Struct, frozen=True):
    view: Literal["day", "week"] = "week"
    zone: str = ""
    #: A selected period, and its length in minutes.
    at: str = ""
    minutes: int = 60


@calendar.page("GET", "/calendar", permission=Permission.READ, query=CalendarQuery)
async def show_calendar(visit: Visit[CalendarQuery]) -> Reply:
    query = visit.query
    hours = _HOURS[query.view]
    zone = load_zone(query.zone) if query.zone else read_zone(visit.headers)
    coming, slot, calendars = await asyncio.gather(
        visit.ask("get_forecast", query={"hours": hours}), _load_slot(visit), visit.ask(list_calendars)
    )
    start = instant(coming.start)
    return visit.show(
        "calendar/page.html",
        view=query.view,
        given={"view": query.view, "zone": query.zone},
        at=query.at,
        zone=zone.key,
        now=to_datetime(visit.now).astimezone(zone),
        coming=coming,
        peaks=list_busiest(coming, visit.now, 8),
        days=heat_map.build_week(coming.per_minute, start, zone) if query.view == "week" else [],
        hours=heat_map.build_day(coming.per_minute, start, zone) if query.view == "day" else [],
        slot=slot,
        closed_periods=await _load_closed_periods(visit, calendars.items, visit.now, hours * HOUR),
    )


async def _load_slot(visit: Visit[CalendarQuery]) -> Any:
    if not visit.query.at:
        return None
    return await visit.ask("get_slot", query={"since": visit.query.at, "minutes": visit.query.minutes})


async def _load_closed_periods(
    visit: Visit[Any], calendars: Sequence[CalendarOut], now: Instant, length: Micros
) -> list[dict[str, Any]]:
    """Return each calendar with its closed periods as bars on a scale of 1,000, and the next one."""
    query = {"until": isoformat(now + length), "limit": _MAX_PERIODS}
    found: list[CalendarPreviewOut] = await asyncio.gather(
        *(
            visit.ask(preview_calendar, path={"name": one.name}, query={**query, "tenant": one.tenant})
            for one in calendars[:_MAX_CALENDARS]
        )
    )
    return [
        {
            "calendar": one,
            "rules": _describe_rules(one),
            "covers": _describe_scope(one),
            "next": preview.closed[0] if preview.closed else None,
            "closed_now": bool(preview.closed) and instant(preview.closed[0].start) <= now,
            "bars": [_build_bar(period.start, period.end, period.label, now, length) for period in preview.closed],
        }
        for one, preview in zip(calendars, found, strict=False)
    ]


def _build_bar(start: str, end: str | None, label: str, now: Instant, length: Micros) -> dict[str, Any]:
    begin = max((instant(start) - now) / length * _WIDTH, 0.0)
    until = _WIDTH if end is None else min((instant(end) - now) / length * _WIDTH, _WIDTH)
    return {"x": round(begin, 1), "width": round(max(until - begin, 2.0), 1), "words": label or "closed"}


def _describe_rules(one: CalendarOut) -> str:
    parts = []
    if one.closed_days:
        parts.append("closed " + ", ".join(one.closed_days))
    if one.open_hours:
        parts.append("outside of open hours")
    if one.holidays:
        parts.append(f"{len(one.holidays)} holidays" if len(one.holidays) > 1 else "1 holiday")
    if one.freezes:
        parts.append(f"{len(one.freezes)} freezes" if len(one.freezes) > 1 else "1 freeze")
    return ", ".join(parts) or "never closed"


def _describe_scope(one: CalendarOut) -> str:
    if one.covers is None:
        return "jobs that reference it"
    if one.covers.all:
        return "every job"
    words = [f"tag {tag}" for tag in one.covers.tags] + [f"queue {queue}" for queue in one.covers.queues]
    return ", ".join(words) or "jobs that reference it"
