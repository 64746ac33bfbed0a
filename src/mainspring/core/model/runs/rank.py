"""The order in which queued runs start: priority with ageing, fixed when a run is staged.

``rank = time made eligible + priority × head start``. A run of priority p is overtaken only by runs that became
eligible within (p − 1) head starts after it: with ten priorities and 1,000 s a step, within 9,000 s (2.5 h). No run
starves.
"""

from mainspring.core.model.base.checks import check_whole
from mainspring.core.model.base.instant import MINUTE, SECOND, Instant, Micros

MOST_URGENT = 1
DEFAULT_PRIORITY = 5
IDLE = 10

#: How much older a run must be to go ahead of one that is a step more urgent.
HEAD_START: Micros = 1_000 * SECOND
#: The published bound: nothing that became eligible later than this after a run can go ahead of it.
OVERTAKING_BOUND: Micros = (IDLE - MOST_URGENT) * HEAD_START
#: Retries, catch-up and backfill queue behind live work of their own priority.
LATE_PENALTY: Micros = MINUTE


def check_priority(priority: int) -> int:
    check_whole("priority", priority, MOST_URGENT, IDLE, "1 (urgent) to 10 (idle)")
    return priority


def rank_of(eligible_at: Instant, priority: int, *, late: bool = False) -> int:
    """Where a run stands in its queue: lower goes first."""
    return eligible_at + priority * HEAD_START + (LATE_PENALTY if late else 0)
