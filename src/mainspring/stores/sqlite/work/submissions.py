"""SQLite: submits and cancels runs."""

from collections.abc import Collection, Sequence

import apsw

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.run import RunState
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.answers import SubmitResult
from mainspring.core.store import KEYS_KEPT
from mainspring.stores.sqlite.records.audit import find_state_changes, write_audit
from mainspring.stores.sqlite.rows.answers import (
    decode_full_submit,
    decode_new_states,
    decode_stored_states,
    decode_submit,
)
from mainspring.stores.sqlite.rows.encoding import encode
from mainspring.stores.sqlite.rows.items import (
    build_full_submit_item,
    build_submit_item,
    involves_other_runs,
    needs_full_submit,
)
from mainspring.stores.sqlite.threads import ProcedureCall, call_procedures, read
from mainspring.stores.sqlite.work.dependencies import submit_linked_runs
from mainspring.stores.sqlite.work.queues import SqliteQueues


class SqliteSubmissions(SqliteQueues):
    async def used_keys(self, tenant: str, keys: Collection[str]) -> set[str]:
        def look(connection: apsw.Connection, now: Instant) -> set[str]:
            found = connection.execute(
                "SELECT u.key FROM json_each(:keys) AS i"
                " CROSS JOIN idempotency u ON u.tenant = :tenant AND u.key = i.value"
                " WHERE u.at > :since AND (EXISTS (SELECT 1 FROM run r WHERE r.id = u.made)"
                " OR EXISTS (SELECT 1 FROM waiting w WHERE w.id = u.made)"
                " OR EXISTS (SELECT 1 FROM history h WHERE h.id = u.made)"
                " OR EXISTS (SELECT 1 FROM job j WHERE j.id = u.made))",
                {"keys": encode(list(keys)), "tenant": tenant, "since": now - KEYS_KEPT},
            )
            return {str(key) for (key,) in found}

        return await self._write(look)

    async def submit(self, runs: Sequence[NewRun]) -> list[SubmitResult]:
        if not runs:
            return []
        if any(run.policy.weight > 1 for run in runs):
            await self._mark_weighted(run.queue for run in runs if run.policy.weight > 1)
        if any(map(involves_other_runs, runs)):
            shards = [self._find_shard(run.id) for run in runs]
            return await self._write(lambda connection, now: submit_linked_runs(connection, runs, shards, now))
        if any(map(needs_full_submit, runs)):
            return await self._submit_more(runs)
        batch = encode([build_submit_item(run, self._find_shard(run.id)) for run in runs])
        answer = await self._writer.call("submit", batch, argument=len(runs))
        accepted = [SubmitResult(run.id, RunState.QUEUED, True) for run in runs]
        for other in decode_submit(answer):
            accepted[other.index] = SubmitResult(runs[other.index].id, other.state, other.new != 0)
        return accepted

    async def _submit_more(self, runs: Sequence[NewRun]) -> list[SubmitResult]:
        batch = encode([build_full_submit_item(run, self._find_shard(run.id)) for run in runs])
        answer = await self._writer.call("submit_full", batch, argument=KEYS_KEPT)
        return [SubmitResult(run.id, run.state, run.new != 0, run.conflict != 0) for run in decode_full_submit(answer)]

    async def cancel(self, runs: Collection[RunId], author: Author | None = None) -> dict[RunId, RunState]:
        ids = encode(list(dict.fromkeys(runs)))
        call = ProcedureCall("cancel", ids)

        def cancel(connection: apsw.Connection, now: Instant) -> str:
            before = decode_stored_states(read(connection, "run_states", ids=ids))
            [answer] = call_procedures(connection, [call], now)
            after = decode_new_states(answer)
            write_audit(connection, now, "runs.cancel", author, find_state_changes(before, after))
            return answer

        # A call without an author shares a commit with others.
        answer = await self._writer.run(call if author is None else cancel)
        return decode_new_states(answer)
