"""Invariants of the ledger: every tick is there once, with the decision that the rules of its job require."""

from collections import defaultdict
from collections.abc import Iterator

import msgspec

from mainspring.core.model.base.ids import JobId, RunId
from mainspring.core.model.base.instant import SECOND, Instant, Micros
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.schedules.calendar import Calendar
from mainspring.core.model.schedules.job import JobState, LedgerEntry, Overlap
from mainspring.core.model.schedules.spread import NOWHERE
from mainspring.stores.key_locks import compute_tick_key_lock
from mainspring.stores.memory.rows import JobRow, RunRow
from tests.support.simulation import reference
from tests.support.simulation.history import History, JobChange, Step
from tests.support.simulation.pauses import Pauses

OVER = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED, RunState.SKIPPED})
TICKING = (JobState.SCHEDULED, JobState.PAUSED)
#: A scheduler decides by an estimate of the store's time, which may be this far behind when its request is sent.
ESTIMATE: Micros = 3 * SECOND


class Stretch(msgspec.Struct):
    """A period in which a job had one schedule, and its recorded ticks."""

    opened: Instant
    row: JobRow
    entries: list[tuple[Step, LedgerEntry]] = []
    #: When it was changed or cancelled, if ever. Ticks up to then must be recorded.
    closed: Instant | None = None

    @property
    def until(self) -> Instant:
        """The last moment whose tick must be recorded."""
        end = self.row.spec.schedule.end
        assert end is not None
        return end if self.closed is None else min(end, self.closed)


def violations(history: History) -> Iterator[str]:
    stretches = _stretches(history)
    finished_at = {
        change.after.id: change.after.finished_at
        for step in history.steps
        for change in step.runs
        if change.after.finished_at is not None
    }
    for job, parts in stretches.items():
        yield from _each_once(history, job)
        known: set[Instant] = set()
        for stretch in parts:
            if stretch.row.spec.fixed_delay is None:
                yield from _all_ticks(job, stretch, known)
            else:
                yield from _a_chain(job, stretch, finished_at, history.truth.clock_steps)
            known.update(entry.scheduled_at for _, entry in stretch.entries)
    for job in history.truth.declared:
        if job not in stretches:
            yield f"{job} was accepted and is not there"
    for job, row in history.truth.jobs.items():
        if row.state in TICKING:
            yield f"{job} is stuck: {row.state}, next {row.next_fire}, waits for {row.awaits}"
    yield from _decisions(history)


def _stretches(history: History) -> dict[JobId, list[Stretch]]:
    stretches: dict[JobId, list[Stretch]] = defaultdict(list)
    for step in history.steps:
        for tick in step.ticks:
            stretches[tick.job_id][-1].entries.append((step, tick))
        for change in step.jobs:
            parts, before, after = stretches[change.after.id], change.before, change.after
            if before is not None and before.state in TICKING and _ends(step, before, after):
                parts[-1].closed = step.at
            if after.state in TICKING and (before is None or before.state not in TICKING or _ends(step, before, after)):
                parts.append(Stretch(step.at, after))
    return stretches


def _ends(step: Step, before: JobRow, after: JobRow) -> bool:
    """Whether a schedule ended before its last tick. One that finishes by itself must record all ticks."""
    return after.state is JobState.CANCELLED or before.spec.timing != after.spec.timing


def _each_once(history: History, job: JobId) -> Iterator[str]:
    recorded = [(tick.scheduled_at, tick.target) for step in history.steps for tick in step.ticks if tick.job_id == job]
    if len(set(recorded)) < len(recorded):
        twice = sorted({at for at in recorded if recorded.count(at) > 1})
        yield f"{job}: recorded twice: {twice}"
    stored = [(entry.scheduled_at, entry.target) for entry in history.truth.ledgers.get(job, [])]
    if stored != sorted(set(recorded)):
        yield f"{job}: the ledger holds {len(stored)} ticks, and {len(recorded)} were recorded"


