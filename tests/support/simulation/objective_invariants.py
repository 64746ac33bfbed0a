"""Invariants of objectives: each miss is reported once, and only real misses are reported."""

from collections import defaultdict
from collections.abc import Iterator

from mainspring.core.model.base.ids import JobId
from mainspring.core.model.base.instant import SECOND, Instant
from mainspring.core.model.schedules.job import JobState
from mainspring.core.model.schedules.schedule import compute_due
from mainspring.core.model.schedules.slo import MISSED, RECOVERED
from mainspring.stores.memory.rows import JobRow
from tests.support.simulation import reference
from tests.support.simulation.evidence import Evidence, Q, R, S

_EXCUSES = ("paused", "schedule changed", "cancelled", "calendar: ")
_TOUCHED = (JobState.PAUSED, JobState.CANCELLED)


def a_miss_is_reported_once(evidence: Evidence) -> Iterator[str]:
    for job, reports in _find_reports(evidence).items():
        if job in _steady(evidence):
            for number, (at, event) in enumerate(reports):
                if event != (RECOVERED if number % 2 else MISSED):
                    kinds = [kind for _, kind in reports]
                    yield f"{job}: {event} was reported at {at} as number {number + 1} of {kinds}"


def every_reported_miss_happened(evidence: Evidence) -> Iterator[str]:
    """For jobs that were never paused or changed: reports match the ticks that started late and on time."""
    reports = _find_reports(evidence)
    for job, row in _steady(evidence).items():
        within = None if row.spec.slo is None else row.spec.slo.start_within
        # With several data centers, the first start of a tick is not known here.
        if within is None or row.spec.datacenters:
            continue
        turns = _turns(evidence, row, within)
        events = [event for _, event in reports.get(job, [])]
        # A miss that is open when the schedule ends is closed.
        if turns is not None and len(turns) % 2:
            turns.append((evidence.truth.jobs[job].updated_at, RECOVERED))
        if turns is not None and events != [event for _, event in turns][: len(events)]:
            yield f"{job}: reported {events}, and it was {turns}"
        calm = min((begins for begins, _ in evidence.truth.calm), default=0)
        over = evidence.truth.jobs[job].updated_at
        if turns is not None and over > calm + 4.5 * SECOND:
            due = [event for at, event in turns if at < calm]
            if len(events) < len(due):
                yield f"{job}: reported {events}, and long before its end it was {due}"


def _turns(evidence: Evidence, row: JobRow, within: int) -> list[tuple[Instant, str]] | None:
    """When ticks began to start late, and on time again; None: unknown."""
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
        excused = entry.reason.startswith(_EXCUSES)
        # Jitter and calendars delay the expected start. Catch-up delays only the run.
        due = compute_due(schedule, tick, row.id)
        moves = evidence.moves[entry.run_id] if entry.run_id is not None else []
        moved = bool(moves) and entry.reason.startswith("moved after")
        started = next((move.step.at for move in moves if move.starts), None)
        asked = any(move.after.cancel_at is not None for move in moves)
        released = any(move.from_state is R and move.after.state is Q for move in moves)
        # A retry overwrites when the first attempt was due. If a calendar had moved it, the keeper excuses the tick.
        forgotten = moved and any(move.from_state is R and move.after.state is S for move in moves)
        if asked or released or forgotten or (recorded[tick] > due + within and (excused or moved)):
            # Unknown: the keeper may have evaluated the tick before or after this start.
            return None
        if excused:
            continue
        if moved:
            due = max(tick, moves[0].after.due)
        in_time = started is not None and started <= due + within
        if in_time == bool(len(turns) % 2):
            turns.append((due + within, RECOVERED if in_time else MISSED))
    return turns


def _find_reports(evidence: Evidence) -> dict[JobId, list[tuple[Instant, str]]]:
    reports: dict[JobId, list[tuple[Instant, str]]] = defaultdict(list)
    for batch in evidence.truth.events:
        for run in batch.runs if batch.kind in (MISSED, RECOVERED) else ():
            reports[JobId(run)].append((batch.at, batch.kind))
    return reports


def _steady(evidence: Evidence) -> dict[JobId, JobRow]:
    """The jobs that were declared once, and never changed, paused or ended by a client."""
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


CHECKS = (a_miss_is_reported_once, every_reported_miss_happened)
