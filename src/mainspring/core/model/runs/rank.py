"""The order in which queued runs start: priority with aging, fixed when a run is queued.

``rank = time made eligible + priority × head start``. A run of priority p is overtaken only by runs that became
eligible within (p − 1) head starts after it. With ten priorities and 1,000 s per step, that is within 9,000 s (2.5 h).
Therefore no run starves.
"""

from mainspring.core.model.base.checks import check_whole
from mainspring.core.model.base.instant import MINUTE, SECOND, Instant, Micros

MOST_URGENT = 1
DEFAULT_PRIORITY = 5
IDLE = 10

#: How much longer a run must have waited to go before a run that is one priority step more urgent.
HEAD_START: Micros = 1_000 * SECOND
#: The published bound: a run that became eligible more than this after another one never overtakes it.
OVERTAKING_BOUND: Micros = (IDLE - MOST_URGENT) * HEAD_START
#: The rank penalty of retries, catch-up and backfill, which queue behind live work of the same priority.
LATE_PENALTY: Micros = MINUTE


def check_priority(priority: int) -> int:
    check_whole("priority", priority, MOST_URGENT, IDLE, "1 (urgent) to 10 (idle)")
    return priority


def compute_rank(eligible_at: Instant, priority: int, *, late: bool = False) -> int:
    """Return the rank of a run in its queue; the lowest rank starts first."""
    return eligible_at + priority * HEAD_START + (LATE_PENALTY if late else 0)