def _all_ticks(job: JobId, stretch: Stretch, known: set[Instant]) -> Iterator[str]:
    """``known``: ticks of an earlier schedule that were recorded before their time."""
    schedule = stretch.row.spec.schedule
    assert schedule.end is not None
    expected = reference.ticks(schedule, stretch.opened, stretch.until)
    recorded = sorted(entry.scheduled_at for _, entry in stretch.entries)
    missing = sorted(set(expected) - set(recorded) - known)
    if stretch.row.spec.looks_ahead:
        expected = reference.ticks(schedule, stretch.opened, schedule.end)
    surplus = sorted(set(recorded) - set(expected))
    if missing:
        yield f"{job}: {len(missing)} ticks are missing, the first at {missing[0]}"
    if surplus:
        yield f"{job}: {len(surplus)} ticks are none of its schedule's, the first at {surplus[0]}"


def _a_chain(job: JobId, stretch: Stretch, finished_at: dict[RunId, Instant], clock_steps: Micros) -> Iterator[str]:
    """Each tick of a fixed delay follows from the end of the run before it, or from the tick if that had no run."""
    schedule, every = stretch.row.spec.schedule, stretch.row.spec.fixed_delay
    assert every is not None
    assert schedule.end is not None
    earliest = latest = stretch.opened + every
    if schedule.start is not None and stretch.opened < schedule.start:
        earliest = latest = schedule.start
    over = False
    for step, entry in stretch.entries:
        tick = entry.scheduled_at
        if over:
            yield f"{job}: a tick at {tick}, though the run before it has not ended"
        if not earliest <= tick <= latest:
            yield f"{job}: a tick at {tick}, expected from {earliest} to {latest}"
        if tick > schedule.end:
            yield f"{job}: a tick at {tick}, after its end at {schedule.end}"
        if entry.run_id is None:
            # Counted by the scheduler's estimate of the store's time.
            earliest, latest = tick + every, step.at + every + clock_steps
        else:
            end = finished_at.get(entry.run_id)
            over = end is None
            earliest = latest = (end or 0) + every
    if not over and latest <= stretch.until:
        yield f"{job}: no tick between {earliest} and {latest}"


def _decisions(history: History) -> Iterator[str]:
    """Decisions follow the rules of the job and its active runs at that moment."""
    active: dict[JobId, dict[RunId, RunRow]] = defaultdict(dict)
    calendars: dict[str, Calendar] = {}
    pauses: dict[JobId, Pauses] = defaultdict(Pauses)
    #: The data center that the tick made a run for.
    targets: dict[RunId, str] = {}
    recorded: dict[tuple[JobId, str], set[Instant]] = defaultdict(set)
    for step in history.steps:
        if step.calendar is not None:
            calendars[step.calendar.name] = step.calendar
        fired = {change.after.id: change for change in step.jobs}
        by_job: dict[JobId, list[LedgerEntry]] = defaultdict(list)
        for tick in step.ticks:
            by_job[tick.job_id].append(tick)
            if tick.run_id is not None:
                targets[tick.run_id] = tick.target
        fired_before: set[JobId] = set()
        for job, entries in by_job.items():
            promoted = _find_promoted(step, fired_before)
            fired_before.add(job)
            change = fired.get(job)
            if change is None or change.before is None:
                yield f"{job}: ticks at {step.at} without its schedule moving on"
                continue
            closed = reference.Closed(change.before.spec, list(calendars.values()))
            yield from pauses[job].complaints(step, entries)
            for target, there in _by_target(entries).items():
                beside = {
                    run: promoted.get(run, row)
                    for run, row in active[job].items()
                    if _counts(targets.get(run, ""), target)
                }
                again = _find_planned_again(change, recorded[job, target])
                yield from _decision(step, change, there, beside, history.truth.clock_steps, closed, again)
        for moved in step.runs:
            if moved.after.job_id is not None:
                if moved.after.state in OVER:
                    active[moved.after.job_id].pop(moved.after.id, None)
                else:
                    active[moved.after.job_id][moved.after.id] = moved.after
        for moved_job in step.jobs:
            pauses[moved_job.after.id].observe(step, moved_job)
        for job, entries in by_job.items():
            if job not in fired:
                continue
            for target, there in _by_target(entries).items():
                beside = {run: row for run, row in active[job].items() if _counts(targets.get(run, ""), target)}
                again = _find_planned_again(fired[job], recorded[job, target])
                yield from _overlaps(step, fired[job], there, beside, again)
        for tick in step.ticks:
            recorded[tick.job_id, tick.target].add(tick.scheduled_at)


