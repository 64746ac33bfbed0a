"""``mainspring move``: PostgreSQL holds everything that an SQLite installation held, and continues with it."""

import asyncio
import contextlib
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import apsw
import msgspec
import pytest
from typer.testing import CliRunner, Result

from mainspring.cli.main import application
from mainspring.config.loading import load
from mainspring.config.runtime import Runtime
from mainspring.core.model.access.access import ApiKey, Quotas, Role, Tenant
from mainspring.core.model.base.errors import Conflict, Invalid, StoreUnavailable
from mainspring.core.model.base.ids import JobId, RunId, SessionId
from mainspring.core.model.base.instant import DAY, HOUR, MINUTE, SECOND, Instant
from mainspring.core.model.limits.budget import Budget
from mainspring.core.model.limits.limits import Breaker
from mainspring.core.model.limits.queues import QueuePolicy, RetryBudget
from mainspring.core.model.runs.completion import complete_failure, complete_success
from mainspring.core.model.runs.new_run import About, Idempotency, JobRef
from mainspring.core.model.runs.replay import Replay
from mainspring.core.model.runs.run import HeldRun, RunState
from mainspring.core.model.runs.unique import Unique
from mainspring.core.model.schedules.calendar import CalendarSpec
from mainspring.core.model.schedules.job import JobState, Overlap
from mainspring.core.model.schedules.plan import plan
from mainspring.core.model.schedules.slo import Slo
from mainspring.core.model.workflows.dependencies import DependencyRule
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.catalog import Checkpoint, JobFilter, LogReport, Pause, ProgressReport, RunFilter
from mainspring.core.ports.storage.upkeep import Retention
from mainspring.core.ports.upkeep.transfer import KINDS, Row
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.core.store import Demand
from mainspring.features.move.service import move_rows
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.sqlite import SqliteStore
from mainspring.stores.sqlite.upkeep import transfer as sqlite_transfer
from mainspring.stores.sqlite.upkeep.transfer import SqliteSource
from tests.support.builders import a_job, a_limit, a_policy, a_run, a_spec, a_worker, after_each, an_id, every
from tests.support.clock import ManualClock
from tests.support.command_line import terminate, wait_for_http
from tests.support.processes import PYTHONPATH, Processes, free_port
from tests.support.waiting import eventually

SHARDS = 8
ALL = tuple(range(SHARDS))
ME = Author("me", None, "because")


