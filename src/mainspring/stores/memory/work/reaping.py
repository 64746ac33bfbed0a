"""Memory store: the reaper's work, and pruning."""

from collections.abc import Iterator
from itertools import chain, islice

from mainspring.core.model.base.fingerprint import compute_fingerprint
from mainspring.core.model.base.ids import RunId, SessionId
from mainspring.core.model.base.instant import DAY, MINUTE, Instant, Micros
from mainspring.core.model.runs.completion import WORKER_LEFT
from mainspring.core.model.runs.run import HeldRun, RunState
from mainspring.core.model.runs.usage import USAGE_KEPT
from mainspring.core.model.schedules.job import JobState
from mainspring.core.ports.storage.catalog import LOADS_KEPT, TIMINGS_KEPT, Load
from mainspring.core.ports.storage.upkeep import Retention, UnattemptedRuns
from mainspring.core.store import KEYS_KEPT
from mainspring.stores.memory.rows import RunRow
from mainspring.stores.memory.tables import Tables
from mainspring.stores.memory.transitions.runs import sort_blocked_first


class MemoryMaintenance:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def lost_runs(self, limit: int) -> list[HeldRun]:
        tables = self._tables
        with tables.transaction() as now:
            for session in tables.sessions.values():
                if session.live and session.expired(now):
                    session.live = False
                    tables.record_worker_event("worker.lost", session)
            dead = (
                tables.runs[run]
                for row in tables.sessions.values()
                if not row.live
                for run in tables.running_by_session[row.id]
            )
            return [run.held() for run in islice(dead, limit)]

    async def overdue_runs(self, grace: Micros, limit: int) -> list[HeldRun]:
        tables = self._tables
        with tables.transaction() as now:
            running = (
                tables.runs[run]
                for row in tables.sessions.values()
                if row.live
                for run in tables.running_by_session[row.id]
            )
            overdue = (run for run in running if run.attempt_until + grace < now)
            return [run.held() for run in islice(overdue, limit)]

    async def expire(self, limit: int) -> int:
        tables = self._tables
        with tables.transaction() as now:
            passed = chain(tables.start_bys.until(now), tables.deadlines.until(now))
            rows = (tables.runs[RunId(row)] for _, row in passed)
            late = (run for run in rows if run.state is not RunState.RUNNING)
            missed = (run for run in late if run.start_missed(now) or run.deadline_missed(now))
            # A run can have missed both, and its worker may have left as well.
            expired = {run.id: run for run in islice(chain(self._find_orphans(), missed), limit)}
            for run in sort_blocked_first(expired.values()):
                if run.target is not None and self._is_gone(run.target):
                    tables.end(run, RunState.SKIPPED, WORKER_LEFT)
                elif run.start_missed(now):
                    tables.end(run, RunState.SKIPPED, "expired")
                else:
                    tables.end(run, RunState.FAILED, "deadline", fingerprint=compute_fingerprint("deadline", ""))
            return len(expired)

    def _find_orphans(self) -> Iterator[RunRow]:
        """Yield the runs for one worker that has left. Runs that it was running must first be found lost."""
        tables = self._tables
        for target, runs in tables.by_target.items():
            if self._is_gone(target):
                yield from (row for run in runs if (row := tables.runs[run]).state is not RunState.RUNNING)

    def _is_gone(self, session: SessionId) -> bool:
        row = self._tables.sessions.get(session)
        return row is None or not row.live

    async def resolve(self, limit: int) -> int:
        with self._tables.transaction():
            tables = self._tables
            tables.admit_runs()
            recalled = tables.check_limiters(tables.limiters.find_recalling(), limit).recalled
            return recalled + tables.decide_children(limit)

    async def sweep(self, limit: int) -> int:
        tables = self._tables
        with tables.transaction() as now:
            undecided = tables.dependencies.find_undecided(tables.runs)
            for child in undecided:
                tables.decide_child(child)
            tables.admit_runs()
            found = len(undecided) + tables.repair_limiters()
            for key, lock in list(tables.key_locks.items()):
                if found >= limit:
                    return found
                if lock.holder is None or not _holds(tables.runs.get(lock.holder)):
                    lock.holder = None
                    found += tables.promote(key)
            for job in tables.jobs.values():
                if found >= limit:
                    return found
                delay = job.spec.fixed_delay
                is_waiting = delay is not None and job.ticking and job.next_fire is None
                if is_waiting and job.awaits not in tables.active_by_job[job.id]:
                    assert delay is not None
                    tables.move_schedule(job, now + delay)
                    found += 1
            return found

    async def tidy(self) -> list[UnattemptedRuns]:
        """Forget expired state, and end pauses of jobs. Metrics need no work here: they are counted at once."""
        tables = self._tables
        with tables.transaction() as now:
            for reader in [name for name, until in tables.readers_until.items() if until < now]:
                tables.remove_reader(reader)
            tables.drop_old_events()
            old = [key for key, used in tables.used_keys.items() if used.at + KEYS_KEPT <= now]
            for key in old:
                del tables.used_keys[key]
            over = [key for key, taken in tables.unique_keys.items() if taken.until is not None and taken.until <= now]
            for key in over:
                del tables.unique_keys[key]
            tables.limiters.forget_unused(now)
            for day in [key for key in tables.log_days if key[1] < now // DAY]:
                del tables.log_days[day]
            for job in tables.jobs.values():
                if job.state is JobState.PAUSED and job.resume_at is not None and job.resume_at <= now:
                    job.end_pause(now)
                    job.state, job.resume_at = JobState.SCHEDULED, None
                    job.updated_at = now
                    job.rev += 1
            # A day after its end a pause no longer matters: a run that still waits then is late by any count.
            for scope in [scope for scope, pause in tables.pauses.items() if pause.is_over(now - DAY)]:
                del tables.pauses[scope]
            ended = [
                UnattemptedRuns(task=task, state=state, runs=runs) for (task, state), runs in tables.unattempted.items()
            ]
            tables.unattempted.clear()
            return ended

    async def queue_fronts(self, limit: int) -> list[RunId]:
        groups = (index for label_sets in self._tables.ready.values() for index in label_sets.values() if index)
        fronts = (RunId(index.entries[0][1]) for index in groups)
        return [run for run in fronts if self._tables.runs[run].target is None][:limit]

    async def sample_load(self) -> Instant:
        tables = self._tables
        with tables.transaction() as now:
            at = now // MINUTE * MINUTE
            for old in [minute for minute in tables.loads if minute < now - LOADS_KEPT]:
                del tables.loads[old]
            if at in tables.loads:
                return now
            found = tables.loads[at] = {}
            ready = (
                entry
                for label_sets in tables.ready.values()
                for index in label_sets.values()
                for entry in index.entries
            )
            live = chain((run for _, run in ready), *tables.running_by_session.values())
            for run in (tables.runs[RunId(one)] for one in live):
                is_queued = run.state is RunState.QUEUED
                before = found.get((run.tenant, run.queue), Load(at=at, queued=0, running=0, lag=0))
                found[run.tenant, run.queue] = Load(
                    at=at,
                    queued=before.queued + is_queued,
                    running=before.running + (not is_queued),
                    lag=max(before.lag, now - run.due) if is_queued else before.lag,
                )
            return now

    async def prune(self, retention: Retention, limit: int) -> int:
        tables = self._tables
        with tables.transaction() as now:
            deleted = 0
            for ended, cut in (
                (tables.succeeded, retention.cut("succeeded", now)),
                (tables.unsuccessful, retention.cut("unsuccessful", now)),
                *((runs, retention.cut(name, now)) for name, runs in tables.ended_by_class.items()),
            ):
                while ended and deleted < limit:
                    finished_at = tables.runs[ended[0]].finished_at
                    assert finished_at is not None
                    if finished_at >= cut:
                        break
                    tables.delete_run(ended.popleft())
                    deleted += 1
            for at, queue, tenant in [key for key in tables.minute_counts if key[0] < now - retention.unsuccessful]:
                del tables.minute_counts[at, queue, tenant]
            for counted in [key for key in tables.timings if key[0] < now - TIMINGS_KEPT]:
                del tables.timings[counted]
            for sums in [key for key in tables.usage if key[0] < now - USAGE_KEPT]:
                del tables.usage[sums]
            ticks = min(retention.cut("ledger", now), retention.cut("short", now))
            for ledger in tables.ledgers.values():
                deleted += ledger.forget(ticks - 1, limit - deleted, tables.outlives_tick)
            return deleted


def _holds(run: RunRow | None) -> bool:
    """Report whether a run holds its key lock: from when it reaches its limits, or is queued, until it has ended."""
    return run is not None and not run.state.ended and not run.in_line and not run.waits_for_parents
