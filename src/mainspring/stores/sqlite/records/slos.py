"""SQLite: objectives of jobs, and whether they are met."""

from collections.abc import Collection, Sequence
from typing import cast

import apsw
import msgspec

from mainspring.core.model.base.ids import JobId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.schedules.slo import SloState
from mainspring.core.ports.storage.slos import SloDue, SloResult
from mainspring.stores.sqlite.base import SqliteBase
from mainspring.stores.sqlite.rows.encoding import encode
from mainspring.stores.sqlite.work.jobs import read_jobs

_decode = msgspec.json.Decoder(SloState).decode
# The newest 1,000 runs suffice to find the last success, and bound the cost of the query.
_LAST_SUCCESS = (
    "SELECT max(finished_at) FROM ("
    " SELECT finished_at, state FROM history WHERE job_id = ? ORDER BY id DESC LIMIT 1000) WHERE state = 'succeeded'"
)


class SqliteSlos(SqliteBase):
    async def slos_due(self, limit: int) -> list[SloDue]:
        now = self._time.now()

        def read_due(connection: apsw.Connection) -> list[SloDue]:
            query = "SELECT job_id, rev, state FROM slo WHERE next_check <= ? ORDER BY next_check LIMIT ?"
            found = {
                job: (rev, state)
                for job, rev, state in cast(
                    "list[tuple[JobId, int, str]]", list(connection.execute(query, (now, limit)))
                )
            }
            return [
                SloDue(
                    job=job,
                    state=_decode(found[job.id][1]),
                    rev=found[job.id][0],
                    last_success=cast("Instant | None", connection.execute(_LAST_SUCCESS, (job.id,)).get),
                )
                for job in read_jobs(connection, list(found), payloads=False)
            ]

        return await self._read(read_due)

    async def save_slos(self, settled: Sequence[SloResult]) -> int:
        def complete(connection: apsw.Connection, now: Instant) -> int:
            accepted = 0
            for evaluation in settled:
                known = "SELECT tenant FROM slo WHERE job_id = ? AND rev = ?"
                tenant = connection.execute(known, (evaluation.job, evaluation.rev)).get
                if tenant is None:
                    continue
                accepted += 1
                if evaluation.next_check is None:
                    connection.execute("DELETE FROM slo WHERE job_id = ?", (evaluation.job,))
                else:
                    connection.execute(
                        "UPDATE slo SET rev = rev + 1, next_check = ?, state = ? WHERE job_id = ?",
                        (evaluation.next_check, encode(evaluation.state), evaluation.job),
                    )
                connection.executemany(
                    "INSERT INTO outbox (at, kind, tenant, runs) SELECT ?, ?, ?, json_array(?)"
                    " WHERE EXISTS (SELECT 1 FROM outbox_cursor)",
                    [(now, event, str(tenant), evaluation.job) for event in evaluation.events],
                )
            return accepted

        return await self._write(complete)

    async def slo_states(self, jobs: Collection[JobId]) -> dict[JobId, SloState]:
        query = "SELECT s.job_id, s.state FROM json_each(?) AS i CROSS JOIN slo s ON s.job_id = i.value"
        found = await self._read(
            lambda connection: cast("list[tuple[JobId, str]]", list(connection.execute(query, (encode(list(jobs)),))))
        )
        return {job: _decode(state) for job, state in found}

    async def slos_missed(self, tenant: str | None, limit: int) -> dict[JobId, SloState]:
        # Fields of objectives that are not missed are left out of the JSON.
        query = (
            "SELECT job_id, state FROM slo WHERE (?1 IS NULL OR tenant = ?1)"
            " AND (instr(state, '\"late_since\"') OR instr(state, '\"quiet_since\"')) ORDER BY job_id LIMIT ?2"
        )
        found = await self._read(
            lambda connection: cast("list[tuple[JobId, str]]", list(connection.execute(query, (tenant, limit))))
        )
        return {job: _decode(state) for job, state in found}
