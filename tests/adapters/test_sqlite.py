"""The parts of the store that only SQLite has: one file for many processes, kills, shared commits, plans, bytes."""

import asyncio
import errno
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random
from typing import Any

import apsw
import pytest

from mainspring.core.model.base.errors import Conflict, Invalid, StoreUnavailable
from mainspring.core.model.base.ids import JobId, RunId, SessionId
from mainspring.core.model.base.instant import DAY, HOUR, MILLISECOND, MINUTE, SECOND, Instant
from mainspring.core.model.runs.completion import CompletionAnswer, complete_loss, complete_success
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.rank import compute_rank
from mainspring.core.model.runs.run import RunState
from mainspring.core.ports.storage.answers import SubmitResult
from mainspring.core.ports.storage.catalog import RunFilter
from mainspring.core.ports.storage.upkeep import Retention
from mainspring.core.ports.wakeups import queue_topic
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.core.store import Demand, NewSession
from mainspring.stores import statements
from mainspring.stores.sqlite import SqliteStore
from mainspring.stores.sqlite import connection as connections
from mainspring.stores.sqlite.constants import CONSTANTS
from mainspring.stores.sqlite.records import list_queries
from mainspring.stores.sqlite.steady_time import SteadyTime
from mainspring.stores.sqlite.threads import ProcedureCall, call_procedures
from mainspring.stores.sqlite.wakeups import SqliteWakeups
from tests.support.builders import a_held_run, a_job, a_limit, a_run, a_spec, every, some_runs
from tests.support.clock import ManualClock
from tests.support.kept_sqlite import KeptSqlite
from tests.support.store_harness import SqliteHarness
from tests.support.waiting import eventually

