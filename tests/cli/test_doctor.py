"""``mainspring doctor`` finds each problem that a test causes on a real store."""

import asyncio
import json
from pathlib import Path
from random import Random
from typing import Any

import apsw
import asyncpg
import pytest
from typer.testing import CliRunner, Result

from mainspring.cli.main import application
from mainspring.config.loading import load
from mainspring.config.servers.blobs import make_run_logs
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import DAY, HOUR, MILLISECOND, MINUTE, SECOND
from mainspring.core.model.cluster.diagnosis import Level
from mainspring.core.model.limits.queues import NO_POLICY, QueuePolicy
from mainspring.core.model.runs.completion import complete_failure, complete_release
from mainspring.core.model.runs.run import UNKNOWN_TASK_DELAY
from mainspring.core.model.schedules.job import JobState
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.catalog import Pause
from mainspring.core.ports.storage.upkeep import Retention
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.core.store import Demand, NewSession, Store
from mainspring.stores import statements
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.postgres.database import PACKAGE
from mainspring.stores.postgres.upkeep import findings as postgres_findings
from mainspring.stores.postgres.upkeep.findings import list_expected_indexes
from mainspring.stores.sqlite import SqliteStore
from tests.support.builders import a_job, a_policy, a_run, a_spec, a_worker, every
from tests.support.clock import ManualClock
from tests.support.databases import as_administrator
from tests.support.pgbouncer import through_pgbouncer
from tests.support.waiting import eventually

SHARDS = 4
ALL = tuple(range(SHARDS))


async def run(*arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, application, ["doctor", *arguments])


async def examine(store: str) -> dict[str, dict[str, str]]:
    """Run ``doctor`` and return its findings by check; the last one of each check."""
    result = await run("--store", store, "--json")
    assert result.exit_code in (0, 1), (result.output, result.exception)
    report = json.loads(result.stdout)
    levels = [finding["level"] for finding in report["findings"]]
    assert (report["problems"], report["warnings"]) == (levels.count("problem"), levels.count("warning"))
    assert result.exit_code == (1 if report["problems"] else 0)
    for finding in report["findings"]:
        assert bool(finding["advice"]) == (finding["level"] != "ok"), finding
    return {finding["check"]: finding for finding in report["findings"]}


def list_bad(report: dict[str, dict[str, str]]) -> set[str]:
    return {check for check, finding in report.items() if finding["level"] != "ok"}


@pytest.fixture
async def postgres(postgres_database: str) -> str:
    store = PostgresStore(postgres_database, shards=SHARDS)
    await store.open()
    await store.close()
    return postgres_database


async def execute(dsn: str, *statements: str) -> None:
    connection = await asyncpg.connect(as_administrator(dsn))
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


async def fill(store: Any) -> None:
    """Cause many problems in a store."""
    await store.put_jobs([a_job(a_spec(schedule=every(10 * SECOND)))])
    await store.submit([a_run(delay=SECOND), a_run(queue="lonely"), a_run(task="renamed"), a_run()])
    # Where tenants take turns, runs with the same labels have several claim groups.
    for policy, runs in ((QueuePolicy(fair=True), 2), (NO_POLICY, 1)):
        await store.put_queue_policy("default", policy, Author("me"))
        await store.submit([a_run(policy=a_policy(requires=("datacenter=mars", "gpu=a100"))) for _ in range(runs)])
    await store.attach_reader("slow")
    await store.attach_reader("api:of a process that ended", 10 * MINUTE)
    session = await store.open_session(a_worker(ttl=SECOND, name="gone"))
    await store.submit([a_run(queue="failing", policy=a_policy(retries=0))])
    held = await store.claim(session, 1, [Demand("failing", 1)])
    await store.complete([complete_failure(run, "boom", Random(1), now=await store.now()) for run in held])
    await store.pause(Pause(tenant=None, queue="mail"), Author("me"))
    [digest, weekly] = [a_job(a_spec(name=name, schedule=every(HOUR))) for name in ("digest", "weekly")]
    await store.put_jobs([digest, weekly])
    await store.set_jobs_state([digest.id], JobState.PAUSED, Author("me"))
    # This pause has ended by the time of the check.
    resume_at = await store.now() + SECOND
    await store.set_jobs_state([weekly.id], JobState.PAUSED, Author("me"), resume_at=resume_at)


