"""What must hold of what schedules owe: each miss is told once, and none that was not."""

from collections import defaultdict
from collections.abc import Iterator

from mainspring.adapters.store.memory.rows import JobRow
from mainspring.domain.ids import JobId
from mainspring.domain.instant import SECOND, Instant
from mainspring.domain.job import JobState
from mainspring.domain.slo import MISSED, RECOVERED
from tests.support.simulation import reference
from tests.support.simulation.evidence import Evidence, Q, R

_EXCUSES = ("paused", "schedule changed", "cancelled", "calendar: ")
_TOUCHED = (JobState.PAUSED, JobState.CANCELLED)


def a_miss_is_told_once(evidence: Evidence) -> Iterator[str]:
    for job, told in _told(evidence).items():
        if job in _steady(evidence):
            for number, (at, event) in enumerate(told):
                if event != (RECOVERED if number % 2 else MISSED):
                    yield f"{job}: {event} was told at {at} as number {number + 1} of {[kind for _, kind in told]}"


def what_is_told_was_missed(evidence: Evidence) -> Iterator[str]:
    """Of jobs that nobody paused or changed: what is told are the turns in whether their ticks started in time."""
    told = _told(evidence)
    for job, row in _steady(evidence).items():
        within = None if row.spec.slo is None else row.spec.slo.start_within
        # Of several data centres the first that starts a tick is not known here.
        if within is None or row.spec.datacenters:
            continue
        turns = _turns(evidence, row, within)
        events = [event for _, event in told.get(job, [])]
        if turns is not None and events != [event for _, event in turns][: len(events)]:
            yield f"{job}: told {events}, and it was {turns}"
        calm = min((begins for begins, _ in evidence.truth.calm), default=0)
        over = evidence.truth.jobs[job].updated_at
        if turns is not None and over > calm + 4.5 * SECOND:
            due = [event for at, event in turns if at < calm]
            if len(events) < len(due):
                yield f"{job}: told {events}, and long before its end it was {due}"


def _turns(evidence: Evidence, row: JobRow, within: int) -> list[tuple[Instant, str]] | None:
    """When it was known that ticks start too late, and in time again; none: it cannot be said."""
    schedule = row.spec.schedule
    assert schedule.end is not None
    entries = {entry.scheduled_at: entry for entry in evidence.truth.ledgers.get(row.id, [])}
    turns: list[tuple[Instant, str]] = []
    recorded = {
        tick.scheduled_at: step.at for step in evidence.history.steps for tick in step.ticks if tick.job_id == row.id
    }
    for tick in reference.ticks(schedule, row.created_at, schedule.end):
        entry = entries.get(tick)
        if entry is None:
            continue
        excused, started, due = entry.reason.startswith(_EXCUSES), None, tick
        moves = evidence.moves[entry.run_id] if entry.run_id is not None else []
        if moves:
            due = max(tick, moves[0].after.due)
            started = next((move.step.at for move in moves if move.starts), None)
        asked = any(move.after.cancel_at is not None for move in moves)
        given_back = any(move.from_state is R and move.after.state is Q for move in moves)
        if asked or given_back or (recorded[tick] > tick + within and (excused or due > tick)):
            # Whether that was so already when it was judged is not known, nor which start counts.
            return None
        if excused:
            continue
        in_time = started is not None and started <= due + within
        if in_time == bool(len(turns) % 2):
            turns.append((due + within, RECOVERED if in_time else MISSED))
    return turns


def _told(evidence: Evidence) -> dict[JobId, list[tuple[Instant, str]]]:
    told: dict[JobId, list[tuple[Instant, str]]] = defaultdict(list)
    for batch in evidence.truth.events:
        for run in batch.runs if batch.kind in (MISSED, RECOVERED) else ():
            told[JobId(run)].append((batch.at, batch.kind))
    return told


def _steady(evidence: Evidence) -> dict[JobId, JobRow]:
    """The jobs that were declared once, and neither changed, paused nor ended by anybody."""
    steady: dict[JobId, JobRow] = {}
    unsteady: set[JobId] = set()
    for step in evidence.history.steps:
        for change in step.jobs:
            row, before = change.after, change.before
            if before is None:
                steady[row.id] = row
            elif before.spec != row.spec or row.state in _TOUCHED or before.state is not JobState.SCHEDULED:
                unsteady.add(row.id)
    return {job: row for job, row in steady.items() if job not in unsteady}


CHECKS = (a_miss_is_told_once, what_is_told_was_missed)
