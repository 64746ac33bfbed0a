"""The same on PostgreSQL."""

import asyncio

import asyncpg

from bench.engine.future import due_of
from bench.engine.load import Load
from mainspring.core.model.base.instant import DAY, HOUR, Instant

_BATCH = 1_000


async def multiply(load: Load, first: int, count: int, total: int, shards: int, now: Instant) -> None:
    schema = load.settings.schema
    step, apart = due_of(total)
    run = (
        f"(lpad(to_hex({now // 1_000} + (n >> 12)), 12, '0') || '7' || lpad(to_hex(n & 4095), 3, '0') "
        f"|| lpad(to_hex(32768 | (n / {_BATCH} % {shards})), 4, '0') || lpad(to_hex(n), 12, '0'))::uuid"
    )
    due = f"({now + HOUR} + (n * {step} % {total}) * {apart})"
    bucket = f"{due} / {DAY}"
    replaced = {
        "waiting": {"id": run, "shard": f"n / {_BATCH} % {shards}", "due": due, "body_bucket": bucket},
        "body": {"id": run, "bucket": bucket},
    }

    async def fill(table: str, chosen: dict[str, str]) -> None:
        connection = await _connect(load)
        try:
            names = await connection.fetch(
                "SELECT column_name FROM information_schema.columns WHERE table_schema = $1 AND table_name = $2 "
                "ORDER BY ordinal_position",
                schema,
                table,
            )
            columns = [row[0] for row in names]
            values = ", ".join(chosen.get(name, f"t.{name}") for name in columns)
            await connection.execute(
                f"INSERT INTO {schema}.{table} ({', '.join(columns)}) "
                f"SELECT {values} FROM {schema}.{table} t, generate_series($1::bigint, $2::bigint) n WHERE t.id = $3",
                first,
                first + count - 1,
                load.kept["template"],
            )
        finally:
            await connection.close()

    # Both tables at once: no process reads them yet.
    await asyncio.gather(*(fill(table, chosen) for table, chosen in replaced.items()))


async def vacuum(load: Load) -> None:
    connection = await _connect(load)
    try:
        for table in ("waiting", "body", "run"):
            await connection.execute(f"VACUUM (ANALYZE) {load.settings.schema}.{table}")
    finally:
        await connection.close()


async def _connect(load: Load) -> "asyncpg.Connection[asyncpg.Record]":
    return await asyncpg.connect(load.settings.store, server_settings={"jit": "off", "synchronous_commit": "off"})
