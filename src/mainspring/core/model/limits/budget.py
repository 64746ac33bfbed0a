"""Budgets: so much of a unit a day or a month. Soft: they are looked at every few seconds, and what runs goes on."""

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
    #: A tenant has one of each name.
    name: str
    unit: str
    #: Microseconds of wall and CPU; of other units the amount itself.
    limit: float
    period: Literal["day", "month"] = "month"
    #: What it is for: the whole tenant, or the job or the task of this name.
    of: Literal["tenant", "job", "task"] = "tenant"
    target: str = ""
    #: The part of the limit at which it warns.
    warn_at: float = 0.8
    #: When it is used up. lower: queued runs stand behind all others. pause: nothing of the tenant starts, the job's
    #: ticks are skipped. All of it ends with the period.
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
    """A budget and how it stands, as of a few seconds ago."""

    budget: Budget
    #: Its id in events.
    id: str
    state: Literal["ok", "warned", "over"] = "ok"
    #: When the period began of which this is told; 0: it was not looked at yet.
    since: Instant = 0
    spent: float = 0.0
    #: The tenant or the job is paused because of it.
    held: bool = False


def author_name(name: str) -> str:
    """As whom a budget pauses and resumes."""
    return f"budget:{name}"


def lowers(status: BudgetStatus, tenant: str, task: str, job: str | None) -> bool:
    """Whether queued runs of this task, and of the job of this name, stand behind all others because of it."""
    budget = status.budget
    if (status.state, budget.then, budget.tenant) != ("over", "lower", tenant):
        return False
    return budget.of == "tenant" or budget.target == (task if budget.of == "task" else job)


def period_of(budget: Budget, now: Instant) -> tuple[Instant, Instant]:
    """The day or month of UTC that a moment lies in: its begin, and its end."""
    moment = to_datetime(now)
    begin = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    if budget.period == "day":
        end = begin + timedelta(days=1)
    else:
        begin = begin.replace(day=1)
        end = (begin + timedelta(days=32)).replace(day=1)
    return from_datetime(begin), from_datetime(end)


def judge(status: BudgetStatus, spent: float, now: Instant) -> BudgetStatus:
    """How it stands now. Within a period it never gets better by itself, unless the budget was changed."""
    begin, _ = period_of(status.budget, now)
    limit = status.budget.limit
    state: Literal["ok", "warned", "over"] = (
        "over" if spent >= limit else "warned" if spent >= limit * status.budget.warn_at else "ok"
    )
    return msgspec.structs.replace(status, state=state, since=begin, spent=spent)


def news(before: BudgetStatus, after: BudgetStatus) -> list[str]:
    """The events of a change: what was reached within this period that had not been before."""
    was = before.state if before.since == after.since else "ok"
    reached = _STATES[_STATES.index(was) + 1 : _STATES.index(after.state) + 1]
    return [f"budget.{'exceeded' if state == 'over' else state}" for state in reached]


def amount_words(unit: str, amount: float) -> str:
    """As people read it."""
    return f"{amount / SECOND:.12g}s of {unit}" if unit in (WALL, CPU) else f"{amount:.12g} {unit}"