async def add_worker(store: Any) -> None:
    """Register a live worker that serves only one queue."""
    worker = NewSession(name="alive", kind="worker", ttl=HOUR, queues=("default",), tasks=("greet",))
    await store.open_session(worker)


#: At the end of an hour, their ticks would be due after the clock has moved.
PAUSED_JOBS = "SELECT id FROM mainspring.job WHERE name IN ('digest', 'weekly')"
FINDINGS = {
    "schedulers": ("problem", "no live scheduler: no schedule fires"),
    "queues": ("problem", "1 runs wait in queues that no worker serves: lonely"),
    "tasks": ("problem", "1 runs wait for tasks that no live worker knows: renamed"),
    "labels": (
        "problem",
        "3 runs wait for labels that no live worker of their queue and task has: datacenter=mars with gpu=a100",
    ),
    "dead workers": ("problem", "1 expired, and still hold runs or shards: gone"),
    "staging": ("problem", "1 scheduled runs are due and not queued, the oldest for"),
    "firing": ("problem", "1 schedules are due and have not fired, the oldest for"),
    "event readers": ("warning", "slow is"),
    "dead letters": ("warning", "1 runs have failed for good"),
    "pauses": ("warning", "runs of queue mail of every tenant do not start; digest of default does not fire"),
}


def check_findings(report: dict[str, dict[str, str]]) -> None:
    for check, (level, says) in FINDINGS.items():
        assert report[check]["level"] == level, report[check]
        assert says in report[check]["says"]
    assert report["workers"]["says"] == "1 live; by queue: default 1"


async def test_doctor_finds_every_scheduling_problem_on_sqlite(tmp_path: Path) -> None:
    clock = ManualClock(SystemClock().now() - 5 * MINUTE)
    store = SqliteStore(tmp_path / "mainspring.db", clock, shards=SHARDS)
    await store.open()
    await fill(store)
    clock.advance(5 * MINUTE)
    await add_worker(store)
    await store.close()
    check_findings(await examine(str(tmp_path / "mainspring.db")))


@pytest.mark.postgres
async def test_doctor_finds_every_scheduling_problem_on_postgresql(postgres: str) -> None:
    store = PostgresStore(postgres, shards=SHARDS)
    await store.open()
    await fill(store)
    await store.close()
    await execute(
        postgres,
        f"UPDATE mainspring.waiting SET due = due - {5 * MINUTE}",
        f"UPDATE mainspring.schedule SET next_fire = next_fire - {5 * MINUTE} WHERE job_id NOT IN ({PAUSED_JOBS})",
        f"UPDATE mainspring.schedule SET resume_at = resume_at - {5 * MINUTE}",
        f"UPDATE mainspring.session SET lease_until = lease_until - {5 * MINUTE}",
        f"UPDATE mainspring.outbox SET at = at - {5 * MINUTE}",
    )
    await store.open()
    await add_worker(store)
    await store.close()
    check_findings(await examine(postgres))


async def release_unknown_task(store: Any) -> None:
    """Claim a run and release it, as a worker does that does not know the task. Others come back or are due later."""
    alive = NewSession(name="alive", kind="worker", ttl=HOUR, queues=("default",), tasks=("greet",))
    session = await store.open_session(alive)
    await store.submit([a_run(task="renamed")])
    held = await store.claim(session, 1, [Demand("default", 1)])
    await store.complete([complete_release(run, "no handler for task", UNKNOWN_TASK_DELAY) for run in held])
    await store.submit([a_run(task="of the future", delay=SECOND), a_run(task="of tomorrow", delay=DAY)])


def check_released(report: dict[str, dict[str, str]]) -> None:
    assert report["tasks"]["says"] == "1 runs wait for tasks that no live worker knows: renamed"
    assert report["tasks"]["level"] == "problem"


