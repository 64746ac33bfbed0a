"""Submits and cancels runs."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import groupby
from types import MappingProxyType
from typing import Any

import asyncpg
import msgspec

from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.core.model.base.ids import JobId, RunId, SessionId, decode_shard
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.limits.limits import Limiter
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.model.runs.rank import compute_rank
from mainspring.core.model.runs.run import RunState
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.answers import SubmitResult
from mainspring.core.ports.wakeups import queue_topic
from mainspring.core.rules import limits as limit_rules
from mainspring.core.rules.limit_decisions import LimitDecisions, LimitedRun, LimitRelease
from mainspring.stores.changes import Change, what_differs
from mainspring.stores.postgres.codes import AT_LIMIT, BACKFILL, BY_PARENTS, STATE_CODES, STATES, NameKind
from mainspring.stores.postgres.columns import columns, columns_of_structs
from mainspring.stores.postgres.database import Connection
from mainspring.stores.postgres.retention_classes import RetentionClassMixin
from mainspring.stores.postgres.rows import (
    build_label_set,
    compute_bucket,
    compute_key_lock,
    encode_about,
    get_origin,
    get_public_state,
)
from mainspring.stores.postgres.work.dependencies import FEW, DependencyDecisions, check_circles
from mainspring.stores.postgres.work.keys import JOB, RUN, IdempotencyKeyMixin, KeyRequest, KeyUse, build_key_request
from mainspring.stores.postgres.work.limit_columns import pack_limits
from mainspring.stores.postgres.work.limiter_rows import PostgresLimiterRows
from mainspring.stores.postgres.work.live_rows import LiveRow, build_queued_row, build_waiting_row
from mainspring.stores.postgres.work.queues import QueueMixin
from mainspring.stores.postgres.work.unique_runs import split_by_unique_key

_CANCEL_ROUNDS = 10
_SCHEDULED, _BLOCKED, _QUEUED = (
    STATE_CODES[state] for state in (RunState.SCHEDULED, RunState.BLOCKED, RunState.QUEUED)
)


class PlacedRun(msgspec.Struct):
    """A new or edited run, and the state it starts in."""

    run: NewRun
    due: Instant
    state: int
    key_lock: int | None = None
    limits: tuple[Limiter, ...] = ()
    has_children: bool | None = None
    #: The number of the limiter that blocks it.
    waits: int | None = None


class SubmitMixin(QueueMixin, IdempotencyKeyMixin, RetentionClassMixin):
    async def submit(self, runs: Sequence[NewRun]) -> list[SubmitResult]:
        if not runs:
            return []
        await self._names.assign_numbers(_list_names(runs))
        runs = await self._assign_classes(runs)
        await self._prepare_queues(runs)
        if not any(map(_needs_checks, runs)) and not (self._grouped and any(map(self._is_grouped, runs))):
            try:
                return await self._submit_free(runs)
            except asyncpg.UniqueViolationError:
                # Some of these ids exist already: a retry of a submit whose answer was lost.
                pass
        check_circles(runs)
        answers = await self._db.transaction(lambda connection: self._submit_in_turns(connection, runs))
        if any(answer.new and answer.state is RunState.SKIPPED for answer in answers):
            # Resolve the children of the skipped runs.
            await self.resolve(FEW)
        known = await self._states([answer.id for answer in answers if not answer.new])
        return [
            answer if answer.new else msgspec.structs.replace(answer, state=known.get(answer.id, answer.state))
            for answer in answers
        ]

    async def _submit_free(self, runs: Sequence[NewRun]) -> list[SubmitResult]:
        """Submit runs that need no checks: they have no keys, and no id exists yet."""
        arguments = self._body_columns(runs) | self._run_columns(runs)
        if all(run.at is None and not run.delay for run in runs):
            await self._submit_now(arguments, {queue_topic(run.queue) for run in runs})
            return [SubmitResult(run.id, RunState.QUEUED, True) for run in runs]
        rows = await self._db.fetch(
            "submit_any", **arguments, at=[run.at for run in runs], delay=[run.delay for run in runs]
        )
        queued = {row["id"] for row in rows}
        return [SubmitResult(run.id, RunState.QUEUED if run.id in queued else RunState.SCHEDULED, True) for run in runs]

    async def _submit_now(self, arguments: dict[str, list[Any]], topics: set[str]) -> None:
        """Submit runs that are due now. On a quiet system the commit itself wakes the workers."""
        wakeups = self._wakeups
        channel, message = (None if wakeups is None else wakeups.take_along(topics)) or (None, None)
        if len(arguments["id"]) == 1:
            one = {name: column[0] for name, column in arguments.items()}
            await self._db.execute("submit_one", **one, channel=channel, message=message)
        else:
            await self._db.execute("submit_now", **arguments, channel=channel, message=message)
        if wakeups is not None and channel is not None:
            wakeups.was_taken_along(topics)

    def _body_columns(self, runs: Sequence[NewRun]) -> dict[str, list[Any]]:
        number = self._names.get_number
        encode = self._policies.encode
        return {
            "id": [run.id for run in runs],
            "bucket": [compute_bucket(run) for run in runs],
            "task": [number(NameKind.TASK, run.task) for run in runs],
            "policy": [encode(run.policy) for run in runs],
            "payload": [run.payload for run in runs],
            "tenant": [number(NameKind.TENANT, run.tenant) for run in runs],
        }

    def _run_columns(self, runs: Sequence[NewRun]) -> dict[str, list[Any]]:
        number = self._names.get_number
        return {
            "shard": self._decode_shards([run.id for run in runs]),
            "priority": [run.priority for run in runs],
            "queue": [number(NameKind.QUEUE, run.queue) for run in runs],
            "timeout": [run.policy.timeout for run in runs],
            "start_within": [run.start_within for run in runs],
            "deadline": [run.deadline for run in runs],
            "replay_of": [run.replay_of for run in runs],
        }

    async def _submit_in_turns(self, connection: Connection, runs: Sequence[NewRun]) -> list[SubmitResult]:
        answers: dict[int, SubmitResult] = {}
        others: dict[RunId, RunId] = {}
        turns = list(split_by_unique_key(runs))
        for turn in turns:
            part = [runs[place] for place in turn]
            made = await self._submit_checked(connection, part, others)
            answers |= zip(turn, made, strict=True)
            others |= {run.id: answer.id for run, answer in zip(part, made, strict=True) if run.id != answer.id}
        if len(turns) == 1:
            return list(answers.values())
        # A run made in an earlier turn may have been replaced or changed in a later one.
        rows = await connection.fetch(
            *self._db.sql["states"].bind(runs=sorted({answer.id for answer in answers.values()}))
        )
        states = {row["id"]: get_public_state(row) for row in rows}
        return [
            msgspec.structs.replace(answers[place], state=states.get(answers[place].id, answers[place].state))
            for place in range(len(runs))
        ]

    async def _submit_checked(
        self, connection: Connection, runs: Sequence[NewRun], others: Mapping[RunId, RunId] = MappingProxyType({})
    ) -> list[SubmitResult]:
        """Check before inserting: which ids and idempotency keys are new, and which runs get their ordering keys."""
        used, holders = await self._use_new_keys(connection, runs)
        wanted = [run for run in runs if run.id not in used]
        there = await self._take_unique_keys(connection, wanted)
        wanted = [run for run in wanted if run.id not in there]
        made = await self._insert_bodies(connection, wanted)
        new = {row["id"] for row in made}
        # Another transaction has just made the same run.
        await self._free_keys(connection, [key for key in holders if key.id not in new])
        states: dict[RunId, RunState] = {}
        if new:
            others = {**others, **{run: RunId(before.id) for run, before in used.items()}}
            others |= {run: answer.id for run, answer in there.items()}
            states = await self._store_new(connection, [run for run in wanted if run.id in new], made[0]["now"], others)
        emitted: set[RunId] = set()
        answers = []
        for run in runs:
            if run.id in there:
                answers.append(there[run.id])
                continue
            before = used.get(run.id)
            if before is not None:
                other = run.idempotency is None or before.fingerprint != run.idempotency.fingerprint
                state = RunState.SCHEDULED if before.kind == JOB else RunState.QUEUED
                answers.append(SubmitResult(RunId(before.id), state, False, other or before.kind == JOB))
                continue
            answers.append(
                SubmitResult(run.id, states.get(run.id, RunState.QUEUED), run.id in new and run.id not in emitted)
            )
            emitted.add(run.id)
        return answers

    async def _use_new_keys(
        self, connection: Connection, runs: Sequence[NewRun]
    ) -> tuple[dict[RunId, KeyUse], list[KeyRequest]]:
        """Check the idempotency keys of runs.

        Return the runs that are not made because their key was used, and the keys that the others take.
        """
        keyed = [run for run in runs if run.idempotency is not None]
        if not keyed:
            return {}, []
        rows = await connection.fetch(
            *self._db.sql["known_bodies"].bind(
                runs=[run.id for run in keyed], buckets=[compute_bucket(run) for run in keyed]
            )
        )
        known = {row["id"] for row in rows}
        wanted = {
            run.id: build_key_request(self._names.get_number(NameKind.TENANT, run.tenant), run.idempotency, run.id)
            for run in keyed
            if run.idempotency is not None and run.id not in known
        }
        before, holders = await self._take_keys(connection, list(wanted.values()), RUN)
        # A run that finds itself under its key is a known id.
        used = {run: used for run, used in zip(wanted, before, strict=True) if used is not None and used.id != run}
        return used, holders

    async def _insert_bodies(self, connection: Connection, runs: Sequence[NewRun]) -> list[asyncpg.Record]:
        if not runs:
            return []
        # Rejects ids with a shard that the store does not have.
        self._decode_shards([run.id for run in runs])
        abouts = [encode_about(run.about) for run in runs]
        return await connection.fetch(*self._db.sql["submit_bodies"].bind(**self._body_columns(runs), about=abouts))

    async def _store_new(
        self, connection: Connection, runs: Sequence[NewRun], now: Instant, others: Mapping[RunId, RunId]
    ) -> dict[RunId, RunState]:
        """Store new runs with their dependencies, tags, audit entries and events; return their states."""
        # The lock order of all code: runs, ordering keys, limiters.
        dependencies = await self._store_dependencies(connection, runs, others)
        key_locks = {run.id: key_lock for run in runs if (key_lock := compute_key_lock(run)) is not None}
        holders = await self._lock_keys(connection, key_locks.values())
        placed = self._decide_states(runs, now, key_locks, holders, dependencies)
        decided = await self._decide_limits(connection, placed)
        await self._insert(connection, placed, now)
        held = {
            one.key_lock: one.run.id
            for one in placed
            if one.key_lock is not None and holders[one.key_lock] == one.run.id
        }
        if held:
            await connection.execute(
                *self._db.sql["set_key_holders"].bind(keys=list(held), holders=list(held.values()))
            )
        if decided is not None:
            await limit_rules.write(*decided)
        await self._skip(connection, dependencies.hopeless)
        # In the order of submission, because the audit names the first.
        made = list({run.id: run for run in runs}.values())
        await self._label(connection, made)
        replays = [(run.replay_of, self._tenant(run)) for run in made if run.replay_of is not None]
        if replays:
            await connection.execute(*self._db.sql["mark_replayed"].bind(**columns(replays, "runs", "tenants")))
        by_author: dict[str, list[Change]] = {}
        for run in made:
            if run.author:
                by_author.setdefault(run.author, []).append(Change(run.tenant, run.id))
        for author, changes in by_author.items():
            await self._audit(connection, "jobs.submit", Author(author), changes)
        await self._emit(connection, "run.submitted", [(one.run.id, self._tenant(one.run)) for one in placed])
        states = {one.run.id: STATES[one.state] for one in placed}
        return states | dict.fromkeys(map(RunId, dependencies.hopeless), RunState.SKIPPED)

    def _decide_states(
        self,
        runs: Sequence[NewRun],
        now: Instant,
        key_locks: dict[RunId, int],
        holders: dict[int, str | None],
        dependencies: DependencyDecisions,
    ) -> list[PlacedRun]:
        """Decide the states of new runs by their parents, due times and ordering keys."""
        placed: dict[RunId, PlacedRun] = {}
        # Runs wait for a key in the order of (due, id), also inside a batch.
        lined_up = sorted(
            ((run.at if run.at is not None else now + run.delay, run.id, run) for run in runs),
            key=lambda entry: entry[:2],
        )
        for due, run_id, run in lined_up:
            if run_id in placed:
                continue
            key_lock = key_locks.get(run_id)
            if run_id in dependencies.waiting:
                state = BY_PARENTS
            elif due > now:
                state = _SCHEDULED
            elif key_lock is None or holders[key_lock] is None:
                state = _QUEUED
                if key_lock is not None:
                    holders[key_lock] = run.id
            else:
                state = _BLOCKED
            limits = run.policy.limiters(run.tenant, run.task)
            placed[run_id] = PlacedRun(
                run, due, state, key_lock, limits, True if run_id in dependencies.parents else None
            )
        return list(placed.values())

    async def _decide_limits(
        self,
        connection: Connection,
        placed: Sequence[PlacedRun],
        leaving: Sequence[LimitRelease] = (),
        left: Collection[int] = (),
    ) -> tuple[PostgresLimiterRows, LimitDecisions] | None:
        """Decide which new runs are admitted by their limits; the result is written once they are in the tables."""
        arriving = {one.run.id: one for one in placed if one.state == _QUEUED and one.limits}
        if not arriving and not leaving and not left:
            return None
        rows = PostgresLimiterRows(self._db, connection)
        runs = [LimitedRun(one.due, run, one.limits, is_new=True) for run, one in arriving.items()]
        decisions = await limit_rules.decide(rows, releases=leaving, arriving=runs, left=left)
        for run, number in decisions.waits.items():
            if run in arriving:
                arriving[run].state, arriving[run].waits = AT_LIMIT, number
        return rows, decisions

    def _tenant(self, run: NewRun) -> int:
        return self._names.get_number(NameKind.TENANT, run.tenant)

    async def _label(self, connection: Connection, runs: Sequence[NewRun], bucket: int | None = None) -> None:
        """Write the tags of runs, into the buckets of their bodies unless ``bucket`` is given."""
        labels = [
            (compute_bucket(run) if bucket is None else bucket, run.id, self._tenant(run), tag)
            for run in runs
            if run.about is not None
            for tag in run.about.tags
        ]
        if labels:
            await connection.execute(
                *self._db.sql["add_labels"].bind(**columns(labels, "buckets", "ids", "tenants", "labels"))
            )

    async def _insert(self, connection: Connection, placed: Sequence[PlacedRun], now: Instant) -> None:
        rows = [(one, self._common(one, now)) for one in placed]
        queued = [
            build_queued_row(row, rank=compute_rank(now, one.run.priority, late=get_origin(one.run) == BACKFILL))
            for one, row in rows
            if one.state == _QUEUED
        ]
        waiting = [
            build_waiting_row(
                row,
                state=one.state,
                late=get_origin(one.run) == BACKFILL,
                waits=one.waits,
                holds=one.state == AT_LIMIT and one.key_lock is not None,
            )
            for one, row in rows
            if one.state != _QUEUED
        ]
        if queued:
            await connection.execute(*self._db.sql["insert_queued"].bind(**columns_of_structs(queued)))
        if waiting:
            await connection.execute(*self._db.sql["insert_waiting"].bind(**columns_of_structs(waiting)))
        targets = sorted({one.run.target for one in placed if one.run.target is not None})
        if targets:
            await connection.execute(*self._db.sql["open_own_groups"].bind(workers=targets))

    def _common(self, one: PlacedRun, now: Instant) -> LiveRow:
        """Return the columns of a new run that the queue and the waiting table share."""
        run, due = one.run, one.due
        # For a run that waits for parents, these count from when its dependency rule is met.
        waits = one.state == BY_PARENTS
        return LiveRow(
            id=run.id,
            shard=decode_shard(run.id),
            priority=run.priority,
            tenant=self._tenant(run),
            queue=self._names.get_number(NameKind.QUEUE, run.queue),
            bucket=compute_bucket(run),
            due=due,
            created_at=now,
            timeout=run.policy.timeout,
            start_by=None if run.start_within is None or waits else due + run.start_within,
            deadline=None if run.deadline is None or waits else due + run.deadline,
            key_lock=one.key_lock,
            job_id=None if run.job is None else run.job.id,
            job_version=None if run.job is None else run.job.version,
            scheduled_at=None if run.job is None else run.job.scheduled_at,
            replay_of=run.replay_of,
            origin=get_origin(run),
            claim_group=self._assign_claim_group(run),
            target=run.target,
            limits=pack_limits(one.limits),
            has_children=one.has_children,
        )

    def _get_claim_group(self, policy: RunPolicy, target: SessionId | None = None) -> int:
        if target is not None:
            return -target
        return self._names.get_number(NameKind.LABEL_SET, build_label_set(policy.requires)) if policy.requires else 0

    async def _emit(self, connection: Connection, kind: str, runs: Sequence[tuple[RunId, int]]) -> None:
        """Emit an event for runs, each given with the number of its tenant."""
        if runs:
            await connection.execute(*self._db.sql["emit_events"].bind(kind=kind, **columns(runs, "runs", "tenants")))

    async def cancel(self, runs: Collection[RunId], author: Author | None = None) -> dict[RunId, RunState]:
        if author is not None:
            found, queues = await self._db.transaction(partial(self._cancel_audited, runs=runs, author=author))
            await self._notify(queues)
            return found
        found = {}
        for _ in range(_CANCEL_ROUNDS):
            missing = [run for run in runs if run not in found]
            if not missing:
                break
            before = len(found)
            rows, queues = await self._db.transaction(partial(self._cancel_rows, runs=missing))
            found |= _cancelled(rows)
            await self._notify(queues)
            if len(found) == before and not await self._states(missing):
                # Two snapshots found none of these runs: they do not exist.
                break
        return found

    async def _cancel_rows(
        self, connection: Connection, runs: Sequence[RunId | str]
    ) -> tuple[list[asyncpg.Record], Counter[int]]:
        """Cancel runs; return their rows, and how many others were queued, by queue."""
        rows = await connection.fetch(*self._db.sql["cancel_waiting"].bind(runs=sorted(set(runs))))
        return rows, await self._release_runs(connection, rows)

    async def _cancel_audited(
        self, connection: Connection, runs: Collection[RunId], author: Author
    ) -> tuple[dict[RunId, RunState], Counter[int]]:
        """Cancel in one transaction, all rounds, so that the audit gets one row for all changes."""
        found: dict[RunId, RunState] = {}
        queues: Counter[int] = Counter()
        changed: dict[RunId, asyncpg.Record] = {}
        for _ in range(_CANCEL_ROUNDS):
            missing = [run for run in runs if run not in found]
            if not missing:
                break
            rows, more = await self._cancel_rows(connection, missing)
            queues += more
            found |= _cancelled(rows)
            changed |= {RunId(row["id"]): row for row in rows if row["was"] is not None}
            if not rows and not await connection.fetch(*self._db.sql["states"].bind(runs=missing)):
                break
        await self._names.load_names({row["tenant"] for row in changed.values()}, connection)
        changes = [
            moved_state(self._names.get_name(row["tenant"]), run, STATES[row["was"]].value, found[run].value)
            for run in dict.fromkeys(runs)
            if (row := changed.get(run)) is not None
        ]
        await self._audit(connection, "runs.cancel", author, changes)
        return found, queues

    async def _stop_job_runs(self, connection: Connection, job: JobId, target: str = "") -> None:
        """Cancel all runs of a job, or only those for one data center.

        The schedule is locked, so no new runs appear. Runs that changed tables are found in the next round.
        """
        for _ in range(_CANCEL_ROUNDS):
            if target:
                rows = await connection.fetch(*self._db.sql["unstopped_in_datacenter"].bind(job=job, target=target))
            else:
                rows = await connection.fetch(*self._db.sql["unstopped_of_job"].bind(job=job))
            if not rows:
                return
            await self._cancel_rows(connection, [row["id"] for row in rows])
        raise StoreUnavailable(f"the runs of job {job} move too fast to be stopped")

    async def _states(self, runs: Sequence[RunId]) -> dict[RunId, RunState]:
        if not runs:
            return {}
        rows = await self._db.fetch("states", runs=list(runs))
        return {RunId(row["id"]): get_public_state(row) for row in rows}


def _needs_checks(run: NewRun) -> bool:
    """Whether a run needs more than two inserts."""
    policy = run.policy
    return bool(
        policy.ordering_key
        or policy.requires
        or policy.limits
        or policy.breaker is not None
        or run.after is not None
        or run.unique is not None
        or run.target is not None
        or run.about is not None
        or run.idempotency is not None
        or run.author
        or run.job is not None
        or run.replay_of is not None
    )


def _cancelled(rows: Sequence[asyncpg.Record]) -> dict[RunId, RunState]:
    return {RunId(row["id"]): RunState.CANCELLING if row["state"] == 0 else STATES[row["state"]] for row in rows}


def moved_state(tenant: str, target: str, before: str, after: str) -> Change:
    return Change(tenant, target, *(what_differs({"state": before}, {"state": after}) or ()))


def _list_names(runs: Sequence[NewRun]) -> set[tuple[NameKind, str]]:
    wanted: set[tuple[NameKind, str]] = set()
    for (task, queue, tenant, requires), _ in groupby(
        runs, key=lambda run: (run.task, run.queue, run.tenant, run.policy.requires)
    ):
        wanted |= {(NameKind.TASK, task), (NameKind.QUEUE, queue), (NameKind.TENANT, tenant)}
        if requires:
            wanted.add((NameKind.LABEL_SET, build_label_set(requires)))
    return wanted