#: A separate process that submits, claims and completes runs, and prints each step after the store has done it.
WORKER = """
import asyncio, sys
from pathlib import Path
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.stores.sqlite import SqliteStore
from mainspring.core.model.runs.completion import complete_success
from mainspring.core.store import NewSession, Demand
from tests.support.builders import some_runs

async def main(path, rounds):
    store = SqliteStore(Path(path), SystemClock(), shards=4)
    await store.open()
    session = await store.open_session(NewSession(name="w", kind="worker", ttl=3_600_000_000))
    print("ready", flush=True)
    for number in range(1, rounds + 1):
        runs = some_runs(20) + some_runs(5, key="a")
        await store.submit(runs)
        print("submitted", *(run.id for run in runs), flush=True)
        held = await store.claim(session, number, [Demand("default", 15)])
        print("claimed", *(run.id for run in held), flush=True)
        await store.complete([complete_success(run, b"1") for run in held[:10]])
        print("completed", *(run.id for run in held[:10]), flush=True)
    await store.close()

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mainspring.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, SystemClock(), shards=4)
    await store.open()
    yield store
    await store.close()


async def a_session(store: SqliteStore) -> SessionId:
    return await store.open_session(NewSession(name="w", kind="worker", ttl=HOUR))


def connect(path: Path) -> apsw.Connection:
    return apsw.Connection(str(path))


def start_worker(path: Path, rounds: int) -> "subprocess.Popen[str]":
    root = Path(__file__).parents[2]
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, str(path), str(rounds)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
        env={"PYTHONPATH": f"{root}:{root / 'src'}"},
    )


def read_ids(output: str, word: str) -> list[str]:
    """The ids on the lines that begin with a word. An incomplete line is ignored."""
    lines = output[: output.rfind("\n") + 1].splitlines()
    return [run for line in lines if line.startswith(word + " ") for run in line.split()[1:]]


def check_consistent(path: Path) -> None:
    """Check what must be true of every file, whenever a process was killed."""
    connection = connect(path)
    assert connection.execute("PRAGMA integrity_check").get == "ok"
    several = """
        SELECT count(*) - count(DISTINCT id) FROM (
            SELECT id FROM run UNION ALL SELECT id FROM waiting UNION ALL SELECT id FROM history)
    """
    assert connection.execute(several).get == 0
    without_body = """
        SELECT count(*) FROM (
            SELECT body FROM run UNION ALL SELECT body FROM waiting UNION ALL SELECT body FROM history)
        WHERE body NOT IN (SELECT id FROM body)
    """
    assert connection.execute(without_body).get == 0
    blocked_by_nothing = (
        "SELECT count(*) FROM waiting WHERE state = 'blocked' AND key_lock NOT IN (SELECT key FROM key_lock)"
    )
    assert connection.execute(blocked_by_nothing).get == 0
    held_by_nobody = (
        "SELECT count(*) FROM key_lock WHERE holder NOT IN (SELECT id FROM run UNION SELECT id FROM waiting)"
    )
    assert connection.execute(held_by_nobody).get == 0
    connection.close()


# One file, many processes


@pytest.mark.slow
async def test_processes_that_share_a_file_lose_no_run_and_start_no_run_twice(path: Path) -> None:
    workers = [start_worker(path, 20) for _ in range(2)]
    outputs = [worker.communicate()[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0]
    submitted, claimed, completed = ([run for text in outputs for run in read_ids(text, word)] for word in WORDS)
    assert len(submitted) == 2 * 20 * 25
    assert len(claimed) == len(set(claimed))
    check_consistent(path)
    store = SqliteStore(path, SystemClock(), shards=4)
    await store.open()
    views = await store.runs([RunId(run) for run in submitted])
    assert None not in views
    ended = {view.id for view in views if view is not None and view.state is RunState.SUCCEEDED}
    assert ended == set(completed)
    await store.close()


@pytest.mark.slow
@pytest.mark.parametrize("lines", [2, 7, 20])
async def test_a_killed_process_leaves_every_acknowledged_change(path: Path, lines: int) -> None:
    worker = start_worker(path, 1_000)
    assert worker.stdout is not None
    output = "".join(worker.stdout.readline() for _ in range(lines))
    worker.send_signal(signal.SIGKILL)
    output += worker.stdout.read()
    worker.wait()
    worker.stdout.close()
    check_consistent(path)
    store = SqliteStore(path, SystemClock(), shards=4)
    await store.open()
    submitted, claimed, completed = ([RunId(run) for run in read_ids(output, word)] for word in WORDS)
    assert None not in await store.runs(submitted)
    assert all(view is not None and view.attempt == 1 for view in await store.runs(claimed))
    assert all(view is not None and view.state is RunState.SUCCEEDED for view in await store.runs(completed))
    # The lease of the killed process has not expired, and the store works.
    await store.submit([a_run(queue="other")])
    assert len(await store.claim(await a_session(store), 1, [Demand("other", 10)])) == 1
    await store.close()


WORDS = ("submitted", "claimed", "completed")


async def test_processes_that_start_together_create_the_schema_once(path: Path) -> None:
    stores = [SqliteStore(path, SystemClock(), shards=number + 1) for number in range(4)]
    await asyncio.gather(*(store.open() for store in stores))
    assert len({store.shards for store in stores}) == 1
    await asyncio.gather(*(store.close() for store in stores))


def test_the_switch_to_a_write_ahead_log_waits_for_a_writer(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "BUSY_TIMEOUT", HOUR)
    other = connect(path)
    connections.migrate(other, 4)
    other.execute("BEGIN IMMEDIATE")
    ends = threading.Timer(0.2, lambda: other.execute("ROLLBACK"))
    ends.start()
    connection = connections.open_for_writing(path, 4)
    assert connection.execute("PRAGMA journal_mode").get == "wal"
    connection.close()
    ends.join()
    other.close()


async def look_often(clock: ManualClock) -> None:
    """Let wakeups look at the file several times."""
    for _ in range(10):
        clock.advance(SECOND)
        for _ in range(3):
            await asyncio.sleep(0)


async def test_a_change_by_another_process_wakes_listeners(path: Path, store: SqliteStore) -> None:
    other, clock = SqliteStore(path, SystemClock()), ManualClock()
    await other.open()
    wakeups = SqliteWakeups(path, clock)
    await wakeups.open()
    wakeup = wakeups.listen([queue_topic("default")])
    await look_often(clock)
    assert not await wakeup.wait(0)
    await other.submit([a_run()])
    await look_often(clock)
    assert await wakeup.wait(0)
    await wakeups.close()
    await other.close()


async def test_calls_that_change_nothing_wake_no_listener(path: Path, store: SqliteStore) -> None:
    session, clock = await a_session(store), ManualClock()
    wakeups = SqliteWakeups(path, clock)
    await wakeups.open()
    wakeup = wakeups.listen([queue_topic("default")])
    await look_often(clock)
    assert not await wakeup.wait(0)
    # A call that has nothing to do writes nothing and costs no sync.
    assert await store.claim(session, 1, [Demand("default", 1)]) == []
    assert (await store.stage(session, [0], 10)).runs == 0
    assert await store.lost_runs(10) == []
    assert await store.expire(10) == 0
    assert await store.complete([complete_success(a_held_run(), None)]) == [CompletionAnswer.STALE]
    await look_often(clock)
    assert not await wakeup.wait(0)
    wakeups.notify([queue_topic("default")])
    assert await wakeup.wait(0)
    await wakeups.close()


# Shared commits


class PausedWriter:
    """Pauses the writer, so that requests wait together, and counts the commits that follow."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._paused = threading.Event()
        self._resumed = threading.Event()
        self.commits = 0

    async def __aenter__(self) -> "PausedWriter":
        # Only the writer's own queue can hold up its thread.
        self._task = asyncio.create_task(self._store._writer.run(self._hold))
        await eventually(self._paused.is_set)
        return self

    def _hold(self, connection: apsw.Connection, now: Instant) -> str:
        self._paused.set()
        self._resumed.wait()
        connection.set_commit_hook(self._count)
        return ""

    def _count(self) -> bool:
        self.commits += 1
        return False

    def resume(self) -> None:
        self._resumed.set()

    async def __aexit__(self, *_: object) -> None:
        self.resume()
        await self._task


