"""Daily partitions, made ahead and dropped after their retention. Those of the longer retention classes are wider."""

import re

import asyncpg

from mainspring.core.model.base.instant import DAY, Instant
from mainspring.core.model.runs.retention import CLASSES
from mainspring.stores.postgres.codes import CLASS_WIDTH, DAYS_AHEAD, FOREVER_BUCKET, KEPT_BUCKET, UNITS
from mainspring.stores.postgres.database import Connection, Database, lock_turn

#: The history tables of all retention classes but the standard one, by class number.
HISTORIES = {number: f"history_{name}" for number, name in enumerate(CLASSES) if number}
#: Parent table → the width of one partition, in the unit of the partition key.
FAMILIES: dict[str, int] = {
    "body": 1,
    "label": 1,
    "history_succeeded": DAY,
    "history_unsuccessful": DAY,
    "attempt": DAY,
    "ledger": DAY,
    "log": DAY,
    **{family: UNITS[number] * DAY for number, family in HISTORIES.items()},
}
_STANDARD = FAMILIES.keys() - HISTORIES.values()
_PARTITION = re.compile(r"(\w+)_d(\d+)")


class Partitions:
    def __init__(self, database: Database) -> None:
        self._db = database
        #: Days whose partitions this process has made ahead; none of them is about to be dropped.
        self._made_ahead: set[int] = set()
        #: Retention classes that have partitions.
        self._classes: set[int] = set()

    def forget(self) -> None:
        self._made_ahead = set()
        self._classes = set()

    async def make_ledger(self, days: set[int]) -> None:
        """Make the ledger partitions of ticks.

        A tick can be older than the store, so its day is made when needed, and again after it was dropped.
        """
        missing = days - self._made_ahead
        if missing:
            await self.make({"ledger": missing})

    async def make_ledger_within(self, connection: Connection, days: set[int]) -> None:
        """Make ledger partitions inside a transaction, for a caller that learns only there which ticks there are."""
        missing = sorted(days - self._made_ahead)
        if missing:
            await self._create(connection, [("ledger", day) for day in missing])

    async def make_ahead(self, today: int) -> None:
        """Make the partitions of yesterday (clocks differ), of today and of the coming days."""
        ahead = set(range(today - 1, today + DAYS_AHEAD))
        wanted = {family: set(ahead) for family in _STANDARD}
        existing = await self.days()
        self._classes |= {number for number in HISTORIES if _kept(number) in existing.get("body", ())}
        for number in self._classes:
            units = {day // UNITS[number] for day in ahead}
            wanted[HISTORIES[number]] = units
            buckets = {number * CLASS_WIDTH + unit for unit in (*units, FOREVER_BUCKET, KEPT_BUCKET)}
            wanted["body"] |= buckets
            wanted["label"] |= buckets
        await self.make(wanted, existing)
        self._made_ahead = ahead

    async def make_classes(self, numbers: set[int], today: int) -> None:
        """Make the partitions of retention classes before their first run.

        A class that is not used costs no partitions.
        """
        if not numbers <= self._classes:
            self._classes |= numbers
            await self.make_ahead(today)

    async def make(self, wanted: dict[str, set[int]], existing: dict[str, set[int]] | None = None) -> None:
        if existing is None:
            existing = await self.days()
        missing = [
            (family, day) for family, days in wanted.items() for day in sorted(days - existing.get(family, set()))
        ]
        if not missing:
            return

        async def work(connection: Connection) -> None:
            await lock_turn(connection, f"{self._db.schema}.partitions")
            await self._create(connection, missing)

        await self._db.transaction(work)

    async def _create(self, connection: Connection, missing: list[tuple[str, int]]) -> None:
        schema = self._db.schema
        await self._lock(connection)
        for family, day in missing:
            name, size = f"{family}_d{day}", FAMILIES[family]
            # The parent does not exist yet if a later migration makes it.
            if not await connection.fetchval(
                "SELECT to_regclass($1) IS NULL AND to_regclass($2) IS NOT NULL",
                f"{schema}.{name}",
                f"{schema}.{family}",
            ):
                continue
            # LIKE and ATTACH lock the parent less strictly than CREATE … PARTITION OF, so live work continues.
            await connection.execute(
                f"CREATE TABLE {schema}.{name} (LIKE {schema}.{family} INCLUDING ALL);"
                f"ALTER TABLE {schema}.{family} ATTACH PARTITION {schema}.{name} "
                f"FOR VALUES FROM ({day * size}) TO ({(day + 1) * size})"
            )

    async def days(self) -> dict[str, set[int]]:
        """Return the days that each parent table has partitions for."""
        found: dict[str, set[int]] = {}
        for name in await self._tables("c.relispartition"):
            family, day = _split(name)
            found.setdefault(family, set()).add(day)
        return found

    async def _tables(self, condition: str) -> list[str]:
        async def work(connection: Connection) -> list[asyncpg.Record]:
            return await connection.fetch(
                "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
                f"WHERE n.nspname = $1 AND c.relkind = 'r' AND c.relname ~ '_d[0-9]+$' AND {condition}",
                self._db.schema,
            )

        names = [row["relname"] for row in await self._db.run(work)]
        return [name for name in names if _PARTITION.fullmatch(name) and _split(name)[0] in FAMILIES]

    async def drop(self, family: str, day: int) -> None:
        """Detach a partition without blocking, then drop it. A detach that a crash left half done is finished first."""
        schema, name = self._db.schema, f"{family}_d{day}"

        async def work(connection: Connection) -> None:
            pending = await connection.fetchval(
                "SELECT inhdetachpending FROM pg_inherits WHERE inhrelid = to_regclass($1)", f"{schema}.{name}"
            )
            if pending is not None:
                how = "FINALIZE" if pending else "CONCURRENTLY"
                await connection.execute(f"ALTER TABLE {schema}.{family} DETACH PARTITION {schema}.{name} {how}")
            await connection.execute(f"DROP TABLE IF EXISTS {schema}.{name}")

        await self._db.run(work)

    async def drop_orphans(self) -> int:
        """Drop tables that were detached but not dropped; return how many."""
        names = await self._tables("NOT c.relispartition")
        for name in names:
            await self.drop_orphan(*_split(name))
        return len(names)

    async def drop_orphan(self, family: str, day: int) -> None:
        schema, name = self._db.schema, f"{family}_d{day}"

        async def work(connection: Connection) -> None:
            # Another process may have dropped it since, and made it again.
            await self._lock(connection)
            attached = await connection.fetchval(
                "SELECT relispartition FROM pg_class WHERE oid = to_regclass($1)", f"{schema}.{name}"
            )
            if attached is False:
                await connection.execute(f"DROP TABLE IF EXISTS {schema}.{name}")

        await self._db.transaction(work)

    async def _lock(self, connection: Connection) -> None:
        await connection.execute("SELECT pg_advisory_xact_lock(hashtext($1))", f"{self._db.schema}.partitions")


def _split(name: str) -> tuple[str, int]:
    match = _PARTITION.fullmatch(name)
    assert match is not None
    return match.group(1), int(match.group(2))


def _kept(number: int) -> int:
    return number * CLASS_WIDTH + KEPT_BUCKET


def compute_day(instant: Instant) -> int:
    return instant // DAY
