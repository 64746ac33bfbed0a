"""Usage and budgets in the wire format."""

from typing import Literal

from mainspring.http.schemas.common import Wire


class Cost(Wire):
    attempts: int = 0
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    """CPU time of threads, processes and scripts. It is unknown for async tasks."""
    units: dict[str, float] = {}


class UsageOut(Wire):
    day: str
    tenant: str
    key: str
    """The task, the job's id or the tenant. Empty: runs without a recurring job."""
    cost: Cost
    name: str = ""
    """The name of the job, if it exists."""


class UsagePage(Wire):
    items: list[UsageOut]
    total: Cost
    more: bool = False
    """There are more entries: request fewer days, or one key."""


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
    """The amount in this period, a few seconds old."""
    held: bool
    """The tenant or the job is paused because of the budget."""
    target: str | None = None
    since: str | None = None
    """When the period of these values began. Absent if the budget was not evaluated yet."""
    until: str | None = None


class Budgets(Wire):
    items: list[BudgetOut]