async def test_requests_that_wait_together_share_a_commit(store: SqliteStore) -> None:
    async with PausedWriter(store) as writer:
        asked = [asyncio.create_task(store.submit(some_runs(3))) for _ in range(8)]
        await asyncio.sleep(0)
        writer.resume()
        answers = await asyncio.gather(*asked)
    # One for the requests, and one for the pause.
    assert writer.commits <= 2
    assert all(accepted.new and accepted.state is RunState.QUEUED for answer in answers for accepted in answer)


async def test_a_refused_request_does_not_affect_others_in_its_commit(store: SqliteStore) -> None:
    session = await a_session(store)
    good, bad, better = a_run(), a_run(at=1 << 70), a_run()
    async with PausedWriter(store) as writer:
        asked = [asyncio.create_task(store.submit([run])) for run in (good, bad, better)]
        claimed = asyncio.create_task(store.claim(session, 1, [Demand("default", 10)]))
        await asyncio.sleep(0)
        writer.resume()
        answers = await asyncio.gather(*asked, return_exceptions=True)
    assert answers[0] == [SubmitResult(good.id, RunState.QUEUED, True)]
    assert isinstance(answers[1], Invalid)
    assert answers[2] == [SubmitResult(better.id, RunState.QUEUED, True)]
    assert [run.id for run in await claimed] == [good.id, better.id]
    assert await store.runs([bad.id]) == [None]


async def test_a_request_is_carried_out_although_its_caller_is_cancelled(store: SqliteStore) -> None:
    run, neighbour = a_run(), a_run()
    async with PausedWriter(store) as writer:
        gone = asyncio.create_task(store.submit([run]))
        stays = asyncio.create_task(store.submit([neighbour]))
        await asyncio.sleep(0)
        gone.cancel()
        writer.resume()
        await stays
    assert gone.cancelled()
    assert [view.state for view in await store.runs([run.id, neighbour.id]) if view] == [RunState.QUEUED] * 2


async def test_several_event_loops_may_use_one_store(store: SqliteStore) -> None:
    session = await a_session(store)

    def heartbeat() -> bool:
        return asyncio.run(store.heartbeat(session, HOUR, [], [], 0)).alive

    assert await asyncio.to_thread(heartbeat)


async def test_requests_from_before_a_close_are_carried_out(path: Path) -> None:
    store = SqliteStore(path, SystemClock(), shards=4)
    await store.open()
    run = a_run()
    async with PausedWriter(store) as writer:
        asked = asyncio.create_task(store.submit([run]))
        await asyncio.sleep(0)
        closing = asyncio.create_task(store.close())
        await asyncio.sleep(0)
        writer.resume()
        await closing
    assert [accepted.new for accepted in await asked] == [True]
    with pytest.raises(StoreUnavailable):
        await store.submit([a_run()])


