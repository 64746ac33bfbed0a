"""A PostgreSQL store with as many ended runs as one wants, written by SQL: over the API ten million take hours.

The shape is that of a store after a week: one run in five is a tick of a schedule, one in a hundred failed for good,
with few errors that are frequent and many that are rare, one in a hundred was cancelled.
"""

from collections.abc import Sequence

import asyncpg

from mainspring.core.model.base.ids import JobId
from mainspring.core.model.base.instant import DAY, MINUTE, Instant
from mainspring.core.model.schedules.job import version_body_id
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.postgres.partitions import FAMILIES, HISTORIES, compute_day

_CHUNK = 250_000
_TASKS = 20
_QUEUES = 3
_ERRORS = 200
_CHANGES_PER_RUN = 1 / 50

_NAMES = """
INSERT INTO name (kind, name) SELECT 2, 'task_' || n FROM generate_series(1, $1::int) AS n
UNION ALL SELECT 3, 'queue_' || n FROM generate_series(1, $2::int) AS n ON CONFLICT DO NOTHING
"""
# $1, $2: the numbers of the runs; $3: when the first was made; $4: microseconds between two, $5: tasks, $6: queues,
# $7: jobs, $8: where their payloads lie, $9: kinds of errors.
_RUNS = """
CREATE TEMP TABLE chunk AS
SELECT i, t, t / 86400000000 AS day,
       (lpad(to_hex(t / 1000), 12, '0') || '7' || lpad(to_hex(i & 4095), 3, '0') || to_hex(32768 + i % 8)
        || lpad(to_hex(i), 12, '0'))::uuid AS id,
       CASE WHEN i % 100 = 19 THEN 6 WHEN i % 100 = 7 THEN 7 ELSE 5 END AS state,
       ($5::int[])[1 + i % cardinality($5::int[])] AS task, ($6::int[])[1 + i % cardinality($6::int[])] AS queue,
       CASE WHEN i % 5 = 3 THEN ($7::uuid[])[1 + i / 5 % cardinality($7::uuid[])] END AS job_id,
       CASE WHEN i % 5 = 3 THEN ($8::uuid[])[1 + i / 5 % cardinality($8::uuid[])] END AS body_id,
       floor($9::int * random() ^ 3)::int AS error
FROM generate_series($1::bigint, $2::bigint) AS i, LATERAL (SELECT ($3::bigint + i * $4::float8)::bigint AS t) AS at
"""
_ENDED = """
INSERT INTO history (id, class, state, priority, attempt, lost, origin, tenant, queue, body_bucket, finished_at, due,
                     created_at, fence, started_at, session, scheduled_at, job_version, job_id, body_id, result, reason,
                     error, of_task)
SELECT id, CASE state WHEN 5 THEN 1 ELSE 2 END, state, 5, 1, 0, CASE WHEN job_id IS NULL THEN 1 ELSE 2 END, $1, queue,
       CASE WHEN job_id IS NOT NULL THEN 0 WHEN state = 5 THEN day ELSE -1 END, t + 150000, t, t, i + 1, t + 20000, 1,
       CASE WHEN job_id IS NOT NULL THEN t END, CASE WHEN job_id IS NOT NULL THEN 1 END, job_id, body_id,
       CASE state WHEN 5 THEN '{"done": true}'::bytea END,
       CASE state WHEN 6 THEN 'error' WHEN 7 THEN 'cancelled by somebody' END,
       CASE state WHEN 6 THEN 'RuntimeError: error of kind ' || error END,
       CASE WHEN job_id IS NULL THEN task END
FROM chunk;
INSERT INTO body (bucket, id, task, payload, tenant, about)
SELECT CASE WHEN state = 5 THEN day ELSE -1 END, id, task, '{"order": 4711, "customer": "Ada"}'::bytea, $1,
       CASE WHEN i % 100 = 1 THEN '{"tags":["nightly"]}'::bytea END
FROM chunk WHERE job_id IS NULL;
INSERT INTO label (bucket, id, tenant, label)
SELECT CASE WHEN state = 5 THEN day ELSE -1 END, id, $1, 'nightly' FROM chunk WHERE job_id IS NULL AND i % 100 = 1;
INSERT INTO ledger (job_id, scheduled_at, decision, job_version, epoch, run_id, tenant)
SELECT job_id, t, 1, 1, 1, id, $1 FROM chunk WHERE job_id IS NOT NULL;
INSERT INTO attempt (run_id, fence, number, outcome, session, started_at, ended_at, reason, error, tenant, queue,
                     job_id)
SELECT id, i + 1, 1, 2, 1, t + 20000, t + 150000, 'error', 'RuntimeError: error of kind ' || error, $1, queue, job_id
FROM chunk WHERE state = 6;
INSERT INTO dead_letter (run_id, tenant, task, queue, at, fingerprint)
SELECT id, $1, task, queue, t + 150000, substr(md5(error::text), 1, 16) FROM chunk WHERE state = 6;
DROP TABLE chunk
"""
# $2: since when; $3: until when; $4: runs a minute and queue; $5: queues.
_MINUTES = """
INSERT INTO minute
SELECT at, $1, queue, $4 * 98 / 100, $4 / 100, $4 / 100, 0, 0, $4, $4 * 20000, 90000, $4 * 130000, 900000
FROM generate_series($2::bigint, $3::bigint, 60000000) AS at, unnest($5::int[]) AS queue ON CONFLICT DO NOTHING
"""
# A day, as a scheduler and the roll-up leave it: the queues one by one and all together, and spans in ten buckets.
_LOADS = """
INSERT INTO load
SELECT at, tenant, queue, 100, 20, 5000000
FROM generate_series($2::bigint, $3::bigint, 60000000) AS at,
     (SELECT -1 AS tenant, 0 AS queue UNION ALL SELECT $1, unnest($4::int[])) AS seen ON CONFLICT DO NOTHING
"""
_SEEN = "INSERT INTO load_seen SELECT generate_series($1::bigint, $2::bigint, 60000000) ON CONFLICT DO NOTHING"
_TIMINGS = """
INSERT INTO timing SELECT at, $1, queue, bucket, 10, 10
FROM generate_series($2::bigint, $3::bigint, 300000000) AS at, unnest($4::int[]) AS queue,
     generate_series(12, 21) AS bucket
ON CONFLICT DO NOTHING
"""
_USAGE = """
INSERT INTO usage SELECT $1, day, task, '00000000-0000-0000-0000-000000000000', unit, 1000
FROM generate_series($2::bigint, $3::bigint, 86400000000) AS day, unnest($4::int[]) AS task,
     unnest(ARRAY['wall', 'attempts']) AS unit ON CONFLICT DO NOTHING
"""
_AUDIT = """
INSERT INTO audit (at, count, tenant, author, action, target, why)
SELECT $2::bigint + i * $3::float8, 1, 'default', 'user:' || i % 50,
       (ARRAY['jobs.put', 'jobs.pause', 'jobs.resume', 'runs.cancel'])[1 + i % 4],
       ($4::text[])[1 + i % cardinality($4::text[])], ''
FROM generate_series(1, $1::bigint) AS i
"""