def _find_promoted(step: Step, fired_before: set[JobId]) -> dict[RunId, RunRow]:
    """The runs that got their ordering key from a run that an earlier fire of the same batch has cancelled.

    The fires of a batch apply one after the other, so such a run no longer waits when the next job fires.
    """
    freed = {
        change.after.key_lock
        for change in step.runs
        if change.after.job_id in fired_before and change.after.state is RunState.CANCELLED
    }
    return {
        change.after.id: change.after
        for change in step.runs
        if change.before is not None
        and change.before.state is RunState.BLOCKED
        and change.after.state is RunState.QUEUED
        and change.after.key_lock in freed
    }


def _find_planned_again(change: JobChange, recorded: set[Instant]) -> list[Instant]:
    """The ticks of a fire that are recorded already: a calendar moved them before a change of the schedule."""
    before = change.before
    if before is None or before.next_tick is None or not recorded:
        return []
    until = max(recorded) if change.after.next_tick is None else change.after.next_tick - 1
    return [tick for tick in reference.ticks(before.spec.schedule, before.next_tick - 1, until) if tick in recorded]


def _counts(of_run: str, target: str) -> bool:
    """The active runs that count for a tick: those of its data center, or all if it has none."""
    return not target or of_run in ("", target)


def _by_target(entries: list[LedgerEntry]) -> dict[str, list[LedgerEntry]]:
    """Check each data center separately."""
    found: dict[str, list[LedgerEntry]] = defaultdict(list)
    for entry in entries:
        found[entry.target].append(entry)
    return found


def _decision(
    step: Step,
    change: JobChange,
    entries: list[LedgerEntry],
    active: dict[RunId, RunRow],
    clock_steps: Micros,
    closed: reference.Closed,
    again: list[Instant],
) -> Iterator[str]:
    row = change.before
    assert row is not None
    where = f"{row.id} at {step.at}"
    if any(entry.job_version != row.version for entry in entries):
        yield f"{where}: recorded for another version than {row.version}"
    early = [
        tick for tick in (entry.scheduled_at for entry in entries) if min(tick, closed.place(tick) or tick) > step.at
    ]
    if early:
        yield f"{where}: recorded before their time: {early}"
    if step.operation != "fire":
        # The schedule ends: due ticks are skipped with the reason.
        why = "cancelled" if change.after.state is JobState.CANCELLED else "schedule changed"
        if any((entry.decision, entry.reason) != ("skipped", why) for entry in entries):
            yield f"{where}: {why}, but decided {[(entry.decision, entry.reason) for entry in entries]}"
        return
    entries = [entry for entry in entries if not entry.reason.startswith("paused")]
    places = [closed.place(entry.scheduled_at) for entry in entries]
    for entry, place in zip(entries, places, strict=True):
        if (place is None) != entry.reason.startswith("calendar: "):
            yield f"{where}: by its calendars {entry.scheduled_at} goes to {place}, but it is {entry.reason!r}"
    decided = [
        (place, entry.decision == "run" or entry.reason in ("overlap", NOWHERE), entry)
        for entry, place in zip(entries, places, strict=True)
        if place is not None
    ]
    made = {new.after.id: new.after.due for new in step.runs if new.before is None}
    for place, _, entry in decided:
        due_at = made.get(entry.run_id, place) if entry.run_id is not None else place
        if due_at < place or (closed.at(due_at) and not row.spec.schedule.jitter):
            yield f"{where}: the run of {entry.scheduled_at} is due at {due_at}, and may at {place}"
    known = {tick: place for tick in again if (place := closed.place(tick)) is not None}
    due = [*known.values(), *(at for at, _, _ in decided)]
    if not any(_same(row, decided, known, now) for now in _possible_nows(row, due, step, clock_steps)):
        yield f"{where}: sent at {step.sent}, decided {[(e.scheduled_at, e.decision, e.reason) for e in entries]}"
    overlapping = [entry for entry in entries if entry.reason == "overlap"]
    running = [entry for entry in entries if entry.decision == "run"]
    blocked = any(run.state is RunState.BLOCKED for run in active.values())
    key_lock = compute_tick_key_lock(row.id, row.tenant, row.spec, entries[0].target if entries else "")
    # Runs of a version with another overlap rule or ordering key cannot be waited for.
    elsewhere = [run for run in active.values() if run.key_lock != key_lock]
    match row.spec.overlap:
        case Overlap.ALLOW:
            if overlapping:
                yield f"{where}: skipped for overlap, which is allowed"
        case Overlap.SKIP:
            if running and (active or len(running) > 1):
                yield f"{where}: started beside {list(active)}"
            if overlapping and not active and not running:
                yield f"{where}: skipped, and nothing was on its way"
        case Overlap.QUEUE:
            if running and (blocked or len(active) + len(running) > 2):
                yield f"{where}: a third one beside {list(active)}"
            # The first of several can wait for its ordering key.
            waits = blocked or any(
                new.after.job_id == row.id and new.after.state is RunState.BLOCKED for new in step.runs
            )
            if overlapping and not waits and not elsewhere and len(active) + len(running) < 2:
                yield f"{where}: skipped, and nobody was waiting"
        case Overlap.CANCEL:
            newest = max(entry.scheduled_at for entry in [*running, *overlapping]) if running or overlapping else 0
            stays = any(run.state is RunState.RUNNING for run in elsewhere)
            is_newest = not again or again[-1] < newest
            if overlapping and is_newest and not stays and (len(running) != 1 or running[0].scheduled_at != newest):
                yield f"{where}: the newest is to run, but {running} did"


