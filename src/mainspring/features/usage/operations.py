"""HTTP operations on usage and budgets."""

import csv
import io
from typing import Annotated, Literal

from msgspec import Meta

from mainspring.core.model.access.access import Permission, Principal
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import JobId
from mainspring.core.model.base.instant import DAY, SECOND, Instant, isoformat, parse_instant
from mainspring.core.model.limits.budget import Budget, BudgetStatus, find_period
from mainspring.core.model.runs.usage import CPU, WALL, UsageLine, by_line, find_day
from mainspring.core.ports.storage.access import Author
from mainspring.features.usage.service import release_work
from mainspring.http.context import Api
from mainspring.http.operation import Answer, Call, Empty, Resource
from mainspring.http.problems import ObjectNotFound, Problem, RequestError
from mainspring.http.schemas.common import Day, Name, Request, format_time
from mainspring.http.schemas.usage import BudgetOut, Budgets, Cost, UsageOut, UsagePage

usage = Resource("Usage", "Usage by day, and budgets. The numbers are up to 15 seconds old.")

#: The most rows of one answer, each the sum of one unit. If there are more, the answer says so.
_MAX_ROWS = 20_000
_MAX_NAMED = 1_000


class UsageQuery(Request):
    by: Literal["job", "task", "tenant"] = "task"
    since: Day | None = None
    """Default: the last 30 days."""
    until: Day | None = None
    """Up to this day, exclusive."""
    key: Annotated[Name, Meta(description="Only this task, tenant, or job by its id.")] | None = None
    tenant: Name | None = None


class BudgetQuery(Request):
    tenant: Name | None = None


class BudgetIn(Request):
    unit: Name
    """`wall` or `cpu`, in seconds, `attempts`, or a unit of your own."""
    limit: Annotated[float, Meta(gt=0, le=1e15)]
    period: Literal["day", "month"] = "month"
    of: Literal["tenant", "job", "task"] = "tenant"
    target: Name | None = None
    """The name of the job or the task."""
    warn_at: Annotated[float, Meta(gt=0, le=1)] = 0.8
    then: Literal["warn", "lower", "pause"] = "warn"
    tenant: Name | None = None


@usage.operation("GET", "/v1/usage", permission=Permission.READ, query=UsageQuery, answers={200: UsagePage})
async def get_usage(api: Api, call: Call[Empty, UsageQuery]) -> Answer:
    """Get what work has cost, by day and by task, job or tenant.

    Largest total duration first. Covers the last 30 days, unless you set `since`.
    """
    lines, more = await _read_lines(api, call)
    items = [
        UsageOut(day=_format_day(line.day), tenant=line.tenant, key=line.key, name=name, cost=_sum_cost([line]))
        for line, name in lines
    ]
    return Answer(200, UsagePage(items=items, total=_sum_cost([line for line, _ in lines]), more=more))


@usage.operation(
    "GET",
    "/v1/usage.csv",
    permission=Permission.READ,
    query=UsageQuery,
    answers={200: str},
    media_type="text/csv; charset=utf-8",
)
async def get_usage_csv(api: Api, call: Call[Empty, UsageQuery]) -> Answer:
    """Get what work has cost as a CSV file.

    Has the lines of `/v1/usage`, with a column for each unit.
    """
    lines, _ = await _read_lines(api, call)
    units = sorted({unit for line, _ in lines for unit in line.units})
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(["day", "tenant", "key", "name", "attempts", "wallSeconds", "cpuSeconds", *units])
    for line, name in lines:
        seconds = [line.wall / SECOND, line.cpu / SECOND]
        amounts = [line.units.get(unit, 0) for unit in units]
        words = [_escape_formula(word) for word in (line.tenant, line.key, name)]
        table.writerow([_format_day(line.day), *words, line.attempts, *seconds, *amounts])
    return Answer(200, raw=text.getvalue().encode())


@usage.operation("GET", "/v1/budgets", permission=Permission.READ, query=BudgetQuery, answers={200: Budgets})
async def list_budgets(api: Api, call: Call[Empty, BudgetQuery]) -> Answer:
    """List budgets with their current use.

    Each budget has its limit, the use in the current period, and the action at the limit.
    """
    found = await api.seen_by(call.principal).budgets(api.choose_listed(call.principal, call.query.tenant))
    return Answer(200, Budgets(items=[_budget_out(status) for status in found]))


