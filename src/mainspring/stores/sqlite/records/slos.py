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
from mainspring.stores.sqlite.fetch import fetch_rows
from mainspring.stores.sqlite.rows.encoding import encode
from mainspring.stores.sqlite.work.jobs import read_jobs

_decode = msgspec.json.Decoder(SloState).decode
# The newest 1,000 runs suffice to find the last success, and bound the cost of the query.
_LAST_SUCCESS = (
    "SELECT max(finished_at) FROM ("
    " SELECT finished_at, state FROM history WHERE job_id = :job ORDER BY id DESC LIMIT 1000) WHERE state = 'succeeded'"
)


class _SloRow(msgspec.Struct, frozen=True):
    job_id: JobId
    rev: int
    state: str


class SqliteSlos(SqliteBase):
    async def slos_due(self, limit: int) -> list[SloDue]:
        now = self._time.now()

        def read_due(connection: apsw.Connection) -> list[SloDue]:
            query = "SELECT job_id, rev, state FROM slo WHERE next_check <= :now ORDER BY next_check LIMIT :limit"
            rows = fetch_rows(connection, _SloRow, query, {"now": now, "limit": limit})
            found = {row.job_id: row for row in rows}
            return [
                SloDue(
                    job=job,
                    state=_decode(found[job.id].state),
                    rev=found[job.id].rev,
                    last_success=cast("Instant | None", connection.execute(_LAST_SUCCESS, {"job": job.id}).get),
                )
                for job in read_jobs(connection, list(found), payloads=False)
            ]

        return await self._read(read_due)

    async def save_slos(self, results: Sequence[SloResult]) -> int:
        def complete(connection: apsw.Connection, now: Instant) -> int:
            accepted = 0
            for evaluation in results:
                known = "SELECT tenant FROM slo WHERE job_id = :job AND rev = :rev"
                tenant = connection.execute(known, {"job": evaluation.job, "rev": evaluation.rev}).get
                if tenant is None:
                    continue
                accepted += 1
                if evaluation.next_check is None:
                    connection.execute("DELETE FROM slo WHERE job_id = :job_id", {"job_id": evaluation.job})
                else:
                    connection.execute(
                        "UPDATE slo SET rev = rev + 1, next_check = :next_check, state = :state WHERE job_id = :job_id",
                        {
                            "next_check": evaluation.next_check,
                            "state": encode(evaluation.state),
                            "job_id": evaluation.job,
                        },
                    )
                connection.executemany(
                    "INSERT INTO outbox (at, kind, tenant, runs) SELECT :at, :kind, :tenant, json_array(:job)"
                    " WHERE EXISTS (SELECT 1 FROM outbox_cursor)",
                    [
                        {"at": now, "kind": event, "tenant": str(tenant), "job": evaluation.job}
                        for event in evaluation.events
                    ],
                )
            return accepted

        return await self._write(complete)

    async def slo_states(self, jobs: Collection[JobId]) -> dict[JobId, SloState]:
        query = (
            "SELECT s.job_id AS job_id, s.rev AS rev, s.state AS state"
            " FROM json_each(:jobs) AS i CROSS JOIN slo s ON s.job_id = i.value"
        )
        return await self._read_states(query, jobs=encode(list(jobs)))

    async def slos_missed(self, tenant: str | None, limit: int) -> dict[JobId, SloState]:
        # Fields of objectives that are not missed are left out of the JSON.
        query = (
            "SELECT job_id, rev, state FROM slo WHERE (:tenant IS NULL OR tenant = :tenant)"
            " AND (instr(state, '\"late_since\"') OR instr(state, '\"quiet_since\"')) ORDER BY job_id LIMIT :limit"
        )
        return await self._read_states(query, tenant=tenant, limit=limit)

    async def _read_states(self, query: str, **values: str | int | None) -> dict[JobId, SloState]:
        rows = await self._read(lambda connection: fetch_rows(connection, _SloRow, query, values))
        return {row.job_id: _decode(row.state) for row in rows}
