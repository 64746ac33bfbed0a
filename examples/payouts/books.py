"""The company's own tables: who drives where, and what was paid. The scheduler knows nothing of them.

On PostgreSQL they lie in the database of the store; otherwise in a file of their own.
"""

import asyncio
import sqlite3
from contextlib import closing
from typing import Any

import asyncpg

FILE = "payouts_books.db"


def on_postgresql(store: str) -> bool:
    return store.startswith("postgresql:")


async def pay(db: asyncpg.Connection, driver: str, period: str) -> None:
    """In the transaction of the caller. There is no key here that would refuse a second row."""
    await db.execute(_PAY, driver, period)


def pay_by_key(driver: str, period: str) -> None:
    """The same payout again changes nothing."""
    _ask_file(f"{_PAY} ON CONFLICT DO NOTHING", driver, period)


async def drivers_of(store: str, city: str) -> list[str]:
    return [name for (name,) in await ask(store, "SELECT name FROM driver WHERE city = $1 ORDER BY name", city)]


async def payments(store: str, period: str) -> list[str]:
    """Who was paid, once for each time."""
    return [name for (name,) in await ask(store, "SELECT driver FROM payment WHERE period = $1", period)]


async def open_books(store: str, city: str, drivers: int) -> None:
    key = "" if on_postgresql(store) else ", PRIMARY KEY (driver, period)"
    await ask(store, "CREATE TABLE IF NOT EXISTS driver (name text PRIMARY KEY, city text, weekly_cents integer)")
    await ask(store, f"CREATE TABLE IF NOT EXISTS payment (driver text, period text, cents integer{key})")
    await ask(
        store,
        """
        WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < CAST($2 AS integer))
        INSERT INTO driver SELECT $1 || ' ' || n, $1, 50000 FROM numbers WHERE true ON CONFLICT DO NOTHING
        """,
        city,
        drivers,
    )


async def ask(store: str, statement: str, *values: str | int) -> list[Any]:
    if not on_postgresql(store):
        return await asyncio.to_thread(_ask_file, statement, *values)
    # A role that is called as Mainspring's schema would make its tables there.
    connection = await asyncpg.connect(store, server_settings={"search_path": "public"})
    try:
        return [tuple(row) for row in await connection.fetch(statement, *values)]
    finally:
        await connection.close()


def _ask_file(statement: str, *values: str | int) -> list[Any]:
    with closing(sqlite3.connect(FILE, timeout=30)) as db, db:
        # $1, $2 … as in PostgreSQL: to SQLite these are names.
        return db.execute(statement, {str(number): value for number, value in enumerate(values, 1)}).fetchall()


_PAY = "INSERT INTO payment SELECT name, $2, weekly_cents FROM driver WHERE name = $1"