async def test_a_forked_child_is_refused(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getpid", lambda: 1)
    with pytest.raises(StoreUnavailable, match="not open in this process"):
        await store.runs([])


# Errors


async def test_a_full_disk_refuses_a_submit_and_leaves_the_file_consistent(store: SqliteStore, path: Path) -> None:
    def limit(pages: str) -> Callable[[apsw.Connection, Instant], str]:
        def work(connection: apsw.Connection, now: Instant) -> str:
            connection.execute(f"PRAGMA max_page_count = {pages}")
            return ""

        return work

    pages = connect(path).execute("PRAGMA page_count").get
    await store._writer.run(limit(str(pages)))
    with pytest.raises(StoreUnavailable, match="full"):
        await store.submit([a_run(payload=b'"' + b"x" * 200_000 + b'"') for _ in range(20)])
    await store._writer.run(limit("1000000"))
    await store.submit([a_run()])
    check_consistent(path)


async def test_a_file_that_stays_locked_is_unavailable(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "BUSY_TIMEOUT", 50 * MILLISECOND)
    store = SqliteStore(path, SystemClock(), shards=4)
    await store.open()
    other = connect(path)
    other.execute("BEGIN IMMEDIATE")
    run = a_run()
    with pytest.raises(StoreUnavailable, match="locked"):
        await store.submit([run])
    assert await store.runs([run.id]) == [None]
    other.execute("ROLLBACK")
    assert (await store.submit([run]))[0].new
    other.close()
    await store.close()


async def test_the_error_names_a_directory_without_access(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied")

    # Patched, because root has access to every directory.
    monkeypatch.setattr(Path, "is_dir", refuse)
    with pytest.raises(Invalid, match=r"mainspring\.db cannot be reached: Permission denied"):
        await SqliteStore(path, SystemClock()).open()


async def test_the_error_names_a_missing_directory(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"there is no directory .*nowhere"):
        await SqliteStore(tmp_path / "nowhere" / "mainspring.db", SystemClock()).open()
    with pytest.raises(Invalid, match=r"is a directory \(a file in it, such as .*mainspring\.db\)"):
        await SqliteStore(tmp_path, SystemClock()).open()


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs", "9p"])
def test_network_file_systems_are_refused(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "find_file_system", lambda path: kind)
    with pytest.raises(Invalid, match=f"network file system \\({kind}\\)"):
        connections.refuse_network_file_system(tmp_path / "mainspring.db")


def test_the_file_system_is_that_of_the_deepest_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
        "30 22 0:40 / /mnt/my\\040share rw - nfs4 server:/share rw\n"
        "31 22 0:41 / /mnt/my rw - tmpfs tmpfs rw\n"
    )
    kinds = [
        connections.find_file_system(Path(file), mounts)
        for file in (
            "/var/lib/mainspring.db",
            "/mnt/my share/a/mainspring.db",
            "/mnt/my/mainspring.db",
            "/mnt/mine/m.db",
        )
    ]
    assert kinds == ["ext4", "nfs4", "tmpfs", "ext4"]
    assert connections.find_file_system(Path("/"), tmp_path / "none") == ""


# Migrations


def read_schema(connection: apsw.Connection) -> list[tuple[object, ...]]:
    return list(connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name"))


def test_a_migrated_database_equals_a_fresh_one(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = list(connections.MIGRATIONS)
    steps.append((len(steps) + 1, "newer.sql", "ALTER TABLE meta ADD COLUMN color TEXT"))
    fresh, migrated = apsw.Connection(":memory:"), apsw.Connection(":memory:")
    for number, _, _ in steps:
        monkeypatch.setattr(connections, "MIGRATIONS", steps[:number])
        connections.migrate(migrated, 4)
        assert connections.schema_version(migrated) == number
    connections.migrate(fresh, 4)
    assert read_schema(migrated) == read_schema(fresh)
    connections.migrate(migrated, 4)
    assert read_schema(migrated) == read_schema(fresh)


def test_migrations_are_numbered_without_gaps() -> None:
    assert [number for number, _, _ in connections.MIGRATIONS] == list(range(1, len(connections.MIGRATIONS) + 1))


async def test_a_schema_newer_than_the_program_is_refused(path: Path) -> None:
    store = SqliteStore(path, SystemClock(), shards=4)
    await store.open()
    await store.close()
    connection = connect(path)
    connection.execute("UPDATE meta SET schema_version = 9999")
    before = read_schema(connection)
    with pytest.raises(Conflict, match=r"schema version 9999.*upgrade the program"):
        await store.open()
    assert read_schema(connection) == before


async def test_a_database_of_another_program_is_left_alone(path: Path) -> None:
    connection = connect(path)
    connection.execute("CREATE TABLE holiday (day TEXT)")
    with pytest.raises(Conflict, match="something else"):
        await SqliteStore(path, SystemClock()).open()
    assert [row[1] for row in read_schema(connection)] == ["holiday"]


async def test_the_number_of_shards_is_that_of_the_file(path: Path, store: SqliteStore) -> None:
    other = SqliteStore(path, SystemClock(), shards=50)
    await other.open()
    assert other.shards == 4
    await other.close()


# Plans

#: Tables that hold one batch, or that always stay small.
MAY_BE_SCANNED = {
    *("new_run", "picked", "completion", "new_event", "fired_job", "created_run", "item", "mine", "line", "known_key"),
    *(
        "there",
        "these",
        "busy",
        "allowed",
        "pause",
        "tenant",
        "own_claim_group",
        "label_set",
        "attempt_cost",
        "usage_sum",
    ),
    *("json_each", "i", "k", "t", "a", "o", "p", "q", "l"),
    *("meta", "session", "shard", "outbox_cursor", "(subquery", "CONSTANT"),
    *(
        "changed_limiter",
        "limit_release",
        "admitted",
        "ended_edge",
        "decision",
        "d",
        "f",
        "decided_edges",
        "generation",
        "unattempted",
    ),
}


def read_plans(connection: apsw.Connection) -> dict[str, list[str]]:
    """The query plan of every procedure, and of the procedures it calls."""
    connection.config(apsw.SQLITE_DBCONFIG_TRIGGER_EQP, 1)
    plans: dict[str, list[str]] = {}
    steps: list[str] = []
    for _, _, _, step in connection.execute("EXPLAIN QUERY PLAN INSERT INTO call VALUES (?, ?, ?, ?, ?, ?)", (0,) * 6):
        assert isinstance(step, str)
        if step.startswith("-- TRIGGER "):
            steps = plans.setdefault(step.removeprefix("-- TRIGGER "), [])
        else:
            steps.append(step)
    return plans


def test_no_procedure_scans_a_table_that_grows(path: Path) -> None:
    plans = read_plans(connections.open_for_writing(path, 4))
    assert {
        "submit",
        "claim",
        "pick",
        "complete",
        "heartbeat",
        "stage",
        "fire",
        "fire_one_tick",
        "expire",
        "prune",
    } <= set(plans)
    scans = {
        f"{procedure}: {step}"
        for procedure, steps in plans.items()
        for step in steps
        # SQLite builds an automatic index from every row, each time.
        if (step.startswith("SCAN ") or "AUTOMATIC" in step)
        and "VIRTUAL TABLE" not in step
        and step.split()[1].split("-")[0] not in MAY_BE_SCANNED
    }
    # Without readers the whole outbox is deleted. The others have three rows, or end at the first row.
    assert scans <= {
        *("detach_reader: SCAN outbox", "attach_reader: SCAN q"),
        *(
            "claim: SCAN limiter EXISTS",
            "complete: SCAN ended_parent EXISTS",
            "process_each_generation: SCAN ended_parent",
        ),
        *("claim: SCAN edge USING INDEX edge_undecided", "complete: SCAN edge EXISTS USING INDEX edge_undecided"),
        "resolve: SCAN l USING COVERING INDEX limiter_recalls",
        # There are three retention classes.
        "prune: SCAN c",
        # Temporary results of one batch.
        *("pace_retry: SCAN walk", "pace_retry: SCAN retry_slot", "pick_chosen: SCAN c"),
    }


def test_no_statement_of_limits_scans_a_table_that_grows(path: Path) -> None:
    connection = connections.open_for_writing(path, 4)
    texts = statements.load(connections.PACKAGE, "limits.sql", CONSTANTS)
    plans = {
        name: [
            str(step)
            for _, _, _, step in connection.execute(
                f"EXPLAIN QUERY PLAN {text}", dict.fromkeys(statements.Statement(text).parameters, "[]")
            )
        ]
        for name, text in texts.items()
    }
    scans = {
        f"{name}: {step}"
        for name, steps in plans.items()
        for step in steps
        if (step.startswith("SCAN ") or "AUTOMATIC" in step)
        and "VIRTUAL TABLE" not in step
        and step.split()[1].split("-")[0] not in MAY_BE_SCANNED
    }
    assert scans <= {
        "recalling_limiters: SCAN limiter USING INDEX limiter_recalls",
        # A sweep normally finds nothing.
        "holders: SCAN r USING INDEX run_limited",
    }
    assert "SEARCH f USING COVERING INDEX waiting_limited (waits=? AND (due,id)>(?,?))" in plans["blocked"]
    assert "SEARCH r USING INDEX run_limited (<expr>=?)" in plans["queued_by_breaker"]


@pytest.mark.parametrize(
    ("procedure", "index"),
    [
        ("pick", "SEARCH r USING INDEX run_ready (queue=? AND claim_group=?)"),
        ("heartbeat", "SEARCH r USING INDEX run_held (session=?)"),
        ("expire_sessions", "SEARCH r USING COVERING INDEX run_held (session=?)"),
        ("stage", "SEARCH f USING COVERING INDEX waiting_due (shard=? AND due<?)"),
        ("stage", "SEARCH f USING COVERING INDEX waiting_due (shard=? AND (due,id)>(?,?) AND due<?)"),
        ("release_one_key_lock", "SEARCH w USING COVERING INDEX waiting_blocked (key_lock=?)"),
        ("expire", "SEARCH w USING INDEX waiting_start_by (start_by<?)"),
        ("expire", "SEARCH r USING INDEX run_deadline (deadline<?)"),
        ("prune", "SEARCH h USING INDEX history_standard_succeeded (finished_at<?)"),
        ("fire_one_tick", "SEARCH w USING INDEX waiting_job (job_id=?)"),
        ("stage", "SEARCH l USING COVERING INDEX limiter_wake (wake_at<?)"),
        ("process_each_generation", "SEARCH e USING INDEX edge_undecided (parent=?)"),
        ("end_one_run", "SEARCH e EXISTS USING INDEX edge_undecided (parent=?)"),
        ("pick_by_label_set", "SEARCH f USING INDEX run_ready (queue=? AND claim_group=?)"),
        ("pick_by_label_set", "SEARCH f USING INDEX run_ready (queue=? AND claim_group=? AND (rank,id)>(?,?))"),
        ("pick_by_tenant", "SEARCH f USING INDEX run_queued (tenant=? AND queue=? AND claim_group=?)"),
        (
            "pick_by_tenant",
            "SEARCH f USING INDEX run_queued (tenant=? AND queue=? AND claim_group=? AND (rank,id)>(?,?))",
        ),
    ],
)
def test_each_procedure_uses_the_index_made_for_it(path: Path, procedure: str, index: str) -> None:
    assert index in read_plans(connections.open_for_writing(path, 4))[procedure]


def count_steps(path: Path, call: ProcedureCall, now: Instant) -> int:
    """Call a procedure and return how many hundreds of steps SQLite took."""
    steps = 0

    def count() -> bool:
        nonlocal steps
        steps += 1
        return False

    connection = connections.open_for_writing(path, 4)
    connection.set_progress_handler(count, 100)
    call_procedures(connection, [call], now)
    connection.close()
    return steps


#: Runs that expire, by where they wait and why.
EXPIRING: dict[str, dict[str, Any]] = {
    "start-by time": {"start_within": MINUTE},
    "deadline": {"deadline": MINUTE},
    "start-by time of a scheduled run": {"delay": MINUTE, "start_within": MINUTE},
    "deadline of a scheduled run": {"delay": MINUTE, "deadline": MINUTE},
    "target": {"target": SessionId(1)},
    "target of a scheduled run": {"delay": MINUTE, "target": SessionId(1)},
}


@pytest.mark.parametrize("parts", EXPIRING.values(), ids=EXPIRING.keys())
async def test_the_work_of_an_expiry_does_not_grow_with_the_backlog(
    path: Path, store: SqliteStore, parts: dict[str, Any]
) -> None:
    await store.close_session(await store.open_session(NewSession(name="w", kind="worker", ttl=HOUR)))
    later = await store.now() + HOUR
    steps = []
    for count in (10, 500):
        await store.submit([a_run(**parts) for _ in range(count)])
        steps.append(count_steps(path, ProcedureCall("expire", batch="fingerprint", argument=1), later))
    assert steps[1] < 2 * steps[0]


async def test_the_work_of_a_released_limit_does_not_grow_with_its_line(path: Path, store: SqliteStore) -> None:
    steps = []
    for count in (50, 500):
        runs = [a_run(limits=(a_limit(),)) for _ in range(count)]
        await store.submit(runs)
        page = await store.list_runs(RunFilter(tenant=None, states=frozenset({RunState.QUEUED})), None, 2)
        [holder] = page.items
        steps.append(count_steps(path, ProcedureCall("cancel", batch=f'["{holder.id}"]'), await store.now()))
    assert steps[1] < 2 * steps[0]


async def test_plans_do_not_depend_on_the_contents_of_the_file(path: Path, store: SqliteStore) -> None:
    await store.submit(some_runs(500) + some_runs(500, delay=HOUR) + some_runs(20, key="a"))
    connection = connections.open_for_writing(path, 4)
    before = read_plans(connection)
    connection.execute("ANALYZE")
    connection.close()
    assert read_plans(connections.open_for_writing(path, 4)) == before


LISTS = [
    RunFilter(tenant=None),
    RunFilter(tenant="default"),
    RunFilter(tenant="acme"),
    RunFilter(tenant="default", tag="x"),
    RunFilter(tenant="default", tag="x", dead=True),
    RunFilter(tenant=None, dead=True),
    RunFilter(tenant="default", dead=True, text="a"),
    RunFilter(tenant="default", job=JobId("0" * 32)),
    RunFilter(tenant="default", states=frozenset({RunState.QUEUED}), since=1, until=2),
]


@pytest.mark.parametrize("wanted", LISTS)
def test_a_list_is_read_in_its_order_and_never_sorted(path: Path, wanted: RunFilter) -> None:
    connection = connections.open_for_writing(path, 4)
    source = list_queries.build_run_source(wanted, RunId("1" * 32))
    text = f"EXPLAIN QUERY PLAN SELECT * FROM ({source.text} ORDER BY id DESC LIMIT 10)"
    steps = [str(step) for _, _, _, step in connection.execute(text, source.values)]
    assert not [step for step in steps if "TEMP B-TREE" in step]
    connection.close()


async def test_a_page_that_read_its_maximum_of_rows_returns_a_cursor(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_queries, "LOOKED_AT", 5)
    runs = [a_run(queue="rare" if number % 7 == 0 else "default") for number in range(30)]
    await store.submit(runs)
    found: list[RunId] = []
    after: RunId | None = None
    pages = 0
    while True:
        page = await store.list_runs(RunFilter(tenant="default", queue="rare"), after, 3)
        found += [view.id for view in page.items]
        pages += 1
        if page.after is None:
            break
        after = RunId(page.after)
    assert found == [run.id for run in reversed(runs) if run.queue == "rare"]
    assert pages == 6


# Payloads and results
@pytest.mark.parametrize(
    "content",
    [
        b'{"a":"\\u0000\xc3\xa9\xf0\x9f\x98\x80"}',
        b'"\\ud800 \\\\ \\" \\/ \\b\\f\\n\\r\\t \xe2\x80\xa8\x7f"',
        b'  {"spaces" : [ 1.0, -0, 1e400, 12345678901234567890 ] }\n',
        b"\x01" + b"1",
        b"\x00",
        b"",
        bytes(range(256)),
        b'"' + "漢字\U0010ffff\ufffe".encode() + b'"',
    ],
)
async def test_payloads_and_results_come_back_byte_for_byte(store: SqliteStore, content: bytes) -> None:
    await store.submit([a_run(payload=content)])
    [held] = await store.claim(await a_session(store), 1, [Demand("default", 1)])
    assert held.payload == content
    await store.complete([complete_success(held, content)])
    [view] = await store.runs([held.id])
    assert view is not None
    assert view.result == content


async def test_random_payloads_come_back_byte_for_byte(store: SqliteStore) -> None:
    random = Random(7)
    alphabet = '\\"/bfnrtu0019é😀\x7f\x1f\u2028'
    texts = ["".join(random.choices(alphabet, k=random.randrange(40))) for _ in range(500)]
    runs = [a_run(payload=text.encode()) for text in texts]
    await store.submit(runs)
    held = await store.claim(await a_session(store), 1, [Demand("default", 500)])
    assert {run.id: run.payload for run in held} == {run.id: run.payload for run in runs}


async def test_the_rank_in_the_file_is_that_of_the_domain(path: Path) -> None:
    clock = ManualClock()
    store = SqliteStore(path, clock, shards=4)
    await store.open()

    def rank(run: NewRun) -> object:
        return connect(path).execute("SELECT rank FROM run WHERE id = ?", (run.id,)).get

    at_once, later = a_run(priority=3), a_run(priority=7, delay=MINUTE)
    await store.submit([at_once, later])
    assert rank(at_once) == compute_rank(clock.now(), 3)
    owner = await store.join("scheduler", HOUR)
    await store.take(owner, range(4))
    clock.advance(MINUTE)
    await store.stage(owner, range(4), 10)
    assert rank(later) == compute_rank(clock.now(), 7)
    held = await store.claim(await a_session(store), 1, [Demand("default", 2)])
    clock.advance(SECOND)
    await store.complete([complete_loss(run, blamed=False) for run in held])
    assert rank(at_once) == compute_rank(clock.now(), 3, late=True)
    assert rank(later) == compute_rank(clock.now(), 7, late=True)
    await store.close()


# Time


def test_steady_time_advances_slowly_when_the_clock_is_set_back() -> None:
    clock = ManualClock()
    time = SteadyTime(clock)
    start = time.now()
    clock.jump(-10 * MINUTE)
    assert time.now() == start
    clock.advance(4 * MINUTE)
    assert time.now() == start + 2 * MINUTE
    # After twice the jump both agree again.
    for _ in range(16):
        clock.advance(MINUTE)
        before = time.now()
    assert time.now() == before == clock.now()
    clock.jump(HOUR)
    assert time.now() == clock.now()


async def test_a_prune_deletes_at_most_its_limit_of_runs_and_ticks(kept_sqlite: KeptSqlite) -> None:
    harness = SqliteHarness(kept_sqlite)
    await harness.open()
    await harness.succeed(*await harness.start(*some_runs(2)))
    job = await harness.put(a_job(a_spec(schedule=every(HOUR))))
    for _ in range(2):
        await harness.move_clock(HOUR)
        await harness.fire_due()
    await harness.move_clock(40 * DAY)
    retention = Retention(succeeded=DAY, unsuccessful=DAY, ledger=DAY)
    left = []
    # Runs first, then ticks.
    for limit, deleted in ((2, 2), (1, 1), (10, 1)):
        assert await harness.store.prune(retention, limit) == deleted
        left.append(len(await harness.ticks(job.id)))
    assert left == [2, 1, 0]
    await harness.close()


async def test_a_sweep_releases_the_key_lock_of_a_vanished_run_beside_held_ones(kept_sqlite: KeptSqlite) -> None:
    harness = SqliteHarness(kept_sqlite)
    await harness.open()
    vanished, _ = await harness.start(a_run(key="a"), a_run(key="b"))
    blocked = a_run(key="a")
    await harness.submit(blocked)
    connection = connect(harness.store.path)
    connection.execute("DELETE FROM run WHERE id = ?", (vanished.id,))
    connection.close()
    assert await harness.state(blocked.id) is RunState.BLOCKED
    assert await harness.store.sweep(10) == 1
    assert await harness.state(blocked.id) is RunState.QUEUED
    await harness.close()
