"""Two versions of the program on one schema: the marks of the newer migrations decide whether both may run."""

from collections.abc import Callable

import asyncpg
import pytest

from mainspring.core.model.base.errors import Conflict
from mainspring.core.model.base.instant import HOUR
from mainspring.core.model.cluster.clock_guard import ClockReading
from mainspring.core.ports.upkeep.schema import MigrationKind
from mainspring.core.store import Demand
from mainspring.stores import statements
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.postgres.database import PACKAGE
from mainspring.stores.postgres.schema import newest, read_migration
from tests.support.builders import a_run, a_worker

pytestmark = pytest.mark.postgres

KNOWN = newest()
EXPAND = (KNOWN + 1, "expand.sql", "-- expand\nALTER TABLE session ADD COLUMN colour text;")
CONTRACT = (KNOWN + 2, "contract.sql", f"-- contract: needs {KNOWN + 1}\nALTER TABLE session DROP COLUMN colour;")
UNMARKED = (KNOWN + 3, "unmarked.sql", "ALTER TABLE session ADD COLUMN size int;")


@pytest.fixture
def postgres_template() -> None:
    """The databases here are empty."""


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets which newer migrations the program knows."""
    known = statements.migrations(PACKAGE)

    def knows(*more: tuple[int, str, str]) -> None:
        monkeypatch.setattr(statements, "migrations", lambda _: [*known, *more])

    return knows


async def work(store: PostgresStore) -> None:
    """Submit and claim a run."""
    run = a_run()
    await store.submit([run])
    worker = await store.open_session(a_worker(ttl=HOUR))
    assert [held.id for held in await store.claim(worker, 1, [Demand("default", 10)])] == [run.id]
    await store.close_session(worker)


async def open_store(dsn: str) -> PostgresStore:
    store = PostgresStore(dsn, shards=4)
    await store.open()
    return store


@pytest.mark.slow
async def test_an_older_program_works_and_starts_on_an_expanded_schema(
    postgres_database: str, program: Callable[..., None]
) -> None:
    old = await open_store(postgres_database)
    program(EXPAND)
    new = await open_store(postgres_database)
    await work(old)
    await work(new)
    program()
    again = await open_store(postgres_database)
    await work(again)
    for store in (old, new, again):
        await store.close()


@pytest.mark.slow
async def test_a_contracting_migration_runs_on_request_when_no_older_program_is_left(
    postgres_database: str, program: Callable[..., None]
) -> None:
    program(EXPAND)
    old = await open_store(postgres_database)
    worker = await old.open_session(a_worker(name="old one", ttl=HOUR))
    program(EXPAND, CONTRACT)
    new = await open_store(postgres_database)
    assert await read_columns(postgres_database) >= {"colour"}
    # The session has not reported its schema version: its program may be an old one.
    with pytest.raises(Conflict, match="old one"):
        await PostgresStore(postgres_database, shards=4).migrate(contract=True)
    await new.record_clock([worker], ClockReading(0, 0), "2026f")
    done = await PostgresStore(postgres_database, shards=4).migrate(contract=True)
    assert [migration.kind for migration in done.applied] == [MigrationKind.CONTRACT]
    assert "colour" not in await read_columns(postgres_database)
    # A program that knows the migration before it works; an older one is refused.
    program(EXPAND)
    await work(old)
    await (await open_store(postgres_database)).close()
    program()
    with pytest.raises(Conflict, match="upgrade the program"):
        await open_store(postgres_database)
    await old.close()
    await new.close()


async def test_a_migration_without_a_mark_excludes_programs_that_do_not_know_it(
    postgres_database: str, program: Callable[..., None]
) -> None:
    program(UNMARKED)
    await (await open_store(postgres_database)).close()
    program()
    with pytest.raises(Conflict, match="upgrade the program"):
        await open_store(postgres_database)


async def test_a_new_store_applies_every_migration_at_once(
    postgres_database: str, program: Callable[..., None]
) -> None:
    program(EXPAND, CONTRACT)
    store = PostgresStore(postgres_database, shards=4)
    done = await store.migrate(contract=False)
    assert [migration.number for migration in done.applied] == [number for number, _, _ in statements.migrations("")]
    assert done.waiting == ()


def test_the_marks_of_migrations_are_read() -> None:
    kinds = [read_migration(*item).kind for item in (EXPAND, CONTRACT, UNMARKED)]
    assert kinds == [MigrationKind.EXPAND, MigrationKind.CONTRACT, MigrationKind.BREAKING]
    assert read_migration(*CONTRACT).needs == KNOWN + 1


async def read_columns(dsn: str) -> set[str]:
    connection = await asyncpg.connect(dsn)
    try:
        rows = await connection.fetch(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = 'mainspring' "
            "AND table_name = 'session'"
        )
        return {row["column_name"] for row in rows}
    finally:
        await connection.close()