def fingerprint_of_most() -> str:
    """The error that is the most frequent."""
    return "cfcd208495d565ef"


async def write_history(
    dsn: str, store: PostgresStore, runs: int, jobs: Sequence[JobId], now: Instant, days: int = 7
) -> None:
    """``jobs`` have ticks; they are in the store already."""
    begin, step = now - days * DAY, days * DAY / runs
    all_days = set(range(compute_day(begin), compute_day(now) + 1))
    await store._partitions.make(dict.fromkeys(FAMILIES.keys() - HISTORIES.values(), all_days))
    connection = await asyncpg.connect(dsn, server_settings={"search_path": store._db.schema})
    try:
        await connection.execute("SET synchronous_commit = off; SET maintenance_work_mem = '512MB'")
        await connection.execute(_NAMES, _TASKS, _QUEUES)
        tenant = await connection.fetchval("SELECT id FROM name WHERE kind = 1 AND name = 'default'")
        tasks, queues = [
            [row["id"] for row in await connection.fetch("SELECT id FROM name WHERE kind = $1", kind)]
            for kind in (2, 3)
        ]
        bodies = [version_body_id(job, 1) for job in jobs]
        for first in range(0, runs, _CHUNK):
            last = min(first + _CHUNK, runs) - 1
            await connection.execute(_RUNS, first, last, begin, step, tasks, queues, list(jobs), bodies, _ERRORS)
            await connection.execute(_ENDED.replace("$1", str(int(tenant))))
        a_minute = max(int(runs / (days * 1440) / len(queues)), 1)
        await connection.execute(_MINUTES, tenant, begin // MINUTE * MINUTE, now - MINUTE, a_minute, queues)
        day = (now - DAY) // (5 * MINUTE) * 5 * MINUTE
        await connection.execute(_LOADS, tenant, day, now - MINUTE, queues)
        await connection.execute(_SEEN, day, now - MINUTE)
        await connection.execute(_TIMINGS, tenant, day, now - MINUTE, queues)
        await connection.execute(_USAGE, tenant, begin // DAY * DAY, now, tasks)
        changes = int(runs * _CHANGES_PER_RUN)
        await connection.execute(_AUDIT, changes, begin, days * DAY / max(changes, 1), list(jobs))
        await connection.execute("UPDATE rolled_up SET until = now_us()")
        await connection.execute("VACUUM (ANALYZE)")
    finally:
        await connection.close()