class Installation:
    """An SQLite store with a history of some days."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock(SystemClock().now() - 3 * DAY)
        self.store = SqliteStore(path, self.clock, shards=SHARDS)
        self.runs: list[RunId] = []
        self.jobs: list[JobId] = []
        self._claims = 0

    async def submit(self, *runs: Any) -> None:
        self.runs += [answer.id for answer in await self.store.submit(runs)]

    async def work(self, session: SessionId, count: int, queue: str = "default") -> list[HeldRun]:
        self._claims += 1
        return await self.store.claim(session, self._claims, [Demand(queue, count)])

    async def fill(self) -> None:
        """Fill the store with everything that it can hold."""
        store, clock = self.store, self.clock
        await store.open()
        scheduler = await store.join("scheduler", HOUR)
        await store.take(scheduler, ALL)
        worker = await store.open_session(a_worker(ttl=HOUR))
        await store.attach_reader("reader")

        # A history of some days: succeeded with results, failed for good, retried, cancelled, discarded, replayed.
        about = About(name="report", owner="ada", tags=("march", "red"))
        for day in range(3):
            await self.submit(*(a_run(about=about if number == 0 else None) for number in range(4)))
            held = await self.work(worker, 4)
            await store.append_log([LogReport(run=run.id, fence=run.fence, text=f"day {day}\n") for run in held])
            await store.report_progress(
                [ProgressReport(run=held[0].id, fence=held[0].fence, done=1, total=3, note="é")]
            )
            await store.complete([complete_success(run, b'{"n": 1}') for run in held[:3]])
            await store.complete([complete_failure(held[3], "Traceback é", Random(1), now=clock.now())])
            await self.submit(a_run(policy=a_policy(retries=0)), a_run(tenant="acme", queue="mail"))
            held = await self.work(worker, 1)
            await store.complete([complete_failure(run, "boom", Random(1), now=clock.now()) for run in held])
            clock.advance(18 * HOUR)
            await store.heartbeat(worker, HOUR, [], [], self._claims)
            await store.renew(scheduler, HOUR)
            await store.stage(scheduler, ALL, 100)
            await store.complete([complete_success(run, None) for run in await self.work(worker, 10)])
        dead = (await store.list_runs(RunFilter(tenant=None, dead=True), None, 10)).items
        assert len(dead) == 3
        await store.discard([dead[0].id], ME)
        await self.submit(a_run(replay_of=dead[1].id))
        replay = Replay(id=an_id(), author="ada", tenant="default", task="é", per_second=0.5, made_at=clock.now())
        await store.put_replay(replay)
        await store.move_replay(msgspec.structs.replace(replay, next=(dead[2].id,), replayed=1))
        await store.put_replay(msgspec.structs.replace(replay, id=an_id(), tenant=None, state="done", ended_at=1))

        # Schedules: ticking, with versions, paused, cancelled, queueing, with a fixed delay that waits for its run.
        now = clock.now()
        specs = [
            a_spec(name="ticking", schedule=every(10 * SECOND)),
            a_spec(name="delayed", schedule=after_each(20 * SECOND)),
            a_spec(name="queueing", schedule=every(30 * SECOND), overlap=Overlap.QUEUE, tags=("a", "b"), owner="ada"),
            a_spec(name="paused", schedule=every(MINUTE), slo=Slo(succeed_every=HOUR)),
            a_spec(name="over", schedule=every(MINUTE)),
            a_spec(name="future", schedule=every(HOUR, start=now + 30 * DAY)),
        ]
        put = await store.put_jobs([a_job(spec, shard=number, author="me") for number, spec in enumerate(specs)])
        self.jobs = [answer.job.id for answer in put]
        changed = msgspec.structs.replace(specs[0], priority=2)
        await store.put_jobs([a_job(changed, author="me", why="faster", payload=b'{"v": 2}')])
        await store.set_jobs_state([self.jobs[3]], JobState.PAUSED, ME)
        await store.set_jobs_state([self.jobs[4]], JobState.CANCELLED, ME)
        for _ in range(4):
            clock.advance(30 * SECOND)
            await store.fire(scheduler, plan(await store.due_jobs(ALL, clock.now(), 100), clock.now()))
        await self.submit(
            a_run(job=JobRef(id=self.jobs[0], version=1)),
            a_run(job=JobRef(id=self.jobs[0], version=1, kind="backfill", scheduled_at=now)),
        )

        # Unfinished runs: delayed, blocked by a key, between two attempts, with limits, of other tenants, running.
        await self.submit(
            a_run(delay=DAY),
            a_run(policy=msgspec.structs.replace(a_policy(), requires=("gpu=a100", "zone=1"))),
            a_run(target=worker),
            a_run(delay=40 * DAY, about=about),
            *(a_run(key="k", shard=3, delay=delay) for delay in (0, 0, HOUR)),
            a_run(start_within=5 * HOUR, deadline=6 * HOUR, priority=1),
            a_run(tenant="acme", idempotency=Idempotency("once", b"\x01" * 16)),
        )
        held = await self.work(worker, 3)
        await store.complete([complete_failure(held[0], "again", Random(1), now=clock.now())])
        await store.save_checkpoints([Checkpoint(run=held[1].id, fence=held[1].fence, state=b'{"at": "\xc3\xa9"}')])
        await store.cancel([held[2].id], ME)

        # Blocked by a limit, waiting for dependencies, one of a key. The child has not yet seen its parent's cancel.
        parent, ended = a_run(queue="family", delay=DAY), a_run(queue="family", delay=DAY)
        await self.submit(
            *(a_run(queue="limited", limits=(a_limit(),)) for _ in range(3)),
            a_run(queue="limited", limits=(a_limit("rate", 2, HOUR),), breaker=Breaker()),
            parent,
            ended,
            a_run(queue="family", after=[parent, ended], rule=DependencyRule.ALL_DONE),
            a_run(queue="family", unique=Unique(key="u"), delay=DAY),
        )
        await store.cancel([ended.id], ME)

        await store.put_tenant(Tenant(name="acme", quotas=Quotas(running=7, jobs=3)), ME)
        await store.put_budget(Budget(tenant="acme", name="tokens", unit="tokens", limit=5.0), ME)
        key = ApiKey(id="k1", tenant="acme", name="ci", role=Role.OPERATOR, secret_hash=b"\x02" * 32, queues=("mail",))
        await store.put_key(key, ME)
        await store.put_key(msgspec.structs.replace(key, id="k2", tenant=None, queues=()), ME)
        await store.revoke_key("k2", None, ME)
        await store.put_calendar("acme", "office", CalendarSpec(closed_days=("sat", "sun")), ME)
        await store.pause(Pause(tenant=None, queue="mail"), ME)
        await store.pause(Pause(tenant="acme", queue=None), ME)
        budget = RetryBudget(most=5, per=SECOND)
        await store.put_queue_policy("mail", QueuePolicy(fair=True, shares={"acme": 3}, retries=budget), ME)
        await store.tidy()
        self.held = held

    async def stop(self) -> None:
        """Close the store as if its processes were killed two hours ago."""
        self.clock.advance(2 * HOUR)
        await self.store.close()


@pytest.fixture
async def installation(tmp_path: Path) -> Installation:
    made = Installation(tmp_path / "mainspring.db")
    await made.fill()
    await made.stop()
    return made


async def run(*arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, application, list(arguments))


async def everything(store: Any, installation: Installation) -> dict[str, Any]:
    """Return all that the ports show of a store."""
    runs = await store.runs(installation.runs, payloads=True)
    listed = (await store.list_runs(RunFilter(tenant=None), None, 1_000)).items
    ticks = [run.id for run in listed if run.job_id is not None]
    jobs = await store.jobs(installation.jobs)
    return {
        "runs": runs,
        "ticks": await store.runs(ticks, payloads=True),
        "listed": [run.id for run in listed],
        "tagged": [run.id for run in (await store.list_runs(RunFilter(tenant=None, tag="red"), None, 100)).items],
        "attempts": [await store.attempts(run) for run in installation.runs],
        "logs": [
            [(line.at, line.attempt, line.text) for line in await store.log(run, 0, 99)] for run in installation.runs
        ],
        "jobs": jobs,
        "versions": [await store.versions(job) for job in installation.jobs],
        "jobs listed": [job.id for job in (await store.list_jobs(JobFilter(tenant=None), None, 100)).items],
        "ledger": [await store.ledger(job, 0, 2**60, 1_000) for job in installation.jobs],
        "dead": await store.dead_groups(RunFilter(tenant=None, dead=True), 100),
        "minutes": await store.minutes(None, 0, 2**60),
        "usage": [await store.usage(None, 0, 2**60, by) for by in ("job", "task", "tenant")],
        "budgets": await store.budgets(None),
        "backfilled": [await store.backfilled(job, 0, 2**60) for job in installation.jobs],
        "pauses": await store.pauses(),
        "calendars": await store.calendars(None),
        "slos": await store.slo_states(installation.jobs),
        "queue_policies": await store.queue_policies(),
        "tenants": await store.tenants(),
        "keys": await store.keys(None),
        "audit": await store.audit(None, limit=1_000),
        "depths": await store.depths(),
    }


def without_last_worker(view: Any) -> Any:
    """Drop the last worker of a run that is not running: only one kind of store remembers it."""
    if view is None:
        return None
    return msgspec.structs.replace(view, session=None, executor="", started_at=None, cancel_requested=False, reason="")


async def test_move_copies_everything(installation: Installation, postgres_database: str) -> None:
    before = SqliteStore(installation.path, installation.clock, shards=SHARDS)
    await before.open()
    expected = await everything(before, installation)
    await before.close()

    moved = await run("move", "--from", str(installation.path), "--to", postgres_database, "--json")
    assert moved.exit_code == 0, (moved.output, moved.exception)
    report = json.loads(moved.stdout)
    assert report["resumed"] is False
    for kind in KINDS:
        assert report["rows"][kind] > 0, f"the installation has no {kind}: the test would not cover it"

    after = PostgresStore(postgres_database, shards=SHARDS)
    await after.open()
    try:
        found = await everything(after, installation)
        for name in ("runs", "ticks"):
            for one, other in zip(expected.pop(name), found.pop(name), strict=True):
                assert without_last_worker(other) == without_last_worker(one)
                if one.state is RunState.SUCCEEDED:
                    assert (other.executor, other.session, other.started_at) == (
                        one.executor,
                        one.session,
                        one.started_at,
                    )
        for name, value in expected.items():
            assert found[name] == value, name
    finally:
        await after.close()


async def test_the_new_store_continues_where_the_old_one_stopped(
    installation: Installation, postgres_database: str
) -> None:
    assert (await run("move", "--from", str(installation.path), "--to", postgres_database)).exit_code == 0
    fences = [held.fence for held in installation.held]
    store = PostgresStore(postgres_database, shards=SHARDS)
    await store.open()
    try:
        scheduler = await store.join("scheduler", HOUR)
        assert len(await store.take(scheduler, ALL)) == SHARDS
        worker = await store.open_session(a_worker(ttl=HOUR))
        assert worker > 2
        # The runs of the killed worker are found.
        lost = await store.lost_runs(100)
        assert {run.id for run in lost} == {run.id for run in installation.held[1:]}
        # The ticks since then are in the ledger, each once.
        now = await store.now()
        await store.fire(scheduler, plan(await store.due_jobs(ALL, now, 100), now))
        ticking = installation.jobs[0]
        ledger = await store.ledger(ticking, 0, 2**60, 10_000)
        covered: list[Instant] = []
        for entry in ledger:
            last = entry.last_at if entry.last_at is not None else entry.scheduled_at
            covered += range(entry.scheduled_at, last + 1, 10 * SECOND)
        assert covered == list(range(covered[0], covered[-1] + 1, 10 * SECOND))
        assert 0 <= now - covered[-1] < 10 * SECOND
        # Due runs are staged, claimed with a greater fence, and completed.
        for pause in await store.pauses():
            await store.resume(pause.tenant, pause.queue, ME)
        await store.stage(scheduler, ALL, 1_000)
        claimed = await store.claim(worker, 1, [Demand("default", 1_000), Demand("mail", 10)])
        assert len(claimed) > 10
        assert min(run.fence for run in claimed) > max(fences)
        assert all(await store.complete([complete_success(run, None) for run in claimed]))
        # The second run of an ordering key follows the first.
        assert await store.claim(worker, 2, [Demand("default", 1_000)])
        # A known idempotency key creates no new run.
        again = a_run(tenant="acme", idempotency=Idempotency("once", b"\x01" * 16))
        [answer] = await store.submit([again])
        assert (answer.new, answer.conflict) == (False, False)
        assert answer.id in installation.runs
        # Retention drops old days with their bodies and tags.
        await store.prune(Retention(succeeded=DAY, unsuccessful=DAY, ledger=DAY), 1_000)
        [first] = await store.runs(installation.runs[:1])
        assert first is None
        assert await store.sweep(100) == 0
    finally:
        await store.close()


async def test_the_moved_file_refuses_every_write(installation: Installation, postgres_database: str) -> None:
    """Opening it names the new store without its password; a process that has it open cannot write."""
    silent = SqliteStore(installation.path, SystemClock(), shards=SHARDS)
    await silent.open()
    try:
        secret = postgres_database.replace("//", "//", 1)
        name, _, host = secret.removeprefix("postgresql://").partition("@")
        with_password = f"postgresql://{name.partition(':')[0]}:hidden@{host}" if "@" in secret else secret
        assert (await run("move", "--from", str(installation.path), "--to", with_password)).exit_code == 0
        with pytest.raises(Invalid, match="this store was moved to postgresql://"):
            await silent.submit([a_run()])
        with pytest.raises(Invalid, match="this store was moved to"):
            await silent.open_session(a_worker())
    finally:
        await silent.close()
    with pytest.raises(Conflict, match="this store was moved to postgresql://") as refused:
        await SqliteStore(installation.path, SystemClock(), shards=SHARDS).open()
    assert "hidden" not in str(refused.value)
    again = await run("move", "--from", str(installation.path), "--to", postgres_database)
    assert "this store was moved to" in str(again.exception)


async def test_move_refuses_while_processes_use_the_store(tmp_path: Path, postgres_database: str) -> None:
    store = SqliteStore(tmp_path / "mainspring.db", SystemClock(), shards=SHARDS)
    await store.open()
    await store.open_session(a_worker(ttl=HOUR, name="busy"))
    found = await run("move", "--from", str(tmp_path / "mainspring.db"), "--to", postgres_database)
    assert isinstance(found.exception, Conflict)
    assert "1 processes work on it: worker busy; stop them first" in str(found.exception)
    await store.submit([a_run()])
    await store.close()


async def test_move_refuses_a_target_that_is_not_empty(installation: Installation, postgres_database: str) -> None:
    store = PostgresStore(postgres_database, shards=SHARDS)
    await store.open()
    await store.submit([a_run()])
    await store.close()
    found = await run("move", "--from", str(installation.path), "--to", postgres_database)
    assert isinstance(found.exception, Conflict)
    assert "the new store is not empty: there are rows in" in str(found.exception)
    # The file still works.
    old = SqliteStore(installation.path, SystemClock(), shards=SHARDS)
    await old.open()
    await old.submit([a_run()])
    await old.close()


async def test_move_refuses_a_target_with_another_number_of_shards(
    installation: Installation, postgres_database: str
) -> None:
    store = PostgresStore(postgres_database, shards=SHARDS + 1)
    await store.open()
    await store.close()
    found = await run("move", "--from", str(installation.path), "--to", postgres_database)
    assert "the new store has 9 shards and the old one 8" in str(found.exception)


class Interrupted(SqliteSource):
    """Stops between the commit in the target and the mark in the source."""

    def mark_moved(self, to: str) -> None:
        raise KeyboardInterrupt


async def test_an_interrupted_move_is_resumed(installation: Installation, postgres_database: str) -> None:
    from mainspring.stores.postgres.upkeep.transfer import PostgresTarget

    source = Interrupted(installation.path, SystemClock())
    with pytest.raises(KeyboardInterrupt):
        await move_rows(source, PostgresTarget(postgres_database, "mainspring"), "there", lambda *_: None)
    found = await run("move", "--from", str(installation.path), "--to", postgres_database, "--json")
    assert found.exit_code == 0, found.exception
    assert json.loads(found.stdout)["resumed"] is True


async def test_move_detects_a_row_that_is_lost_or_altered(installation: Installation, postgres_database: str) -> None:
    """It then commits nothing and does not mark the file."""
    from mainspring.stores.postgres.upkeep.transfer import PostgresTarget

    class Losing(PostgresTarget):
        async def write(self, kind: str, rows: Any) -> None:
            await super().write(kind, rows[:-1] if kind == "history" else rows)

    class Altering(PostgresTarget):
        async def write(self, kind: str, rows: Any) -> None:
            altered: list[Row] = [{**row, "due": row["due"] + 1} for row in rows] if kind == "waiting" else rows
            await super().write(kind, altered)

    for wrong, message in ((Losing, r"has \d+ of \d+ rows of history"), (Altering, "other rows of waiting")):
        source = SqliteSource(installation.path, SystemClock())
        with pytest.raises(Conflict, match=message):
            await move_rows(source, wrong(postgres_database, "mainspring"), "there", lambda *_: None)
    assert (await run("move", "--from", str(installation.path), "--to", postgres_database)).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            ("--from", "absent.db", "--to", "postgresql://me@localhost/x"),
            StoreUnavailable,
            "there is no store absent.db",
        ),
        (("--from", "a.db", "--to", "b.db"), Invalid, "--to: is not PostgreSQL"),
        (("--from", "postgresql://a/b", "--to", "postgresql://a/c"), Invalid, "--from: is not an SQLite file"),
    ],
)
async def test_move_refuses_invalid_arguments(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    error: type[Exception],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    found = await run("move", *arguments)
    assert isinstance(found.exception, error)
    assert message in str(found.exception)


def test_move_knows_every_table_and_column(tmp_path: Path) -> None:
    """A new table or column must be moved, or be listed as left behind."""
    from mainspring.stores.sqlite import connection as connections

    connection = connections.open_for_writing(tmp_path / "mainspring.db", 4)
    tables = {
        str(name) for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    }
    assert tables == sqlite_transfer.TABLES | sqlite_transfer.LEFT
    moved = {
        kind: {description[0] for description in describe_columns(connection, query)}
        for kind, query in sqlite_transfer._SQL.items()
        if kind in KINDS
    }
    for table in sorted(sqlite_transfer.TABLES | {"schedule"}):
        columns = {str(row[1]) for row in connection.execute(f"PRAGMA table_info({table})").fetchall()}
        there = moved["job" if table == "schedule" else table]
        assert columns - there <= sqlite_transfer.LEFT_COLUMNS.get(table, frozenset()), table
    connection.close()


def describe_columns(connection: apsw.Connection, query: str) -> Any:
    found: list[Any] = []

    def keep(cursor: apsw.Cursor, statement: str, bindings: Any) -> bool:
        found.extend(cursor.get_description())
        return False

    cursor = connection.cursor()
    cursor.exec_trace = keep
    with contextlib.suppress(apsw.ExecTraceAbort):
        cursor.execute(query)
    return found


TASKS = """
from mainspring import Mainspring

