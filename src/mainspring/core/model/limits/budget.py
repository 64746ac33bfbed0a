"""Budgets per day or month for a unit of usage. They are soft: checked every few seconds, and active runs continue."""

from datetime import timedelta
from typing import Literal

import msgspec

from mainspring.core.model.base.checks import check_kind, check_word
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import SECOND, Instant, from_datetime, to_datetime
from mainspring.core.model.runs.names import check_name, check_tenant
from mainspring.core.model.runs.usage import COUNTED, CPU, WALL, check_amount, check_unit

_STATES = ("ok", "warned", "over")


class Budget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a tenant, or one of its jobs or tasks, may use in a period."""

    tenant: str
    #: Unique within the tenant.
    name: str
    unit: str
    #: Microseconds for wall and CPU time, otherwise the amount in the unit.
    limit: float
    period: Literal["day", "month"] = "month"
    #: The scope: the whole tenant, or the job or task named by ``target``.
    of: Literal["tenant", "job", "task"] = "tenant"
    target: str = ""
    #: The fraction of the limit at which it warns.
    warn_at: float = 0.8
    #: The action when the budget is exhausted, until the period ends. lower: queued runs move behind all others. pause:
    #: nothing of the tenant starts, or the job's ticks are skipped.
    then: Literal["warn", "lower", "pause"] = "warn"

    def check(self) -> None:
        check_tenant("tenant", self.tenant)
        check_name("name", self.name)
        if "/" in self.name:
            raise Invalid("name", f"{self.name!r:.40} is not a name of a budget", "without a slash")
        if self.unit not in COUNTED:
            check_unit(self.unit)
        if check_amount(self.limit, "limit") <= 0:
            raise Invalid("limit", "is nothing", "more than 0")
        check_word("period", self.period, ("day", "month"))
        check_word("of", self.of, ("tenant", "job", "task"))
        check_word("then", self.then, ("warn", "lower", "pause"))
        check_kind("warnAt", self.warn_at, int, float)
        if not 0 < self.warn_at <= 1:
            raise Invalid("warnAt", f"{self.warn_at} is no part of the limit", "more than 0, at most 1")
        if self.of == "tenant" and self.target:
            raise Invalid("target", "is for a job or a task", "leave it out, or say of: job")
        if self.of != "tenant":
            check_name("target", self.target)
        if self.of == "task" and self.then == "pause":
            raise Invalid("then", "a task cannot be paused", "lower; or a budget of its jobs or of the tenant")


class BudgetStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A budget and its state as of a few seconds ago."""

    budget: Budget
    #: The id of the budget in events.
    id: str
    state: Literal["ok", "warned", "over"] = "ok"
    #: The start of the period that the state refers to; 0: not evaluated yet.
    since: Instant = 0
    spent: float = 0.0
    #: The budget has paused the tenant or the job.
    held: bool = False


def author_name(name: str) -> str:
    """Return the author name under which a budget pauses and resumes."""
    return f"budget:{name}"


def lowers(status: BudgetStatus, tenant: str, task: str, job: str | None) -> bool:
    """Return whether the budget moves queued runs of this task and job behind all others."""
    budget = status.budget
    if (status.state, budget.then, budget.tenant) != ("over", "lower", tenant):
        return False
    return budget.of == "tenant" or budget.target == (task if budget.of == "task" else job)


def find_period(budget: Budget, now: Instant) -> tuple[Instant, Instant]:
    """Return the start and the end of the UTC day or month that contains ``now``."""
    moment = to_datetime(now)
    begin = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    if budget.period == "day":
        end = begin + timedelta(days=1)
    else:
        begin = begin.replace(day=1)
        end = (begin + timedelta(days=32)).replace(day=1)
    return from_datetime(begin), from_datetime(end)


def judge(status: BudgetStatus, spent: float, now: Instant) -> BudgetStatus:
    """Return the current status. Within a period the state only improves if the budget is changed."""
    begin, _ = find_period(status.budget, now)
    limit = status.budget.limit
    state: Literal["ok", "warned", "over"] = (
        "over" if spent >= limit else "warned" if spent >= limit * status.budget.warn_at else "ok"
    )
    return msgspec.structs.replace(status, state=state, since=begin, spent=spent)


def news(before: BudgetStatus, after: BudgetStatus) -> list[str]:
    """Return the events of a status change: one for each state newly reached within the period."""
    was = before.state if before.since == after.since else "ok"
    reached = _STATES[_STATES.index(was) + 1 : _STATES.index(after.state) + 1]
    return [f"budget.{'exceeded' if state == 'over' else state}" for state in reached]


def amount_words(unit: str, amount: float) -> str:
    """Format an amount for display."""
    return f"{amount / SECOND:.12g}s of {unit}" if unit in (WALL, CPU) else f"{amount:.12g} {unit}"