async def test_doctor_reports_unknown_tasks_between_two_claims_on_sqlite(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "mainspring.db", SystemClock(), shards=SHARDS)
    await store.open()
    await release_unknown_task(store)
    await store.close()
    check_released(await examine(str(tmp_path / "mainspring.db")))


@pytest.mark.postgres
async def test_doctor_reports_unknown_tasks_between_two_claims_on_postgresql(postgres: str) -> None:
    store = PostgresStore(postgres, shards=SHARDS)
    await store.open()
    await release_unknown_task(store)
    await store.close()
    check_released(await examine(postgres))


async def add_processes(store: Store) -> None:
    await store.join("scheduler", HOUR)  # type: ignore[attr-defined]
    await store.open_session(a_worker(ttl=HOUR))


async def test_doctor_finds_nothing_wrong_with_a_healthy_sqlite_store(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "mainspring.db", SystemClock(), shards=SHARDS)
    await store.open()
    await add_processes(store)
    await store.close()
    report = await examine(str(tmp_path / "mainspring.db"))
    # The disk of the machine that runs the tests may be anything.
    assert list_bad(report) - {"file system", "disk space"} == set()
    assert report["integrity"]["says"] == "the file is whole"


@pytest.mark.postgres
async def test_doctor_finds_nothing_wrong_with_a_healthy_postgresql_store(postgres: str) -> None:
    store = PostgresStore(postgres, shards=SHARDS)
    await store.open()
    await add_processes(store)
    await store.close()
    report = await examine(postgres)
    # The server of the tests is fast rather than safe, other tests use it, and the role is not an administrator's.
    of_the_server = {"durability", "transactions", "connections", "planned connections", "row-level security"}
    # A busy machine answers late, and then the clocks seem to differ, too.
    of_the_load = {"latency", "clock"}
    assert list_bad(report) - of_the_server - of_the_load == set()
    assert report["pooler"]["says"] == "none"
    assert report["indexes"]["says"].startswith("all ")


@pytest.mark.postgres
async def test_the_migrations_create_the_indexes_that_doctor_expects(postgres: str) -> None:
    connection = await asyncpg.connect(postgres)
    rows = await connection.fetch(
        "SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid "
        "JOIN pg_class t ON t.oid = i.indrelid JOIN pg_namespace n ON n.oid = c.relnamespace "
        "LEFT JOIN pg_constraint k ON k.conindid = i.indexrelid "
        "WHERE n.nspname = 'mainspring' AND NOT t.relispartition AND k.oid IS NULL"
    )
    await connection.close()
    assert {row["relname"] for row in rows} - list_expected_indexes() <= {"history_succeeded_id_idx"}
    assert list_expected_indexes() <= {row["relname"] for row in rows}


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("statements", "check", "level", "says"),
    [
        (["DROP INDEX mainspring.run_ready"], "indexes", "problem", "1 are missing: run_ready"),
        (
            ["UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'mainspring.waiting_due'::regclass"],
            "indexes",
            "problem",
            "1 are not valid: waiting_due",
        ),
        (["ALTER TABLE mainspring.run SET UNLOGGED"], "durable tables", "problem", "run would be empty after a crash"),
        (
            ["INSERT INTO mainspring.migration (version, name, needs) VALUES (9999, 'x', 9999)"],
            "schema",
            "problem",
            "version 9999; this program",
        ),
        (
            ["UPDATE mainspring.migration SET name = '0001_engine.sql' WHERE version = 1"],
            "schema",
            "problem",
            "made by an older checkout",
        ),
        (["DROP SCHEMA mainspring CASCADE"], "schema", "warning", "there is none yet"),
    ],
)
async def test_doctor_finds_a_wrong_schema(
    postgres: str, statements: list[str], check: str, level: str, says: str
) -> None:
    await execute(postgres, *statements)
    finding = (await examine(postgres))[check]
    assert (finding["level"], says in finding["says"]) == (level, True), finding


