"""Fills a store with scheduled runs, faster than they could be submitted.

One run is submitted; its rows are then multiplied by the database, with their own ids, shards and due times. The
columns are read from the database, so this knows nothing else of the schema.
"""

from contextlib import closing

import apsw

from bench.engine.load import Load
from bench.sizes import TASK
from mainspring.core.model.base.instant import DAY, HOUR, Instant

#: They come due between an hour and five days from now, in no order.
_FIRST, _LAST = HOUR, 5 * DAY
#: So many in a row share a shard, as those of one submitted batch do.
_BATCH = 1_000


async def add(load: Load, first: int, count: int, total: int, payload_bytes: int) -> None:
    """Add the runs number ``first`` up to ``first + count`` of ``total``, each with a payload of so many bytes."""
    runtime = await load.runtime()
    if "template" not in load.kept:
        payload = b'{"note":"' + b"x" * (payload_bytes - 11) + b'"}'
        template = (await load.new_runs(1, TASK, payload, delay=_LAST + HOUR))[0]
        await runtime.jobs.submit_many([template])
        load.kept["template"] = template.id
        load.kept["from"] = runtime.clock.now()
    if load.on_postgres:
        from bench.engine.future_postgres import multiply

        await multiply(load, first, count, total, runtime.store.shards, load.kept["from"])
    else:
        _multiply(load, first, count, total, runtime.store.shards, load.kept["from"])


async def settle_down(load: Load) -> None:
    """Have the database do now what it would do sooner or later: statistics, checkpoints."""
    if load.on_postgres:
        from bench.engine.future_postgres import vacuum

        await vacuum(load)
    else:
        with closing(apsw.Connection(load.settings.store)) as connection:
            connection.set_busy_timeout(60_000)
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def due_of(total: int) -> tuple[int, int]:
    """A step that meets every one of ``total`` places once, and how far apart they are."""
    step = next(prime for prime in (7_919, 7_907, 7_901) if total % prime)
    return step, (_LAST - _FIRST) // max(total, 1)


def _multiply(load: Load, first: int, count: int, total: int, shards: int, now: Instant) -> None:
    step, apart = due_of(total)
    shard = f"(n / {_BATCH} % {shards})"
    replaced = {
        "id": f"printf('%012x7%03x%04x%012x', {now // 1_000} + (n >> 12), n & 4095, 32768 | {shard}, n)",
        "shard": shard,
        "due": f"{now + _FIRST} + (n * {step} % {total}) * {apart}",
        "body": "t.body + 1 + n",
    }
    numbers = "WITH RECURSIVE numbers (n) AS (SELECT ? UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < ?)"
    with closing(apsw.Connection(load.settings.store)) as connection:
        connection.set_busy_timeout(60_000)
        connection.execute("PRAGMA cache_size = -262144")

        def columns(table: str) -> list[str]:
            return [str(row[1]) for row in connection.execute(f"PRAGMA table_info({table})")]

        with connection:
            for table, chosen, source in (
                ("body", {"id": "t.id + 1 + n"}, "t.id = (SELECT w.body FROM waiting w WHERE w.id = ?)"),
                ("waiting", replaced, "t.id = ?"),
            ):
                names = columns(table)
                values = ", ".join(chosen.get(name, f"t.{name}") for name in names)
                connection.execute(
                    f"{numbers} INSERT INTO {table} ({', '.join(names)}) "
                    f"SELECT {values} FROM numbers CROSS JOIN {table} t WHERE {source}",
                    (first, first + count, load.kept["template"]),
                )
