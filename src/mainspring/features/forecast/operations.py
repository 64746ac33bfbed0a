"""Operations on the forecast of runs."""

from typing import Annotated

from msgspec import Meta

from mainspring.core.model.access.access import Permission
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import DAY, HOUR, MINUTE, isoformat, parse_instant
from mainspring.core.model.schedules.forecast import Planned, Share, firing, forecast
from mainspring.features.forecast.service import read_planned
from mainspring.http.context import Api
from mainspring.http.operation import Answer, Call, Empty, Resource
from mainspring.http.schemas.common import Name, Request, Time
from mainspring.http.schemas.forecast import ForecastOut, MakerOut, PeakOut, SlotMaker, SlotOut

forecasts = Resource("Forecast", "The number of runs per minute in the coming hours.")

#: Beyond this number only the newest schedules are counted.
_MAX_SCHEDULES = 10_000
_MAX_NAMED = 100
_MAX_AHEAD = 8 * DAY


class ForecastQuery(Request):
    hours: Annotated[int, Meta(ge=1, le=24 * 7)] = 24
    tenant: Name | None = None


class SlotQuery(Request):
    since: Time
    minutes: Annotated[int, Meta(ge=1, le=24 * 60)] = 60
    tenant: Name | None = None


@forecasts.operation("GET", "/v1/forecast", permission=Permission.READ, query=ForecastQuery, answers={200: ForecastOut})
async def get_forecast(api: Api, call: Call[Empty, ForecastQuery]) -> Answer:
    """Get how many runs start in each of the coming minutes.

    Includes the peaks and the schedules that cause them. Covers schedules that are not paused and runs that wait
    for their time. The answer may be 30 seconds old.
    """
    hours = call.query.hours
    tenant = api.choose_listed(call.principal, call.query.tenant)
    key = (tenant, f"{hours}")
    found = api.forecasts.find(key)
    if found is None:
        found = await _compute_forecast(api, call, tenant, hours)
        api.forecasts.keep(key, found, len(found.per_minute))
    return Answer(200, found)


@forecasts.operation("GET", "/v1/forecast/slot", permission=Permission.READ, query=SlotQuery, answers={200: SlotOut})
async def get_slot(api: Api, call: Call[Empty, SlotQuery]) -> Answer:
    """List the schedules that tick in a period of the coming week, largest first.

    The period starts with the minute of `since`. The answer may be 30 seconds old.
    """
    query = call.query
    tenant = api.choose_listed(call.principal, query.tenant)
    now = await api.store.now()
    start = parse_instant(query.since, "since")
    start -= start % MINUTE
    if not now - DAY <= start <= now + _MAX_AHEAD:
        raise Invalid("since", "is not in the coming week", "use a time within eight days")
    planned, more = await _read_planned_cached(api, call, tenant)
    parts = firing(planned, start, query.minutes)
    due = await api.store.due_by_minute(tenant, start, start + query.minutes * MINUTE)
    waiting = sum(count for _, count in due)
    out = SlotOut(
        start=isoformat(start),
        minutes=query.minutes,
        runs=sum(part.runs for part in parts) + waiting,
        waiting=waiting,
        schedules=len(parts),
        makers=[
            SlotMaker(job_id=part.key, name=part.name, runs=part.runs, first=isoformat(part.first))
            for part in parts[:_MAX_NAMED]
        ],
        complete=not more,
    )
    return Answer(200, out)


async def _read_planned_cached(
    api: Api, call: Call[Empty, SlotQuery], tenant: str | None
) -> tuple[list[Planned], bool]:
    """Read the schedules, cached because visitors look at several periods in succession."""
    found = api.planned.find((tenant, ""))
    if found is None:
        lists = api.listed_by(call.principal)
        found = await read_planned(lists, api.closed_times, await api.store.datacenters(), tenant, _MAX_SCHEDULES)
        api.planned.keep((tenant, ""), found, len(found[0]))
    return found


async def _compute_forecast(api: Api, call: Call[Empty, ForecastQuery], tenant: str | None, hours: int) -> ForecastOut:
    now = await api.store.now()
    lists = api.listed_by(call.principal)
    planned, more = await read_planned(lists, api.closed_times, await api.store.datacenters(), tenant, _MAX_SCHEDULES)
    begin = now - now % MINUTE
    waiting = await api.store.due_by_minute(tenant, begin, begin + hours * HOUR)
    found = forecast(planned, now, hours * 60, waiting)
    return ForecastOut(
        start=isoformat(found.start),
        runs=sum(found.counts),
        schedules=found.active,
        waiting=found.waiting,
        closed=found.closed,
        complete=not more,
        per_minute=found.counts,
        peaks=[
            PeakOut(at=isoformat(peak.at), runs=peak.runs, makers=_makers_out(peak.makers), others=peak.others)
            for peak in found.peaks
        ],
        totals=_makers_out(found.totals),
    )


def _makers_out(shares: list[Share] | tuple[Share, ...]) -> list[MakerOut]:
    return [MakerOut(name=share.name, runs=share.runs) for share in shares]