@pytest.mark.postgres
async def test_doctor_finds_missing_and_old_partitions(postgres: str) -> None:
    today = SystemClock().now() // DAY
    await execute(
        postgres,
        # Tomorrow's as well: midnight may pass before doctor looks.
        f"DROP TABLE mainspring.ledger_d{today}, mainspring.ledger_d{today + 1}",
        f"CREATE TABLE mainspring.attempt_d{today - 90} (LIKE mainspring.attempt INCLUDING ALL)",
        f"ALTER TABLE mainspring.attempt ATTACH PARTITION mainspring.attempt_d{today - 90} "
        f"FOR VALUES FROM ({(today - 90) * DAY}) TO ({(today - 89) * DAY})",
    )
    report = await examine(postgres)
    assert report["partitions"]["level"] == "problem"
    assert report["partitions"]["says"].endswith(" are missing, the first of ledger for today")
    assert report["retention"]["level"] == "warning"
    assert f"attempt_d{today - 90}" in report["retention"]["says"]


@pytest.mark.postgres
async def test_doctor_finds_that_synchronous_commit_is_off(postgres: str) -> None:
    name = postgres.rpartition("/")[2]
    await execute(postgres, f"ALTER DATABASE {name} SET synchronous_commit = off")
    finding = (await examine(postgres))["durability"]
    assert finding["level"] == "problem"


@pytest.mark.postgres
async def test_doctor_names_a_transaction_that_was_left_open(postgres: str) -> None:
    connection = await asyncpg.connect(postgres, server_settings={"application_name": "forgetful"})
    try:
        await connection.execute("BEGIN")
        await connection.fetch("SELECT count(*) FROM mainspring.run")
        says = (await examine(postgres))["transactions"]["says"]
        assert "forgetful), idle in transaction" in says
    finally:
        await connection.close()


@pytest.mark.postgres
async def test_doctor_warns_of_dead_rows(postgres: str) -> None:
    await execute(
        postgres,
        "ALTER TABLE mainspring.key_lock SET (autovacuum_enabled = off)",
        "INSERT INTO mainspring.key_lock (key) SELECT generate_series(1, 120000)",
        "DELETE FROM mainspring.key_lock",
    )

    async def find() -> dict[str, str] | None:
        found = (await examine(postgres))["vacuum"]
        return None if found["level"] == "ok" else found

    # The server counts dead rows some time after they appear.
    finding = await eventually(find)
    assert finding is not None
    assert finding["level"] == "warning"
    assert "key_lock has 120,000 dead rows beside 0, never vacuumed" in finding["says"]


@pytest.mark.postgres
async def test_doctor_warns_of_a_pooler_in_transaction_mode(postgres: str) -> None:
    finding = (await examine(through_pgbouncer(postgres)))["pooler"]
    assert finding["level"] == "warning"
    assert "transaction mode" in finding["says"]


async def test_doctor_reports_an_unreachable_server_without_its_password() -> None:
    finding = (await examine("postgresql://nobody:hidden@127.0.0.1:1/x"))["store"]
    assert finding["level"] == "problem"
    assert "hidden" not in str(finding)


async def test_doctor_refuses_a_memory_store() -> None:
    assert isinstance((await run("--store", "memory:")).exception, Invalid)


async def test_doctor_reports_a_missing_file_and_does_not_create_it(tmp_path: Path) -> None:
    finding = (await examine(str(tmp_path / "absent.db")))["store"]
    assert finding["level"] == "problem"
    assert not (tmp_path / "absent.db").exists()