@usage.operation(
    "PUT",
    "/v1/budgets/{name}",
    permission=Permission.ADMINISTER,
    body=BudgetIn,
    answers={200: BudgetOut, 404: Problem},
    example={"unit": "cpu", "limit": 36000, "period": "month", "then": "warn"},
)
async def put_budget(api: Api, call: Call[BudgetIn, Empty]) -> Answer:
    """Create or change a budget.

    A budget is soft: it is checked every few seconds, and active runs continue. 400: `target` is not the name of a
    recurring job.
    """
    body = call.body
    budget = Budget(
        tenant=await _choose_owner(api, call.principal, body.tenant),
        name=call.path["name"],
        unit=body.unit,
        limit=body.limit * _get_scale(body.unit),
        period=body.period,
        of=body.of,
        target=body.target or "",
        warn_at=body.warn_at,
        then=body.then,
    )
    budget.check()
    if budget.of == "job" and await api.store.job_named(budget.tenant, budget.target) is None:
        raise Invalid("target", f"there is no job {budget.target!r:.60}", "the name of a recurring job")
    status = await api.store.put_budget(budget, Author(call.principal.name, budget.tenant))
    return Answer(200, _budget_out(status))


@usage.operation(
    "DELETE",
    "/v1/budgets/{name}",
    permission=Permission.ADMINISTER,
    query=BudgetQuery,
    answers={200: BudgetOut, 404: Problem},
)
async def delete_budget(api: Api, call: Call[Empty, BudgetQuery]) -> Answer:
    """Delete a budget.

    Work that was paused because of it resumes. 404: there is no such budget.
    """
    tenant = await _choose_owner(api, call.principal, call.query.tenant)
    found = [status for status in await api.store.budgets(tenant) if status.budget.name == call.path["name"]]
    if not found:
        raise ObjectNotFound
    [status] = found
    if not await api.store.drop_budget(tenant, status.budget.name, Author(call.principal.name, tenant)):
        raise ObjectNotFound
    if status.held:
        await release_work(api.store, api.wakeups, status)
    return Answer(200, _budget_out(status))


async def _read_lines(api: Api, call: Call[Empty, UsageQuery]) -> tuple[list[tuple[UsageLine, str]], bool]:
    """Return the lines with the names of up to ``_MAX_NAMED`` jobs, and whether there are more lines."""
    query = call.query
    today = find_day(await api.store.now())
    since = today - 29 * DAY if query.since is None else _parse_day(query.since, "since")
    until = today + DAY if query.until is None else _parse_day(query.until, "until")
    if until <= since:
        raise Invalid("until", "is not after since")
    reads = api.seen_by(call.principal)
    tenant = api.choose_listed(call.principal, query.tenant)
    found = await reads.usage(tenant, since, until, query.by, key=query.key or "", limit=_MAX_ROWS)
    lines = by_line(found)
    names: dict[str, str] = {}
    if query.by == "job":
        keys = list(dict.fromkeys(line.key for line in lines if line.key))[:_MAX_NAMED]
        names = {job.id: job.spec.name for job in await reads.jobs([JobId(key) for key in keys]) if job is not None}
    return [(line, names.get(line.key, "")) for line in lines], len(found) == _MAX_ROWS


async def _choose_owner(api: Api, principal: Principal, requested_tenant: str | None) -> str:
    if not principal.reaches(()):
        raise RequestError(403, "Forbidden", "a budget belongs to a tenant, and this key is limited to queues")
    return await api.choose_owner(principal, requested_tenant)


def _parse_day(day: str, field: str) -> Instant:
    return parse_instant(f"{day}T00:00:00Z", field)


def _format_day(day: Instant) -> str:
    return isoformat(day)[:10]


def _get_scale(unit: str) -> int:
    """Return the factor from a unit of the API to one of the store: seconds become microseconds."""
    return SECOND if unit in (WALL, CPU) else 1


def _sum_cost(lines: list[UsageLine]) -> Cost:
    units: dict[str, float] = {}
    for line in lines:
        for unit, amount in line.units.items():
            units[unit] = units.get(unit, 0.0) + amount
    return Cost(
        attempts=sum(line.attempts for line in lines),
        wall_seconds=sum(line.wall for line in lines) / SECOND,
        cpu_seconds=sum(line.cpu for line in lines) / SECOND,
        units=units,
    )


def _escape_formula(word: str) -> str:
    """Prefix a name that spreadsheet programs would take for a formula."""
    return f"'{word}" if word[:1] in ("=", "+", "-", "@", "\t") else word


def _budget_out(status: BudgetStatus) -> BudgetOut:
    budget = status.budget
    scale = _get_scale(budget.unit)
    return BudgetOut(
        name=budget.name,
        budget_id=status.id,
        tenant=budget.tenant,
        unit=budget.unit,
        limit=budget.limit / scale,
        period=budget.period,
        of=budget.of,
        warn_at=budget.warn_at,
        then=budget.then,
        state=status.state,
        spent=status.spent / scale,
        held=status.held,
        target=budget.target or None,
        since=format_time(status.since or None),
        until=format_time(find_period(budget, status.since)[1]) if status.since else None,
    )
