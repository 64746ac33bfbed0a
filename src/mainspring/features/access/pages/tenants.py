"""Dashboard pages of tenants: quotas, usage and budgets."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from mainspring.core.model.access.access import DEFAULT_TENANT, Permission
from mainspring.core.model.base.instant import DAY, isoformat
from mainspring.core.model.runs.retention import STANDARD
from mainspring.features.access.operations import list_tenants, put_tenant
from mainspring.features.access.schemas import QuotasIn, Tenants
from mainspring.http.problems import ObjectNotFound, RequestFieldError
from mainspring.http.schemas.usage import BudgetOut, Budgets, UsageOut, UsagePage
from mainspring.web.charts import encode_chart
from mainspring.web.page import ActionReply, Pages, Reply, Visit

tenants = Pages()

_DAYS = 30
_TASKS = 15
_COUNTED = 10_000
#: Quotas of a tenant without settings.
_NO_QUOTAS = QuotasIn()


class Spent(NamedTuple):
    """Usage of a tenant or task in 30 days."""

    key: str
    attempts: int = 0
    wall: float = 0.0
    cpu: float = 0.0


@tenants.page("GET", "/tenants", permission=Permission.ADMINISTER_ALL)
async def show_tenants(visit: Visit[Any]) -> Reply:
    found, usage, budgets = await asyncio.gather(
        visit.ask(list_tenants), visit.ask("get_usage", query={"by": "tenant"}), visit.ask("list_budgets")
    )
    listed: Tenants = found
    quotas = {tenant.name: tenant.quotas for tenant in listed.items}
    spent = {one.key: one for one in _summed(usage.items)}
    names = sorted({DEFAULT_TENANT, *quotas, *spent} - {""}, key=lambda name: (-_wall(spent, name), name))
    return visit.show(
        "tenants/list.html",
        names=names,
        quotas=quotas,
        spent=spent,
        nothing=Spent(""),
        budgets=_by_tenant(budgets),
    )


@tenants.page("POST", "/tenants", permission=Permission.ADMINISTER_ALL)
async def do_put(visit: Visit[Any]) -> Reply:
    name = visit.form.get("name", "").strip()
    quotas = {field.encode_name: _whole(visit, field.encode_name) for field in msgspec.structs.fields(QuotasIn)}
    said = {field: value for field, value in quotas.items() if value is not None}
    kept = {"retention": visit.form["retention"]} if "retention" in visit.form else {}
    await visit.ask(put_tenant, body={"name": name, "quotas": said, **kept})
    return ActionReply(
        words="Quotas saved. They apply within seconds.", to=f"tenants/{quote(name, safe='')}", leave=True
    )


@tenants.page("GET", "/tenants/{name}", permission=Permission.READ)
async def show_tenant(visit: Visit[Any]) -> Reply:
    name = visit.path["name"]
    if visit.principal.tenant not in (None, name):
        raise ObjectNotFound
    of_all = visit.principal.may(Permission.ADMINISTER_ALL)
    by_day, by_task, budgets, counts = await asyncio.gather(
        visit.ask("get_usage", query={"by": "tenant", "tenant": name}),
        visit.ask("get_usage", query={"by": "task", "tenant": name}),
        visit.ask("list_budgets", query={"tenant": name}),
        visit.ask("count_runs", query={"tenant": name, "atMost": _COUNTED}),
    )
    # Only administrators of all tenants can read quotas.
    listed: Tenants | None = await visit.ask(list_tenants) if of_all else None
    known = next((one for one in listed.items if one.name == name), None) if listed is not None else None
    tasks = _summed(by_task.items)
    return visit.show(
        "tenants/detail.html",
        name=name,
        quotas=(_NO_QUOTAS if known is None else known.quotas) if of_all else None,
        retention=STANDARD if known is None else known.retention,
        total=by_day.total,
        tasks=tasks[:_TASKS],
        others=len(tasks) - _TASKS,
        most=max((task.wall for task in tasks), default=0.0),
        budgets=budgets.items,
        counts=counts.counts,
        counted=_COUNTED,
        cost_chart=_days_chart(by_day, visit.now),
        units=("wall", "cpu", "attempts", *sorted(by_day.total.units)),
    )


@tenants.page("POST", "/tenants/{name}/budgets", permission=Permission.ADMINISTER)
async def do_put_budget(visit: Visit[Any]) -> Reply:
    tenant, form = visit.path["name"], visit.form
    try:
        limit = float(form.get("limit", ""))
    except ValueError:
        raise RequestFieldError("limit", f"{form.get('limit', '')!r:.40} is not a number", "for example 3600") from None
    body: dict[str, Any] = {"unit": form.get("unit", "").strip(), "limit": limit, "tenant": tenant}
    for field in ("period", "of", "target", "then"):
        if value := form.get(field, "").strip():
            body[field] = value
    await visit.ask("put_budget", path={"name": form.get("budget", "").strip()}, body=body)
    return ActionReply(words="Budget saved.", to=f"tenants/{quote(tenant, safe='')}")


@tenants.page("POST", "/tenants/{name}/budgets/{budget}/drop", permission=Permission.ADMINISTER)
async def do_drop_budget(visit: Visit[Any]) -> Reply:
    tenant = visit.path["name"]
    await visit.ask("delete_budget", path={"name": visit.path["budget"]}, query={"tenant": tenant})
    return ActionReply(
        words="Budget deleted. Everything that it paused is resumed.", to=f"tenants/{quote(tenant, safe='')}"
    )


def _summed(lines: Iterable[UsageOut]) -> list[Spent]:
    """Sum the usage over all days by key, largest wall time first."""
    sums: dict[str, Spent] = {}
    for line in lines:
        so_far = sums.get(line.key, Spent(line.key))
        sums[line.key] = Spent(
            line.key,
            so_far.attempts + line.cost.attempts,
            so_far.wall + line.cost.wall_seconds,
            so_far.cpu + line.cost.cpu_seconds,
        )
    return sorted(sums.values(), key=lambda one: -one.wall)


def _wall(spent: dict[str, Spent], name: str) -> float:
    return spent[name].wall if name in spent else 0.0


def _by_tenant(budgets: Budgets) -> dict[str, Sequence[BudgetOut]]:
    """Group the budgets by tenant, exceeded ones first."""
    found: dict[str, list[BudgetOut]] = {}
    for budget in sorted(budgets.items, key=lambda one: ("over", "warned", "ok").index(one.state)):
        found.setdefault(budget.tenant, []).append(budget)
    return dict(found)


def _days_chart(usage: UsagePage, now: int) -> str:
    """Render wall time by day for the last 30 days, including days without usage."""
    days = [isoformat(now - (now % DAY) - back * DAY) for back in reversed(range(_DAYS))]
    seconds: dict[str, float] = {}
    for line in usage.items:
        seconds[line.day] = seconds.get(line.day, 0.0) + line.cost.wall_seconds
    values = [round(seconds.get(day[:10], 0.0) * 1_000, 1) for day in days]
    return encode_chart("bars", "ms", days, [{"name": "ran", "colour": "--running-fill", "values": values}])


def _whole(visit: Visit[Any], name: str) -> int | None:
    text = visit.form.get(name, "").strip().replace(",", "")
    if not text:
        return None
    if not text.isdecimal():
        raise RequestFieldError(f"quotas.{name}", f"{text!r:.40} is not a whole number", "leave it blank for no limit")
    return int(text)
