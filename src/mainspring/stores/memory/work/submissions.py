"""Memory store: submits runs, declares jobs, and cancels both."""

from collections.abc import Collection, Container, Sequence

import msgspec

from mainspring.core.model.base.errors import Invalid, NotFound
from mainspring.core.model.base.ids import JobId, RunId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.runs.completion import REPLACED
from mainspring.core.model.runs.new_run import Idempotency, NewRun
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.schedules.job import JobState, NewJob
from mainspring.core.model.schedules.schedule import next_after
from mainspring.core.model.workflows.dependencies import DependencyRule, check_no_circle
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.answers import PutOutcome, PutResult, SubmitResult, build_conflict, refuse_put
from mainspring.stores.changes import Change, job_moved, what_differs, words_of_job
from mainspring.stores.key_locks import compute_run_key_lock
from mainspring.stores.memory.records.calendars import check_calendars_exist
from mainspring.stores.memory.records.slos import watch_objectives
from mainspring.stores.memory.rows import JobRow, RunRow, UsedKey
from mainspring.stores.memory.tables import Tables

_ACTIONS = {JobState.PAUSED: "jobs.pause", JobState.SCHEDULED: "jobs.resume", JobState.CANCELLED: "jobs.cancel"}


class MemorySubmissions:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def submit(self, runs: Sequence[NewRun]) -> list[SubmitResult]:
        tables = self._tables
        for run in runs:
            tables.check_shard(run.id)
        check_no_circle({run.id: run.after.parents for run in runs if run.after is not None})
        with tables.transaction() as now:
            self._check_parents(runs)
            fresh: dict[RunId, RunRow] = {}
            #: New runs that another run of the batch replaces.
            replaced: list[RunRow] = []
            made: dict[str, list[Change]] = {}
            answers: list[tuple[RunId, bool, bool]] = []
            for run in runs:
                if run.id in tables.runs or run.id in fresh:
                    answers.append((run.id, False, False))
                    continue
                used = self._find_used_key(run.tenant, run.idempotency, fresh)
                if used is not None:
                    assert run.idempotency is not None
                    other = used.made in tables.jobs or used.fingerprint != run.idempotency.fingerprint
                    answers.append((RunId(used.made), False, other))
                    continue
                taken = self._resolve_unique_key(run, fresh, replaced)
                if taken is not None:
                    assert run.unique is not None
                    answers.append((taken.id, False, run.unique.otherwise == "reject"))
                    continue
                self._use_key(run.tenant, run.idempotency, run.id)
                if run.unique is not None:
                    tables.take_unique_key(run.tenant, run.unique, run.id)
                fresh[run.id] = _build_row(run, now, None if run.after is None else run.after.rule)
                answers.append((run.id, True, False))
                if run.author:
                    made.setdefault(run.author, []).append(Change(run.tenant, run.id))
            self._add_dependencies(runs, answers, fresh)
            for row in replaced:
                tables.insert_run(row)
                if not row.state.ended:
                    tables.end(row, RunState.SKIPPED, REPLACED)
            # Within a batch, too, runs of one ordering key are ordered by (due, id).
            for row in sorted(fresh.values(), key=lambda row: (row.due, row.id)):
                if not row.state.ended:
                    tables.insert_run(row)
                self._mark_replayed(row)
            tables.admit_runs()
            for author, changes in made.items():
                tables.audit("jobs.submit", Author(author), changes)
            return [SubmitResult(made, self._get_state(made), new, conflict) for made, new, conflict in answers]

    def _check_parents(self, runs: Sequence[NewRun]) -> None:
        """Check before any change that every parent exists or is part of this batch."""
        mine = {(run.tenant, run.id) for run in runs}
        for run in runs:
            for parent in () if run.after is None else run.after.parents:
                row = self._tables.runs.get(parent)
                if (run.tenant, parent) not in mine and (row is None or row.tenant != run.tenant):
                    raise NotFound(f"there is no run {parent}, which {run.id} depends on")

    def _resolve_unique_key(self, run: NewRun, fresh: dict[RunId, RunRow], replaced: list[RunRow]) -> RunRow | None:
        """Resolve a conflict over a unique key.

        Return the run that keeps the key; None if the new run is to be created.
        """
        tables = self._tables
        first = None if run.unique is None else tables.find_unique_holder(run.tenant, run.unique.key, fresh)
        if run.unique is None or first is None:
            return None
        untouched = not first.fence and not first.state.ended and first.job_id is None
        match run.unique.otherwise:
            case "debounce" if untouched and first.id in fresh:
                # Keep the fields that ``edit`` keeps.
                kept = {"id": first.id, "unique": first.unique, "replay_of": first.replay_of, "target": first.target}
                fresh[first.id] = _build_row(msgspec.structs.replace(run, **kept), tables.now, first.rule)
            case "debounce" if untouched:
                tables.edit(first, run)
            case "replace" if untouched and first.id in fresh:
                replaced.append(first)
                return None
            case "replace" if untouched:
                tables.end(first, RunState.SKIPPED, REPLACED)
                return None
            case _:
                pass
        return first

    def _add_dependencies(
        self, runs: Sequence[NewRun], answers: Sequence[tuple[RunId, bool, bool]], fresh: dict[RunId, RunRow]
    ) -> None:
        """Add the dependencies. A parent named in the same batch may already exist under another id."""
        tables = self._tables
        named = {run.id: made for run, (made, _, _) in zip(runs, answers, strict=True)}
        for run, (made, new, _) in zip(runs, answers, strict=True):
            if new and run.after is not None:
                parents = dict.fromkeys(named.get(parent, parent) for parent in run.after.parents)
                tables.dependencies.add(made, [fresh.get(parent) or tables.runs[parent] for parent in parents])
                fresh[made].parents = len(parents)

    def _get_state(self, made: RunId) -> RunState:
        row = self._tables.runs.get(made)
        # The key was used for a recurring job.
        return RunState.SCHEDULED if row is None else row.shown_state()

    def _find_used_key(self, tenant: str, asked: Idempotency | None, fresh: Container[str] = ()) -> UsedKey | None:
        """Return what the key was used for, if that exists or is being created."""
        tables = self._tables
        used = None if asked is None else tables.find_used_key(tenant, asked.key)
        if used is None or not (used.made in fresh or used.made in tables.runs or used.made in tables.jobs):
            return None
        return used

    async def used_keys(self, tenant: str, keys: Collection[str]) -> set[str]:
        with self._tables.transaction():
            return {key for key in keys if self._find_used_key(tenant, Idempotency(key, b"")) is not None}

    def _use_key(self, tenant: str, asked: Idempotency | None, made: RunId | JobId) -> None:
        if asked is not None:
            self._tables.used_keys[tenant, asked.key] = UsedKey(made, asked.fingerprint, self._tables.now)

    def _mark_replayed(self, replay: RunRow) -> None:
        replayed = None if replay.replay_of is None else self._tables.runs.get(replay.replay_of)
        if replayed is not None and replayed.state is RunState.FAILED and replayed.tenant == replay.tenant:
            replayed.dealt_with, replayed.discarded = True, False

    async def put_jobs(self, jobs: Sequence[NewJob]) -> list[PutResult]:
        tables = self._tables
        for job in jobs:
            tables.check_shard(job.id)
        with tables.transaction() as now:
            for job in jobs:
                check_calendars_exist(tables, job)
                if job.expected_version is not None and (job.tenant, job.spec.name) not in tables.job_names:
                    raise NotFound(f"there is no job {job.spec.name!r}")
            made: dict[str, list[Change]] = {}
            whys: dict[str, str] = {}
            put = []
            for job in jobs:
                used = self._find_used_key(job.tenant, job.idempotency)
                if used is not None:
                    put.append(self._answer_repeated_put(job, used))
                    continue
                known = tables.job_names.get((job.tenant, job.spec.name))
                before = {} if known is None else words_of_job(tables.jobs[known].job(with_payload=False))
                live = known is not None and tables.jobs[known].ticking
                spec = tables.jobs[known].spec if known is not None and live else None
                row, outcome = self._put_job(job, now)
                if outcome in (PutOutcome.CREATED, PutOutcome.CHANGED):
                    watch_objectives(tables, row, spec)
                if outcome not in (PutOutcome.EXISTS, PutOutcome.STALE):
                    self._use_key(job.tenant, job.idempotency, row.id)
                put.append(PutResult(row.job(with_payload=True), outcome))
                if job.author and outcome in (PutOutcome.CREATED, PutOutcome.CHANGED):
                    differs = what_differs(before, words_of_job(row.job(with_payload=False))) if before else None
                    made.setdefault(job.author, []).append(Change(row.tenant, row.id, *(differs or ())))
                    whys.setdefault(job.author, job.why)
            for author, changes in made.items():
                tables.audit("jobs.put", Author(author, why=whys[author]), changes)
            return put

    def _answer_repeated_put(self, new: NewJob, used: UsedKey) -> PutResult:
        """Answer a put whose idempotency key was used, for the same job or for something else."""
        row = self._tables.jobs.get(JobId(used.made))
        if row is not None:
            same = new.idempotency is not None and new.idempotency.fingerprint == used.fingerprint
            return PutResult(row.job(with_payload=True), PutOutcome.UNCHANGED if same else PutOutcome.CONFLICT)
        return build_conflict(new, used.made)

    def _put_job(self, new: NewJob, now: Instant) -> tuple[JobRow, PutOutcome]:
        tables = self._tables
        known = tables.job_names.get((new.tenant, new.spec.name))
        if known is None:
            row = JobRow(
                id=new.id,
                tenant=new.tenant,
                spec=new.spec,
                payload=new.payload,
                state=JobState.SCHEDULED,
                created_at=now,
                updated_at=now,
            )
            tables.jobs[row.id] = row
            tables.job_names[new.tenant, new.spec.name] = row.id
            tables.add_version(row, new.author, new.why)
            self._start_schedule(row, now)
            return row, PutOutcome.CREATED
        row = tables.jobs[known]
        same = row.spec == new.spec and row.payload == new.payload
        refused = refuse_put(new, row.id, row.version, row.state, same)
        if refused is not None:
            return row, refused
        if same and row.ticking:
            return row, PutOutcome.UNCHANGED
        rescheduled = row.ticking and row.spec.timing != new.spec.timing
        if rescheduled:
            tables.drop_ticks(row, "schedule changed")
        row.updated_at = now
        if not same:
            row.spec = new.spec
            row.payload = new.payload
            tables.add_version(row, new.author, new.why)
        if not row.ticking:
            row.state = JobState.SCHEDULED
            row.resume_at = row.paused_until = None
            self._start_schedule(row, now)
        elif rescheduled:
            self._start_schedule(row, now)
        return row, PutOutcome.CHANGED

    def _start_schedule(self, row: JobRow, now: Instant) -> None:
        first = next_after(row.spec.schedule, now, row.id)
        if first is None:
            row.state = JobState.FINISHED
        row.calendar_rev = self._tables.compute_calendar_rev(row.tenant)
        ahead = first is not None and row.spec.looks_ahead
        self._tables.move_schedule(row, now if ahead else first, first if ahead else None)

    async def set_jobs_state(
        self,
        jobs: Collection[JobId],
        state: JobState,
        author: Author | None = None,
        resume_at: Instant | None = None,
    ) -> dict[JobId, JobState]:
        if state is JobState.FINISHED:
            raise Invalid("state", "a job finishes by itself", "scheduled, paused or cancelled")
        tables = self._tables
        with tables.transaction() as now:
            rows = [tables.jobs[job] for job in dict.fromkeys(jobs) if job in tables.jobs]
            changes = []
            for row in rows:
                same = row.state is state and (state is not JobState.PAUSED or row.resume_at == resume_at)
                if not row.ticking or same:
                    continue
                until = resume_at if state is JobState.PAUSED else None
                changes.append(Change(row.tenant, row.id, *(job_moved(row.state, state, row.resume_at, until) or ())))
                if row.state is JobState.PAUSED:
                    row.end_pause(now)
                if state is JobState.PAUSED:
                    row.pause_why = "" if author is None else author.why
                row.state = state
                row.resume_at = until
                row.updated_at = now
                if state is JobState.CANCELLED:
                    tables.drop_ticks(row, "cancelled")
                    # The schedule is closed first, so no run can be created after the cancellation.
                    tables.move_schedule(row, None)
                    tables.request_cancel(tables.list_active_runs(row.id))
                else:
                    row.rev += 1
            tables.audit(_ACTIONS[state], author, changes)
            return {row.id: row.state for row in rows}

    async def cancel(self, runs: Collection[RunId], author: Author | None = None) -> dict[RunId, RunState]:
        tables = self._tables
        with tables.transaction():
            rows = [tables.runs[run] for run in dict.fromkeys(runs) if run in tables.runs]
            before = [row.shown_state() for row in rows]
            tables.request_cancel(rows)
            changes = [
                _describe_change(row.tenant, row.id, was.value, row.shown_state().value)
                for row, was in zip(rows, before, strict=True)
                if row.shown_state() is not was
            ]
            tables.audit("runs.cancel", author, changes)
            return {row.id: row.shown_state() for row in rows}


def _describe_change(tenant: str, target: str, before: str, after: str) -> Change:
    return Change(tenant, target, *(what_differs({"state": before}, {"state": after}) or ()))


def _build_row(run: NewRun, now: Instant, rule: DependencyRule | None) -> RunRow:
    due = run.at if run.at is not None else now + run.delay
    row = RunRow(
        id=run.id,
        task=run.task,
        payload=run.payload,
        policy=run.policy,
        queue=run.queue,
        tenant=run.tenant,
        priority=run.priority,
        state=RunState.SCHEDULED,
        due=due,
        created_at=now,
        start_within=run.start_within,
        end_within=run.deadline,
        rule=rule,
        unique=run.unique,
        limits=run.policy.limiters(run.tenant, run.task),
        # Also for runs of a recurring job: a run requested outside the schedule does not follow its overlap rule.
        key_lock=compute_run_key_lock(run.tenant, run.policy),
        job_id=None if run.job is None else run.job.id,
        job_version=None if run.job is None else run.job.version,
        scheduled_at=None if run.job is None else run.job.scheduled_at,
        late=run.job is not None and run.job.kind == "backfill",
        replay_of=run.replay_of,
        target=run.target,
        about=run.about,
    )
    if rule is None:
        row.set_time_limits()
    return row