@pytest.mark.postgres
async def test_doctor_finds_an_older_schema(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    newer = (9_999, "9999_newer.sql", "-- expand\n")
    known = statements.migrations(PACKAGE)
    monkeypatch.setattr(statements, "migrations", lambda _: [*known, newer])
    finding = (await examine(postgres))["schema"]
    assert (finding["level"], finding["says"]) == ("warning", f"version {len(known)}, 9999 is the newest")


@pytest.fixture
async def file(tmp_path: Path) -> Path:
    store = SqliteStore(tmp_path / "mainspring.db", SystemClock(), shards=SHARDS)
    await store.open()
    await store.submit([a_run(payload=b'"' + b"x" * 10_000 + b'"') for _ in range(200)])
    await store.close()
    return tmp_path / "mainspring.db"


def alter(file: Path, *statements: str) -> None:
    connection = apsw.Connection(str(file))
    for statement in statements:
        connection.execute(statement)
    connection.close()


@pytest.mark.parametrize(
    ("statement", "check", "level", "says"),
    [
        ("PRAGMA journal_mode = DELETE", "journal", "warning", "delete, not a write-ahead log"),
        ("PRAGMA application_id = 0", "store", "problem", "made by an older checkout"),
        ("UPDATE meta SET schema_version = 999", "schema", "problem", "version 999; this program knows"),
        (
            (
                "INSERT INTO session (kind, name, datacenter, version, started_at, lease_until) "
                "VALUES ('worker', 'w', '', '', 9000000000000000, 9000000000000000)"
            ),
            "clock",
            "warning",
            "ahead of this machine's clock",
        ),
    ],
)
async def test_doctor_finds_a_wrong_file(file: Path, statement: str, check: str, level: str, says: str) -> None:
    alter(file, statement)
    finding = (await examine(str(file)))[check]
    assert (finding["level"], says in finding["says"]) == (level, True), finding


async def test_doctor_finds_a_damaged_file(file: Path) -> None:
    alter(file, "PRAGMA wal_checkpoint(TRUNCATE)")
    with file.open("r+b") as opened:
        opened.seek(20 * 4096)
        opened.write(b"\xff" * 4096 * 30)
    report = await examine(str(file))
    assert (report.get("integrity") or report["store"])["level"] == "problem"


async def test_doctor_reports_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_bytes(b"not a database at all" * 1_000)
    assert (await examine(str(tmp_path / "x.db")))["store"]["level"] == "problem"


def test_the_rules_for_problems_that_a_test_cannot_cause() -> None:
    """A distant server, transaction id wraparound, a pooler that drops settings, a slot that holds back vacuum."""
    rules = postgres_findings
    assert rules.check_latency(MILLISECOND).level is Level.OK
    assert rules.check_latency(150 * MILLISECOND).level is Level.PROBLEM
    assert rules.check_clock(-3 * SECOND).says == "the store's clock is 3s behind this one"
    assert rules.check_clock(100).level is Level.OK
    sound = {
        "version": 170000,
        "standby": False,
        "fsync": "on",
        "full_page_writes": "on",
        "synchronous_commit": "on",
        "autovacuum": "on",
        "track_counts": "on",
        "xid_age": 5,
        "xid_database": "other",
    }

    def levels(**changed: object) -> dict[str, Level]:
        return {finding.check: finding.level for finding in rules.check_server(sound | changed)}

    assert set(levels().values()) == {Level.OK}
    assert levels(fsync="off")["durability"] is Level.PROBLEM
    assert levels(autovacuum="off")["autovacuum"] is Level.PROBLEM
    assert levels(xid_age=1_200_000_000)["wraparound"] is Level.WARNING
    assert levels(xid_age=2_000_000_000)["wraparound"] is Level.PROBLEM
    assert levels(version=130004)["version"] is Level.PROBLEM
    assert levels(standby=True)["primary"] is Level.PROBLEM
    assert rules.check_pooler(by_transaction=False, keeps_settings=False).level is Level.WARNING
    assert rules.check_pooler(by_transaction=False, keeps_settings=True).level is Level.OK
    slot = {"name": "s", "active": False, "xids": 0, "kept": 0}
    assert [finding.level for finding in rules.check_slots([slot])] == [Level.OK]
    assert [finding.level for finding in rules.check_slots([slot | {"kept": 1 << 31}])] == [Level.WARNING]
    assert [finding.level for finding in rules.check_slots([slot | {"xids": 300_000_000}])] == [Level.PROBLEM]
    standby = {"name": "far", "late": 2 * SECOND, "bytes": 1 << 20}
    assert [finding.level for finding in rules.check_standbys([standby])] == [Level.OK]
    assert [finding.level for finding in rules.check_standbys([standby | {"late": 5 * MINUTE}])] == [Level.WARNING]
    [behind] = rules.check_standbys([standby | {"bytes": 1 << 31}])
    assert (behind.level, behind.says) == (Level.WARNING, "far is 2s and 2,048 MiB behind")
    assert [finding.level for finding in rules.check_standbys([standby | {"late": 3 * HOUR}])] == [Level.PROBLEM]
    held = {"who": "prepared transaction x", "state": "prepared", "age": 2 * HOUR, "xids": 5}
    assert rules.check_transactions([held], sees_all=True).level is Level.PROBLEM
    read = {"who": "a query on standby far", "state": "standby", "age": 0, "xids": 5}
    assert rules.check_transactions([read], sees_all=True).level is Level.OK
    assert rules.check_transactions([read | {"xids": 20_000_000}], sees_all=True).level is Level.WARNING
    # The one that holds back most rows need not be the one that has held them too long.
    assert rules.check_transactions([read, held], sees_all=True).who == "prepared transaction x"
    bloated = {"name": "run", "dead": 0, "live": 10, "size": 1 << 30, "ago": None}
    assert [finding.check for finding in rules.check_vacuum([bloated])] == ["bloat"]
    assert rules.check_partitions({"log": set(range(100, 120))}, 100 * DAY, Retention())[0].level is Level.OK


async def test_the_report_fits_the_terminal(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for width in (80, 160):
        monkeypatch.setenv("COLUMNS", str(width))
        shown = (await run("--store", str(file))).stdout.splitlines()
        assert max(map(len, shown)) <= width
        assert shown[-1].endswith(" warnings")


async def check_foreign_logs(store: SqliteStore | PostgresStore, address: str, kept: Path) -> None:
    await store.open()
    logs = make_run_logs(load({"run_logs.location": str(kept)}, {}), store.identity)
    assert logs is not None
    await logs.make_ours()
    await logs.blobs.close()
    await store.close()
    assert (await examine(address))["run logs"]["level"] == "ok"
    (kept / "logs-of").write_text("another store")
    found = (await examine(address))["run logs"]
    assert found["level"] == "problem"
    assert "another store" in found["says"]


async def test_doctor_finds_run_logs_of_another_sqlite_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAINSPRING_RUN_LOGS_LOCATION", str(tmp_path / "kept"))
    (tmp_path / "kept").mkdir()
    store = SqliteStore(tmp_path / "jobs.db", SystemClock(), shards=SHARDS)
    await check_foreign_logs(store, str(tmp_path / "jobs.db"), tmp_path / "kept")


@pytest.mark.postgres
async def test_doctor_finds_run_logs_of_another_postgresql_store(
    postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAINSPRING_RUN_LOGS_LOCATION", str(tmp_path / "kept"))
    (tmp_path / "kept").mkdir()
    await check_foreign_logs(PostgresStore(postgres, shards=SHARDS), postgres, tmp_path / "kept")


# Programs


async def test_limits_of_programs_that_no_cgroup_enforces_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = str(tmp_path / "mainspring.db")
    check = "limits of programs"
    monkeypatch.setenv("MAINSPRING_TASKS_CGROUP", str(tmp_path))
    monkeypatch.setenv("MAINSPRING_TASKS_CPUS", "0.5")
    monkeypatch.setenv("MAINSPRING_TASKS_PROCESSES", "20")
    assert check not in await examine(store), "no program runs here"
    monkeypatch.setenv("MAINSPRING_TASKS_COMMANDS", "true")
    found = (await examine(store))[check]
    assert found["level"] == "warning"
    assert "tasks.cpus: not enforced; tasks.processes: " in found["says"]
    (tmp_path / "cgroup.procs").touch()
    (tmp_path / "cgroup.controllers").write_text("cpu pids\n")
    assert (await examine(store))[check]["level"] == "ok"
    monkeypatch.setenv("MAINSPRING_TASKS_CPUS", "0")
    monkeypatch.setenv("MAINSPRING_TASKS_PROCESSES", "0")
    assert check not in await examine(store), "there are no limits"
