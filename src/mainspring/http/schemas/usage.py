"""Usage and budgets."""

from typing import Literal

from mainspring.http.schemas.common import Wire


class Cost(Wire):
    attempts: int = 0
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    """Of what runs on threads, in processes and as scripts. Of async tasks it is not known."""
    units: dict[str, float] = {}


class UsageOut(Wire):
    day: str
    tenant: str
    key: str
    """The task, the job's id or the tenant. Empty: of no recurring job."""
    cost: Cost
    name: str = ""
    """Of a job that is there."""


class UsagePage(Wire):
    items: list[UsageOut]
    total: Cost
    more: bool = False
    """There is more than this: ask for fewer days, or for one key."""


class BudgetOut(Wire):
    name: str
    budget_id: str
    tenant: str
    unit: str
    limit: float
    period: str
    of: str
    warn_at: float
    then: str
    state: Literal["ok", "warned", "over"]
    spent: float
    """In this period, as of a few seconds ago."""
    held: bool
    """The tenant or the job is paused because of it."""
    target: str | None = None
    since: str | None = None
    """When the period began that this is told of; it was not looked at yet without."""
    until: str | None = None


class Budgets(Wire):
    items: list[BudgetOut]
