"""Fires for several data centers: each tick runs once in every one of them."""

from collections.abc import Sequence

import msgspec

from mainspring.core.model.base.ids import JobId
from mainspring.core.model.schedules.job import OVERLAP, Fire, LedgerEntry, Tick, tick_run_id

#: The reason of a tick for all data centers that is skipped because none is known.
NOWHERE = "no data center is known"


#: The maximum number of ledger rows of one tick that paging assumes.
MOST_OF_A_TICK = 100


def whole_ticks(entries: Sequence[LedgerEntry], limit: int) -> int:
    """Return where to end a page of about ``limit`` rows without splitting the rows of a tick."""
    end = min(limit, len(entries))
    while 0 < end < len(entries) and entries[end].scheduled_at == entries[end - 1].scheduled_at:
        end += 1
    return end


def choose_entry(entries: Sequence[LedgerEntry], target: str | None) -> LedgerEntry | None:
    """Return the row of one tick for a data center; without one, a skipped row if there is any, else the first."""
    if target is not None:
        return next((entry for entry in entries if entry.target == target), None)
    return min(entries, key=lambda entry: entry.decision == "run", default=None)


def spread(fire: Fire, targets: tuple[str, ...]) -> Fire:
    """Return the fire with every tick once per target. Without targets, its ticks are skipped as ``NOWHERE``.

    That includes ticks skipped for overlap: they would overlap with a run of the same fire, which does not exist
    without targets.
    """
    if targets:
        ticks = tuple(for_target(fire.job.id, tick, target) for tick in fire.ticks for target in targets)
    else:
        ticks = tuple(
            _nowhere(tick) if tick.decision == "run" or tick.reason == OVERLAP else tick for tick in fire.ticks
        )
    return msgspec.structs.replace(fire, ticks=ticks)


def noted(fire: Fire, why: str) -> Fire:
    """Return the fire with ``why`` as the reason of its runs, which go to another data center than usual."""
    return msgspec.structs.replace(
        fire,
        ticks=tuple(
            msgspec.structs.replace(tick, reason=why) if tick.decision == "run" and not tick.reason else tick
            for tick in fire.ticks
        ),
    )


def for_target(job: JobId, tick: Tick, target: str) -> Tick:
    made = None if tick.run_id is None else tick_run_id(job, tick.scheduled_at, target)
    return msgspec.structs.replace(tick, target=target, run_id=made)


def _nowhere(tick: Tick) -> Tick:
    return msgspec.structs.replace(tick, decision="skipped", reason=NOWHERE, run_id=None)