def _possible_nows(row: JobRow, due: list[Instant], step: Step, clock_steps: Micros) -> list[Instant]:
    """All moments at which the decision may have been made, as far as they differ in the result.

    A scheduler that has not noticed a jump of the store's clock may be ahead of it, and treat a tick as late that is
    not. It records none early, because the store checks its own clock again.
    """
    policy, first, last = row.spec.catch_up, step.sent - ESTIMATE - clock_steps, step.sent + clock_steps
    turns = [tick + limit + extra for tick in due for limit in (policy.grace, policy.max_age) for extra in (0, 1)]
    return [last, first, *(turn for turn in turns if first < turn < last)]


def _same(
    row: JobRow, decided: list[tuple[Instant, bool, LedgerEntry]], known: dict[Instant, Instant], now: Instant
) -> bool:
    """``known``: the other ticks of the fire, which are recorded already, with their times."""
    if any(min(at, entry.scheduled_at) > now for at, _, entry in decided):
        return False
    places = {**known, **{entry.scheduled_at: at for at, _, entry in decided}}
    ticks = sorted(places)
    expected = dict(zip(ticks, reference.fates(row.spec.catch_up, [places[tick] for tick in ticks], now), strict=True))
    for _, runs, entry in decided:
        _, wanted, reason = expected[entry.scheduled_at]
        if runs != wanted or not (runs or entry.reason == reason):
            return False
    return True


def _overlaps(
    step: Step, change: JobChange, decided: list[LedgerEntry], active: dict[RunId, RunRow], again: list[Instant]
) -> Iterator[str]:
    """Check after the ticks that the active runs conform to the overlap rule.

    With ``cancel``, the run of a later tick that is recorded already continues.
    """
    if change.before is None:
        return
    new = [moved.after for moved in step.runs if moved.before is None and moved.after.id in active]
    where, overlap = f"{change.after.id} at {step.at}", change.before.spec.overlap
    if overlap is Overlap.CANCEL and any(tick.decision == "run" or tick.reason == "overlap" for tick in decided):
        going_on = [run.id for run in active.values() if run.cancel_at is None and run not in new]
        is_newest = not again or again[-1] < decided[-1].scheduled_at
        if (going_on and is_newest) or len(new) > 1:
            yield f"{where}: {going_on} go on beside {[run.id for run in new]}"
    if overlap in (Overlap.QUEUE, Overlap.CANCEL):
        for run in new:
            # Paced or jittered runs wait for no key before they are due. No run may wait for another key.
            others = [
                other.id
                for other in active.values()
                if other not in new
                and (
                    other.key_lock != run.key_lock
                    or (run.state is RunState.QUEUED and (other.state is not RunState.SCHEDULED or other.fence))
                )
            ]
            if others:
                yield f"{where}: {run.id} does not wait for {others}"