app = Mainspring(name="moved")

@app.task
async def work(number: int = 0) -> int:
    return number

app.every("1s", name="tick")(work)
"""


async def test_move_of_a_real_installation_loses_no_tick(tmp_path: Path, postgres_database: str) -> None:
    """Stop a running installation, move it, and start it on the new store: each tick is in the ledger once."""
    (tmp_path / "moved_tasks.py").write_text(TASKS)
    file, logs = str(tmp_path / "mainspring.db"), tmp_path / "logs"
    logs.mkdir()

    async def up(store: str, until: Callable[[Any], Awaitable[bool]]) -> None:
        runtime, port = Runtime(load({"store": store})), free_port()
        async with Processes(store, logs, {"PYTHONPATH": f"{tmp_path}{os.pathsep}{PYTHONPATH}"}) as processes:
            process = processes.start("up", "moved_tasks:app", "--port", str(port))
            await asyncio.to_thread(wait_for_http, f"http://127.0.0.1:{port}", process)
            await runtime.open()
            try:
                await eventually(lambda: until(runtime), processes.logs)
            finally:
                await runtime.close()
            assert await asyncio.to_thread(terminate, process) == 0, processes.logs()

    submitted: list[RunId] = []

    async def ticked_and_submitted(runtime: Runtime) -> bool:
        job = await runtime.store.job_named("default", "tick")
        if job is None or len(await runtime.store.ledger(job, 0, 2**60, 10)) < 3:
            return False
        runs = [a_run(task="work", payload=b'{"number": 7}', delay=delay) for delay in (0, 5 * SECOND, 40 * DAY)]
        submitted.extend(answer.id for answer in await runtime.jobs.submit_many(runs))
        return True

    async def future_job_ran(runtime: Runtime) -> bool:
        views = await runtime.store.runs(submitted)
        assert all(view is not None for view in views)
        return [view.state for view in views if view is not None] == [
            RunState.SUCCEEDED,
            RunState.SUCCEEDED,
            RunState.SCHEDULED,
        ]

    await up(file, ticked_and_submitted)
    moved = await run("move", "--from", file, "--to", postgres_database, "--json")
    assert moved.exit_code == 0, moved.exception
    await up(postgres_database, future_job_ran)

    store = PostgresStore(postgres_database)
    await store.open()
    try:
        job = await store.job_named("default", "tick")
        assert job is not None
        covered: list[Instant] = []
        for entry in await store.ledger(job, 0, 2**60, 10_000):
            last = entry.scheduled_at if entry.last_at is None else entry.last_at
            covered += range(entry.scheduled_at, last + 1, SECOND)
        assert covered == list(range(covered[0], covered[-1] + 1, SECOND))
        assert [job.version for job in await store.jobs([job]) if job is not None] == [1]
    finally:
        await store.close()
