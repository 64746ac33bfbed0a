"""One fire for several data centres: each tick happens once in every one of them."""

from collections.abc import Sequence

import msgspec

from mainspring.core.model.base.ids import JobId
from mainspring.core.model.schedules.job import OVERLAP, Fire, LedgerEntry, Tick, tick_run_id

#: Why a tick for all data centres is skipped when there is none.
NOWHERE = "no data centre is known"


#: A tick has no more rows in the ledger than this, as far as pages of it care.
MOST_OF_A_TICK = 100


def whole_ticks(entries: Sequence[LedgerEntry], limit: int) -> int:
    """Where to end a page of about so many rows, so that no tick is torn apart."""
    end = min(limit, len(entries))
    while 0 < end < len(entries) and entries[end].scheduled_at == entries[end - 1].scheduled_at:
        end += 1
    return end


def telling(entries: Sequence[LedgerEntry], target: str | None) -> LedgerEntry | None:
    """Of the rows of one tick that of a data centre; without one, a row that was skipped, or else the first."""
    if target is not None:
        return next((entry for entry in entries if entry.target == target), None)
    return min(entries, key=lambda entry: entry.decision == "run", default=None)


def spread(fire: Fire, targets: tuple[str, ...]) -> Fire:
    """The same fire with every tick once for each target. Without any the ticks are skipped, and say so.

    A tick that the plan skips for overlap would overlap with a run of the same fire. Without a target there is none.
    """
    if targets:
        ticks = tuple(for_target(fire.job.id, tick, target) for tick in fire.ticks for target in targets)
    else:
        ticks = tuple(
            _nowhere(tick) if tick.decision == "run" or tick.reason == OVERLAP else tick for tick in fire.ticks
        )
    return msgspec.structs.replace(fire, ticks=ticks)


def noted(fire: Fire, why: str) -> Fire:
    """The same fire; the ticks that become runs say why they go elsewhere than usual."""
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
