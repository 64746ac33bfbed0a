"""Changes that users make, beyond submitting."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

import asyncpg
import msgspec

from mainspring.core.model.base.ids import JobId, RunId, SessionId, decode_shard, made_at
from mainspring.core.model.base.instant import DAY, Instant
from mainspring.core.model.runs.new_run import About, NewRun
from mainspring.core.model.runs.rank import compute_rank
from mainspring.core.model.runs.restored import KnownOutcome
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.model.schedules.job import NewJob, version_body_id
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.answers import SubmitResult
from mainspring.core.ports.storage.catalog import Pause
from mainspring.core.rules import limits as limit_rules
from mainspring.core.rules.limit_decisions import LimitRelease
from mainspring.stores.changes import Change, retagged, what_differs, words_of_run
from mainspring.stores.postgres.codes import (
    AT_LIMIT,
    BY_PARENTS,
    DAYS_AHEAD,
    JOB_STATES,
    STATE_CODES,
    STATES,
    SUBMITTED,
    NameKind,
)
from mainspring.stores.postgres.columns import columns, columns_of_structs
from mainspring.stores.postgres.database import Connection
from mainspring.stores.postgres.rows import (
    build_label_set,
    compute_key_lock,
    decode_about,
    decode_spec,
    encode_about,
    kept_bucket,
)
from mainspring.stores.postgres.work.jobs import OVER, JobMixin, VersionRow
from mainspring.stores.postgres.work.limit_columns import pack_limits, unpack_limits
from mainspring.stores.postgres.work.live_rows import LiveRow, build_queued_row, build_waiting_row
from mainspring.stores.postgres.work.submissions import PlacedRun, moved_state

#: How often both tables are searched. A run may come due in between. An edit also replaces its row, so that a
#: transaction that waited for the old row finds nothing.
_LOOKS = 20


class UserChangeMixin(JobMixin):
    async def edit_run(self, run: NewRun, author: Author, *, was: RunView | None = None) -> SubmitResult | None:
        [run] = await self._assign_classes([run])
        labels = [(NameKind.LABEL_SET, build_label_set(run.policy.requires))] if run.policy.requires else []
        await self._names.assign_numbers([(NameKind.TASK, run.task), (NameKind.QUEUE, run.queue), *labels])
        if run.policy.weight > 1:
            await self._mark_weighted([run.queue])
        tenant = await self._names.find_number(NameKind.TENANT, run.tenant)
        if tenant is None:
            return None

        async def edit(connection: Connection) -> SubmitResult | None:
            row = await self._editable(connection, run.id, tenant)
            if row is None:
                return None
            # Tags are written under this lock: new ones are read before the edit, or written after it.
            await connection.fetch(*self._db.sql["lock_bodies"].bind(runs=[run.id], buckets=[row["body_bucket"]]))
            before = (await self._views([run.id], payloads=True, within=connection))[run.id]
            if was is not None and words_of_run(was) != words_of_run(before):
                return SubmitResult(run.id, before.state, new=False, conflict=True)
            state = await self._edit(connection, run, row)
            after = (await self._views([run.id], payloads=True, within=connection))[run.id]
            differs = what_differs(words_of_run(before), words_of_run(after))
            if differs is not None:
                await self._audit(connection, "runs.edit", author, [Change(run.tenant, run.id, *differs)])
            return SubmitResult(run.id, state, new=False)

        return await self._db.transaction(edit)

    async def _editable(self, connection: Connection, run: RunId, tenant: int) -> asyncpg.Record | None:
        """Lock and return the row of a one-off run that never started."""
        for _ in range(_LOOKS):
            for name in ("editable_waiting", "editable_queued"):
                row = await connection.fetchrow(*self._db.sql[name].bind(run=run, tenant=tenant))
                if row is not None:
                    return row
        return None

    async def _edit(self, connection: Connection, run: NewRun, row: asyncpg.Record) -> RunState:
        """Give a run another due time, key or queue, and the state that follows from them; return that state.

        A run that stays queued keeps its age. A run that holds its key keeps it while it is the first in line.
        """
        now: Instant = row["now"]
        was, old_key_lock, key_lock = STATES[row["state"]], row["key_lock"], compute_key_lock(run)
        due = run.at if run.at is not None else now + run.delay
        limits = run.policy.limiters(run.tenant, run.task)
        if row["state"] == BY_PARENTS:
            await connection.execute(
                *self._db.sql["edit_dependent"].bind(run=run.id, start_within=run.start_within, deadline=run.deadline)
            )
            return await self._change(
                connection, row, PlacedRun(run, due, BY_PARENTS, key_lock, limits, row["has_children"])
            )
        holders = await self._lock_keys(connection, [key for key in (old_key_lock, key_lock) if key is not None])
        held = old_key_lock is not None and holders[old_key_lock] == run.id
        kept = (
            held
            and due <= now
            and key_lock == old_key_lock
            and await self._is_first(connection, old_key_lock, due, run.id)
        )
        if due > now:
            state = RunState.SCHEDULED
        elif key_lock is None or kept:
            state = RunState.QUEUED
        elif holders[key_lock] is None:
            state = RunState.QUEUED
            await connection.execute(*self._db.sql["set_key_holders"].bind(keys=[key_lock], holders=[run.id]))
        else:
            state = RunState.BLOCKED
        placed = PlacedRun(run, due, STATE_CODES[state], key_lock, limits, row["has_children"])
        state = await self._change(connection, row, placed)
        # For a run made in the same transaction, an event was emitted just now.
        if state is RunState.QUEUED and was is not RunState.QUEUED and row["created_at"] != now:
            await self._emit(connection, "run.queued", [(run.id, self._tenant(run))])
        if held and not kept:
            await connection.execute(*self._db.sql["set_key_holders"].bind(keys=[old_key_lock], holders=[None]))
            limited = [one for one in await self._pass_keys_on(connection, [old_key_lock]) if one["limits"]]
            if limited:
                await self._admit(connection, limited)
            if state is RunState.BLOCKED:
                # The run holds its key again if no other run is before it in line.
                [now_row] = await connection.fetch(*self._db.sql["states"].bind(runs=[run.id]))
                state = STATES[now_row["state"]]
        return state

    async def _change(self, connection: Connection, row: asyncpg.Record, placed: PlacedRun) -> RunState:
        """Replace the row of an edited run, and return the run's state after that.

        The run leaves the limits it was inside, and tries to pass those it has now.
        """
        run = placed.run
        inside = () if row["limits"] is None else unpack_limits(row["limits"])
        was_queued = STATES[row["state"]] is RunState.QUEUED
        await connection.execute(*self._db.sql["remove_queued" if was_queued else "remove_waiting"].bind(run=run.id))
        decided = None
        if not (inside and placed.state == STATE_CODES[RunState.QUEUED] and inside == placed.limits):
            leaving = [LimitRelease(inside)] if inside else []
            left = () if row["waits"] is None else (row["waits"],)
            decided = await self._decide_limits(connection, [placed], leaving, left)
        await self._edit_body(connection, run, row["body_bucket"])
        await self._reinsert(connection, placed, row)
        if decided is not None:
            await limit_rules.write(*decided)
        return STATES[placed.state]

    async def _edit_earlier(self, connection: Connection, run: NewRun, tenant: int) -> RunState | None:
        row = await self._editable(connection, run.id, tenant)
        return None if row is None else await self._edit(connection, run, row)

    async def _is_first(self, connection: Connection, key_lock: int, due: Instant, run: RunId) -> bool:
        first = await connection.fetchrow(*self._db.sql["first_in_line"].bind(key=key_lock, run=run))
        return first is None or (due, run) < (first["due"], first["id"])

    async def _edit_body(self, connection: Connection, run: NewRun, bucket: int) -> None:
        await connection.execute(
            *self._db.sql["remove_labels"].bind(buckets=[bucket, kept_bucket(run.policy)], ids=[run.id] * 2)
        )
        await connection.execute(
            *self._db.sql["edit_body"].bind(
                run=run.id,
                task=self._names.get_number(NameKind.TASK, run.task),
                policy=self._policies.encode(run.policy),
                payload=run.payload,
                tenant=self._tenant(run),
                about=encode_about(run.about),
                bucket=kept_bucket(run.policy),
            ),
        )
        await self._label(connection, [run], kept_bucket(run.policy))

    async def _reinsert(self, connection: Connection, placed: PlacedRun, row: asyncpg.Record) -> None:
        run, due = placed.run, placed.due
        waits = placed.state == BY_PARENTS
        common = LiveRow(
            id=run.id,
            shard=decode_shard(run.id),
            priority=run.priority,
            tenant=self._tenant(run),
            queue=self._names.get_number(NameKind.QUEUE, run.queue),
            bucket=kept_bucket(run.policy),
            due=due,
            created_at=row["created_at"],
            timeout=run.policy.timeout,
            start_by=None if run.start_within is None or waits else due + run.start_within,
            deadline=None if run.deadline is None or waits else due + run.deadline,
            key_lock=placed.key_lock,
            replay_of=row["replay_of"],
            origin=SUBMITTED,
            claim_group=self._get_claim_group(run.policy, row["target"]),
            target=row["target"],
            limits=pack_limits(placed.limits),
            has_children=placed.has_children,
        )
        if placed.state == STATE_CODES[RunState.QUEUED]:
            queued_at: Instant = row["now"] if row["queued_at"] is None else row["queued_at"]
            queued = build_queued_row(common, rank=compute_rank(queued_at, run.priority), queued_at=queued_at)
            await connection.execute(*self._db.sql["insert_queued"].bind(**columns_of_structs([queued])))
            await connection.execute(*self._db.sql["keep_ready"].bind(run=run.id, ready_at=row["ready_at"]))
        else:
            holds = placed.state == AT_LIMIT and placed.key_lock is not None
            waiting = build_waiting_row(common, state=placed.state, waits=placed.waits, holds=holds)
            await connection.execute(*self._db.sql["insert_waiting"].bind(**columns_of_structs([waiting])))

    async def finish(self, ends: Sequence[KnownOutcome], author: Author) -> dict[RunId, RunState]:
        for end in ends:
            end.check()
        known = {end.run: end for end in ends}
        found, queues = await self._db.transaction(partial(self._finish, known=known, author=author))
        await self._notify(queues)
        return found

    async def _finish(
        self, connection: Connection, known: Mapping[RunId, KnownOutcome], author: Author
    ) -> tuple[dict[RunId, RunState], Counter[int]]:
        """Return the states of the runs now, and how many others were queued, by queue."""
        found: dict[RunId, RunState] = {}
        changed: dict[RunId, asyncpg.Record] = {}
        queues: Counter[int] = Counter()
        # Another round finds runs that moved from one table to the other meanwhile.
        for _ in range(_LOOKS):
            missing = [known[run] for run in sorted(known) if run not in found]
            if not missing:
                break
            rows = await connection.fetch(*self._db.sql["finish"].bind(**_ends(missing)))
            queues += await self._release_runs(connection, rows)
            found |= {RunId(row["id"]): STATES[row["state"]] for row in rows}
            changed |= {RunId(row["id"]): row for row in rows if row["was"] is not None}
            if not rows and not await connection.fetch(*self._db.sql["states"].bind(runs=[end.run for end in missing])):
                break
        await self._names.load_names({row["tenant"] for row in changed.values()}, connection)
        changes = [
            moved_state(self._names.get_name(row["tenant"]), run, _was(row).value, found[run].value)
            for run in known
            if (row := changed.get(run)) is not None
        ]
        await self._audit(connection, "runs.finish", author, changes)
        return found, queues

    async def discard(self, runs: Collection[RunId], author: Author) -> int:
        return await self._set_dead_letters("discard", runs, author)

    async def bring_back(self, runs: Collection[RunId], author: Author) -> int:
        return await self._set_dead_letters("bring_back", runs, author)

    async def _set_dead_letters(self, statement: str, runs: Collection[RunId], author: Author) -> int:
        async def work(connection: Connection) -> int:
            rows = {
                row["id"]: row for row in await connection.fetch(*self._db.sql[statement].bind(runs=sorted(set(runs))))
            }
            await self._audit(connection, f"runs.{statement}", author, await self._changes(connection, runs, rows))
            return len(rows)

        return await self._db.transaction(work)

    async def _changes(
        self, connection: Connection, ids: Collection[str], rows: dict[str, asyncpg.Record]
    ) -> list[Change]:
        """Return the changes of the ids that have a row, in the order given."""
        await self._names.load_names({row["tenant"] for row in rows.values()}, connection)
        return [
            Change(self._names.get_name(rows[identifier]["tenant"]), identifier)
            for identifier in dict.fromkeys(ids)
            if identifier in rows
        ]

    async def purge(self, ids: Collection[RunId | JobId], author: Author) -> list[str]:
        async def work(connection: Connection) -> list[str]:
            sql, asked = self._db.sql, sorted(set(ids))
            jobs = {
                row["id"]: row
                for row in await connection.fetch(*sql["lock_jobs"].bind(jobs=asked))
                if JOB_STATES[row["state"]] in OVER
            }
            runs = {row["id"]: row for row in await connection.fetch(*sql["purge_history"].bind(runs=asked))}
            if runs:
                own = [(run, row["body_bucket"], made_at(run) // DAY) for run, row in runs.items() if row["own_body"]]
                if own:
                    await connection.execute(
                        *sql["purge_bodies"].bind(**columns(own, "runs", "buckets", "days"), days_ahead=DAYS_AHEAD)
                    )
                await connection.execute(*sql["purge_rest"].bind(runs=list(runs)))
            if jobs:
                await connection.execute(*sql["purge_jobs"].bind(jobs=list(jobs)))
            changes = await self._changes(connection, ids, runs | jobs)
            await self._audit(connection, "jobs.purge", author, changes)
            return [change.target for change in changes]

        return await self._db.transaction(work)

    async def retag(
        self, ids: Collection[RunId | JobId], add: Collection[str], remove: Collection[str], author: Author
    ) -> int:
        async def work(connection: Connection) -> int:
            changed = await self._retag_runs(connection, ids, add, remove, author)
            changed |= await self._retag_jobs(connection, ids, add, remove, author)
            changes = [changed[identifier] for identifier in dict.fromkeys(ids) if identifier in changed]
            await self._audit(connection, "jobs.retag", author, changes)
            return len(changes)

        return await self._db.transaction(work)

    async def _retag_runs(
        self,
        connection: Connection,
        ids: Collection[str],
        add: Collection[str],
        remove: Collection[str],
        author: Author,
    ) -> dict[str, Change]:
        sql = self._db.sql
        rows = await connection.fetch(*sql["one_off_bodies"].bind(runs=sorted(set(ids))))
        await self._names.load_names({row["tenant"] for row in rows}, connection)
        numbers = {row["id"]: row["tenant"] for row in rows}
        places = [
            (row["id"], row["bucket"]) for row in rows if author.tenant in (None, self._names.get_name(row["tenant"]))
        ]
        if not places:
            return {}
        changed: dict[str, Change] = {}
        abouts: list[tuple[str, int, bytes | None]] = []
        labels: list[tuple[int, str, int, str]] = []
        for row in await connection.fetch(*sql["lock_bodies"].bind(**columns(places, "runs", "buckets"))):
            run, bucket, about = row["id"], row["bucket"], decode_about(row["about"]) or About()
            tags = retagged(about.tags, add, remove)
            if tags is None:
                continue
            new = msgspec.structs.replace(about, tags=tags)
            abouts.append((run, bucket, None if new == About() else encode_about(new)))
            labels += [(bucket, run, numbers[run], tag) for tag in tags]
            changed[run] = _retagged(self._names.get_name(numbers[run]), run, about.tags, tags)
        if abouts:
            await connection.execute(*sql["set_about"].bind(**columns(abouts, "runs", "buckets", "abouts")))
            await connection.execute(
                *sql["remove_labels"].bind(
                    buckets=[bucket for _, bucket, _ in abouts], ids=[run for run, _, _ in abouts]
                )
            )
        if labels:
            await connection.execute(*sql["add_labels"].bind(**columns(labels, "buckets", "ids", "tenants", "labels")))
        return changed

    async def _retag_jobs(
        self,
        connection: Connection,
        ids: Collection[str],
        add: Collection[str],
        remove: Collection[str],
        author: Author,
    ) -> dict[str, Change]:
        sql = self._db.sql
        rows = {row["id"]: row for row in await connection.fetch(*sql["lock_jobs"].bind(jobs=sorted(set(ids))))}
        if not rows:
            return {}
        # 0 is no name, so all names are loaded, the tasks of these jobs among them.
        await self._names.load_names([0], connection)
        versions = [row["version"] for row in rows.values()]
        bodies = [version_body_id(JobId(job), row["version"]) for job, row in rows.items()]
        changed: dict[str, Change] = {}
        new_versions: list[VersionRow] = []
        updates: list[tuple[object, ...]] = []
        for known in await connection.fetch(
            *sql["job_versions"].bind(jobs=list(rows), versions=versions, bodies=bodies)
        ):
            job, row = JobId(known["job_id"]), rows[known["job_id"]]
            tenant, spec = self._names.get_name(row["tenant"]), decode_spec(known["spec"])
            tags = None if spec is None else retagged(spec.tags, add, remove)
            if spec is None or tags is None or author.tenant not in (None, tenant):
                continue
            new = NewJob(
                id=job,
                spec=msgspec.structs.replace(spec, tags=tags),
                payload=known["payload"],
                tenant=tenant,
                author=author.name,
                why=author.why,
            )
            new_versions.append(self._new_version(new, job, row["version"] + 1))
            updates.append((job, row["version"] + 1, row["state"]))
            changed[job] = _retagged(tenant, job, spec.tags, tags)
        if changed:
            await connection.execute(*sql["add_versions"].bind(**columns_of_structs(new_versions)))
            await connection.execute(*sql["update_jobs"].bind(**columns(updates, "jobs", "versions", "states")))
            await connection.execute(*sql["touch_schedule"].bind(jobs=sorted(changed), active=True))
        return changed

    async def pause(self, pause: Pause, author: Author) -> None:
        await self._names.assign_numbers(
            (kind, name)
            for kind, name in ((NameKind.TENANT, pause.tenant), (NameKind.QUEUE, pause.queue))
            if name is not None
        )
        tenant = 0 if pause.tenant is None else self._names.get_number(NameKind.TENANT, pause.tenant)
        queue = 0 if pause.queue is None else self._names.get_number(NameKind.QUEUE, pause.queue)

        async def work(connection: Connection) -> None:
            if await connection.fetch(
                *self._db.sql["pause"].bind(
                    tenant=tenant, queue=queue, author=author.name, why=author.why, until=pause.until
                )
            ):
                changes = [Change(pause.tenant or "", pause.queue or "*")]
                await self._audit(connection, "queues.pause", author, changes)

        # Claims in progress finish first.
        await self._db.transaction_alone("lock_pauses", work)

    async def resume(self, tenant: str | None, queue: str | None, author: Author, *, back: Pause | None = None) -> bool:
        tenant_number = 0 if tenant is None else await self._names.find_number(NameKind.TENANT, tenant)
        queue_number = 0 if queue is None else await self._names.find_number(NameKind.QUEUE, queue)
        if tenant_number is None or queue_number is None:
            return False

        async def work(connection: Connection) -> bool:
            if not await connection.fetch(*self._db.sql["resume"].bind(tenant=tenant_number, queue=queue_number)):
                return False
            if back is not None:
                await connection.execute(
                    *self._db.sql["pause_again"].bind(
                        tenant=tenant_number,
                        queue=queue_number,
                        since=back.since,
                        author=back.author,
                        why=back.why,
                        until=back.until,
                    )
                )
            await self._audit(connection, "queues.resume", author, [Change(tenant or "", queue or "*")])
            return True

        return await self._db.transaction(work)

    async def drain(self, worker: SessionId, author: Author) -> bool:
        async def work(connection: Connection) -> bool:
            draining = await connection.fetchval(*self._db.sql["draining"].bind(worker=worker))
            if draining is False:
                await connection.execute(*self._db.sql["drain"].bind(worker=worker))
                await self._audit(connection, "workers.drain", author, [Change("", str(worker))])
            return draining is not None

        return await self._db.transaction(work)

    async def revoke_lease(self, scheduler: SessionId, author: Author) -> Instant | None:
        async def work(connection: Connection) -> Instant | None:
            gone: Instant | None = await connection.fetchval(*self._db.sql["revoke_lease"].bind(scheduler=scheduler))
            if gone is not None:
                await self._audit(connection, "schedulers.revoke", author, [Change("", str(scheduler))])
            return gone

        return await self._db.transaction(work)


def _retagged(tenant: str, target: str, before: tuple[str, ...], after: tuple[str, ...]) -> Change:
    return Change(tenant, target, *(what_differs({"tags": before}, {"tags": after}) or ()))


def _was(row: asyncpg.Record) -> RunState:
    return STATES[row["was"]] if row["was"] else RunState.CANCELLING


def _ends(ends: Sequence[KnownOutcome]) -> dict[str, list[Any]]:
    return {
        "runs": [end.run for end in ends],
        "states": [STATE_CODES[end.state] for end in ends],
        "reasons": [end.reason for end in ends],
        "results": [end.result for end in ends],
        "errors": [end.error for end in ends],
        "fingerprints": [end.fingerprint for end in ends],
    }
