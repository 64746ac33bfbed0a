"""``mainspring backup`` and ``restore``: everything comes back, and no run starts before it is released."""

import errno
import json
import os
import tempfile
import uuid
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import msgspec
import pytest

from mainspring.core.model.base.instant import DAY, HOUR, SECOND, Instant
from mainspring.core.model.runs.completion import complete_success
from mainspring.core.model.runs.new_run import Idempotency
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.schedules.plan import plan
from mainspring.core.model.workflows.dependencies import DependencyRule
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.catalog import Pause
from mainspring.core.ports.storage.outbox import EventBatch
from mainspring.core.ports.upkeep.backup import FORMAT
from mainspring.core.runtime.backup_file import MANIFEST, BackupFileReader
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.core.store import Demand
from mainspring.stores import statements
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.postgres.database import PACKAGE
from mainspring.stores.postgres.schema import newest
from mainspring.stores.sqlite import SqliteStore
from mainspring.stores.sqlite import connection as connections
from tests.cli.test_move import ALL, SHARDS, Installation, everything, run
from tests.support.builders import a_job, a_run, a_spec, a_worker, every, some_runs
from tests.support.databases import as_administrator, create_database, drop_database, with_database, with_user
from tests.support.waiting import eventually

#: What a restore changes: a pause that holds all runs, and an audit entry.
CHANGED = ("pauses", "audit")


class Site:
    """A store with data, and the address of another that does not exist yet."""

    def __init__(self, source: str, target: str, installation: Installation) -> None:
        self.source = source
        self.target = target
        self.installation = installation

    @asynccontextmanager
    async def open(self, address: str) -> AsyncIterator[Any]:
        is_postgres = address.startswith("postgresql")
        store: Any = (
            PostgresStore(address, shards=SHARDS)
            if is_postgres
            else SqliteStore(Path(address), SystemClock(), shards=SHARDS)
        )
        await store.open()
        try:
            yield store
        finally:
            await store.close()


@asynccontextmanager
async def databases(dsn: str, *names: str) -> AsyncIterator[list[str]]:
    made = [f"test_{name}_{uuid.uuid4().hex}" for name in names]
    for name in made:
        await create_database(dsn, name)
    yield [with_database(dsn, name) for name in made]
    for name in made:
        await drop_database(dsn, name)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
async def site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Site]:
    installation = Installation(tmp_path / "mainspring.db")
    await installation.fill()
    await installation.stop()
    if request.param == "sqlite":
        yield Site(str(installation.path), str(tmp_path / "restored.db"), installation)
        return
    async with databases(request.getfixturevalue("postgres_dsn"), "before", "restored") as (source, target):
        assert (await run("move", "--from", str(installation.path), "--to", source)).exit_code == 0
        yield Site(source, target, installation)


async def command(*arguments: str) -> Any:
    done = await run(*arguments, "--json")
    assert done.exit_code == 0, (done.output, done.exception)
    return json.loads(done.stdout)


async def refused(*arguments: str) -> str:
    done = await run(*arguments)
    assert done.exit_code != 0
    return str(done.exception)


async def test_restore_brings_everything_back(site: Site, tmp_path: Path) -> None:
    file = str(tmp_path / "a.backup")
    async with site.open(site.source) as store:
        expected = await everything(store, site.installation)
    report = await command("backup", file, "--store", site.source)
    assert report["unfinished"]["running"] == 2
    assert report["rows"]["job"] == len(site.installation.jobs)
    assert (await command("backup", "verify", file))["rows"] == report["rows"]

    restored = await command("restore", file, "--store", site.target)
    assert restored["held"]
    async with site.open(site.target) as store:
        found = await everything(store, site.installation)
        everywhere = [pause for pause in found["pauses"] if pause.tenant is None and pause.queue is None]
        assert "restored from a backup of" in everywhere[0].why
        assert [pause for pause in found["pauses"] if pause not in everywhere] == expected["pauses"]
        assert found["audit"][0].action == "store.restore"
        assert found["audit"][1:] == expected["audit"]
        # Held runs do not count as waiting for a worker.
        expected["depths"] = [msgspec.structs.replace(depth, oldest_ready=None) for depth in expected["depths"]]
        for name, value in expected.items():
            assert name in CHANGED or found[name] == value, name


async def test_restored_runs_are_held_until_they_are_released(site: Site, tmp_path: Path) -> None:
    file = str(tmp_path / "a.backup")
    async with site.open(site.source) as store:
        # Its only tick is between the backup and the restore.
        tick = await store.now() + SECOND
        await store.put_jobs([a_job(a_spec(name="seldom", schedule=every(DAY, start=tick)))])
    await command("backup", file, "--store", site.source)
    await wait_for_time(site, tick)
    await command("restore", file, "--store", site.target)
    async with site.open(site.target) as store:
        scheduler = await store.join("scheduler", HOUR)
        assert len(await store.take(scheduler, ALL)) == SHARDS
        worker = await store.open_session(a_worker(ttl=HOUR))
        # Session numbers that the old store gave out after the backup are not used again.
        assert worker > 1_000_000
        # Old leases are void: running runs are lost, and retried by the usual rules.
        lost = await store.lost_runs(100)
        assert {run.id for run in lost} == {run.id for run in site.installation.held[1:]}
        # Ticks since the backup follow the catch-up rule of each job and are in the ledger.
        jobs = await store.due_jobs(ALL, await store.now(), 100)
        assert jobs
        await store.fire(scheduler, plan(jobs, await store.now()))
        await store.stage(scheduler, ALL, 1_000)
        assert await store.claim(worker, 1, [Demand("default", 1_000), Demand("family", 100)]) == []

    seen = await command("restore", "review", "--store", site.target)
    assert seen["held"]
    doubts = {one["id"]: one["doubt"] for one in seen["inDoubt"]}
    assert {run.id for run in site.installation.held[1:]} <= set(doubts)
    assert "its tick may have run" in doubts.values()
    # A run submitted after the restore is not in doubt.
    async with site.open(site.target) as store:
        [new] = await store.submit([a_run()])
    assert new.id not in {one["id"] for one in (await command("restore", "review", "--store", site.target))["inDoubt"]}

    # A log of the old store says that some runs have finished.
    done = [one for one in doubts if doubts[one] == "it may have run since"][:2]
    assert len(done) == 2
    finished = tmp_path / "finished.jsonl"
    events = [
        *(
            {"id": "1-0", "type": kind, "data": {"runId": one}}
            for one in doubts
            for kind in ("job.submitted", "run.retried")
        ),
        {"id": "2-0", "type": "worker.joined", "data": {"workerId": "7"}},
        {"id": "3-0", "type": "run.succeeded", "data": {"runId": done[1]}},
    ]
    finished.write_text("\n".join([done[0], *map(json.dumps, events)]))
    assert await command("restore", "finished", str(finished), "--store", site.target) == {
        "completed": {"succeeded": 2},
        "skipped": 2 * len(doubts) + 1,
    }
    assert (await command("restore", "release", "--store", site.target))["released"]
    async with site.open(site.target) as store:
        claimed = await store.claim(worker, 2, [Demand("default", 1_000)])
        assert claimed
        assert not {run.id for run in claimed} & set(done)
        # Fences are greater than any that the old store can have given out since.
        assert min(run.fence for run in claimed) > max(run.fence for run in site.installation.held) + (1 << 39)
        assert all(await store.complete([complete_success(run, None) for run in claimed]))
        assert not {run.id for run in await store.claim(worker, 3, [Demand("default", 1_000)])} & {
            run.id for run in claimed
        }
        # Idempotency keys survive the restore.
        [answer] = await store.submit([a_run(tenant="acme", idempotency=Idempotency("once", b"\x01" * 16))])
        assert (answer.new, answer.conflict) == (False, False)


async def test_unfinished_runs_are_rerun_or_cancelled_as_chosen(site: Site, tmp_path: Path) -> None:
    file = str(tmp_path / "a.backup")
    await command("backup", file, "--store", site.source)
    report = await command("restore", file, "--store", site.target, "--unfinished", "rerun")
    assert not report["held"]
    assert report["inDoubt"] > 10
    async with site.open(site.target) as store:
        worker = await store.open_session(a_worker(ttl=HOUR))
        assert await store.claim(worker, 1, [Demand("default", 1)])
        await store.close_session(worker)
    report = await command("restore", file, "--store", site.target, "--unfinished", "cancel", "--replace")
    assert report["cancelled"] > 10
    async with site.open(site.target) as store:
        worker = await store.open_session(a_worker(ttl=HOUR))
        assert await store.claim(worker, 1, [Demand("default", 1_000)]) == []


async def test_restore_keeps_a_pause_set_by_an_operator(site: Site, tmp_path: Path) -> None:
    file, again = str(tmp_path / "a.backup"), str(tmp_path / "b.backup")
    async with site.open(site.source) as store:
        await store.pause(Pause(tenant=None, queue=None), Author("ada", why="a freeze"))
        pauses = await store.pauses()
    await command("backup", file, "--store", site.source)
    for first in (True, False):
        await command("restore", file, "--store", site.target, "--replace")
        assert (await command("restore", "review", "--store", site.target))["held"]
        if first:
            # A backup of a held store leaves out the pause of the restore.
            await command("backup", again, "--store", site.target)
            file = again
        report = await command("restore", "release", "--store", site.target)
        assert (report["released"], report["paused"]) == (True, True)
        async with site.open(site.target) as store:
            assert await store.pauses() == pauses
            worker = await store.open_session(a_worker(ttl=HOUR))
            assert await store.claim(worker, 1, [Demand("default", 1)]) == []
            await store.close_session(worker)
        assert not (await command("restore", "review", "--store", site.target))["held"]
        # A second release does not lift the operator's pause.
        report = await command("restore", "release", "--store", site.target)
        assert (report["released"], report["paused"]) == (False, True)
    for unfinished in ("cancel", "rerun"):
        await command("restore", file, "--store", site.target, "--replace", "--unfinished", unfinished)
    async with site.open(site.target) as store:
        await store.resume(None, None, Author("ada"))
    await command("backup", str(tmp_path / "c.backup"), "--store", site.target)
    await command("restore", str(tmp_path / "c.backup"), "--store", site.target, "--replace")
    report = await command("restore", "release", "--store", site.target)
    assert (report["released"], report["paused"]) == (True, False)


async def read_events(store: Any, batches: int) -> list[EventBatch]:
    """Read so many batches. Open transactions of other tests on the server can delay events."""

    async def read() -> list[EventBatch]:
        found: list[EventBatch] = await store.events("sink", 100)
        return found if len(found) >= batches else []

    return await eventually(read)


async def wait_for_time(site: Site, moment: Instant) -> None:
    """Wait until the clock of the store has passed a moment."""
    async with site.open(site.source) as store:

        async def has_passed() -> bool:
            return bool(await store.now() > moment)

        await eventually(has_passed)


async def test_restore_completes_runs_that_are_listed_as_finished(site: Site, tmp_path: Path) -> None:
    file, finished = str(tmp_path / "a.backup"), tmp_path / "finished.jsonl"
    async with site.open(site.source) as store:
        [ended, _] = await store.submit([a_run(), a_run()])
    await command("backup", file, "--store", site.source)
    finished.write_text(f'{{"type": "job.submitted", "runId": "{ended.id}"}}\n{ended.id}\n{a_run().id}\n')
    report = await command("restore", file, "--store", site.target, "--finished", str(finished))
    assert (report["completed"], report["cancelled"], report["skipped"]) == ({"succeeded": 1}, 0, 1)


async def test_dependents_of_finished_runs_continue_after_a_restore(site: Site, tmp_path: Path) -> None:
    """The parent completed after the backup was taken, and its child had not started when the store was lost."""
    file, finished = str(tmp_path / "a.backup"), tmp_path / "finished.jsonl"
    good, bad, printed, open_one = some_runs(4, queue="families")
    child, hopeless, reading = a_run(after=[good]), a_run(after=[bad]), a_run(after=[printed], queue="families")
    careful = a_run(after=[bad], rule=DependencyRule.ANY_FAILED)
    async with site.open(site.source) as store:
        worker = await store.open_session(a_worker(ttl=HOUR))
        await store.submit([good, bad, printed, open_one])
        # Any one of them runs when the backup is taken.
        [held] = await store.claim(worker, 1, [Demand("families", 1)])
        assert held.id in (good.id, bad.id, printed.id, open_one.id)
        await store.submit([child, hopeless, reading, careful])
        await store.close_session(worker)
    await command("backup", file, "--store", site.source)
    await command("restore", file, "--store", site.target)
    lines = [
        {"id": "1-0", "type": "run.succeeded", "data": {"runId": good.id, "task": "greet"}},
        *(
            {"id": "2-0", "type": kind, "data": {"runId": bad.id, "reason": "error", "error": "ValueError: no"}}
            for kind in ("run.failed", "run.dead")
        ),
        {"runId": printed.id, "status": "succeeded", "result": {"pages": 3}},
        {"runId": open_one.id, "status": "running"},
    ]
    finished.write_text("\n".join(map(json.dumps, lines)))
    report = await command("restore", "finished", str(finished), "--store", site.target)
    assert report == {"completed": {"failed": 1, "succeeded": 2}, "skipped": 1}
    # A second call completes nothing more.
    assert (await command("restore", "finished", str(finished), "--store", site.target))["completed"] == {}
    async with site.open(site.target) as store:
        await store.lost_runs(100)
        while await store.resolve(1_000):
            pass
        states = {run.id: run.state for run in await store.runs([child.id, hopeless.id, reading.id, careful.id])}
        assert states == {
            child.id: RunState.QUEUED,
            hopeless.id: RunState.SKIPPED,
            reading.id: RunState.QUEUED,
            careful.id: RunState.QUEUED,
        }
        [failed] = await store.runs([bad.id])
        assert (failed.state, failed.reason, failed.error) == (RunState.FAILED, "error", "ValueError: no")
        [parent] = await store.parents(reading.id)
        assert json.loads(parent.result) == {"pages": 3}
    doubts = {one["id"] for one in (await command("restore", "review", "--store", site.target))["inDoubt"]}
    assert not doubts & {good.id, bad.id, printed.id, hopeless.id}
    assert {child.id, reading.id, careful.id, open_one.id} <= doubts
    await command("restore", "release", "--store", site.target)
    async with site.open(site.target) as store:
        worker = await store.open_session(a_worker(ttl=HOUR))
        claimed = await store.claim(worker, 1, [Demand("default", 1_000), Demand("families", 1_000)])
        assert {child.id, reading.id, careful.id} <= {run.id for run in claimed}


async def test_unread_events_are_delivered_after_a_restore(site: Site, tmp_path: Path) -> None:
    async with site.open(site.source) as store:
        await store.attach_reader("sink")
        [first] = await store.submit([a_run()])
        [batch] = await read_events(store, 1)
        await store.acknowledge("sink", batch.position)
        [second] = await store.submit([a_run()])
    file = str(tmp_path / "a.backup")
    await command("backup", file, "--store", site.source)
    await command("restore", file, "--store", site.target)
    async with site.open(site.target) as store:
        [third] = await store.submit([a_run()])
        delivered = [run for batch in await read_events(store, 2) for run in batch.runs]
        assert delivered == [second.id, third.id]
        assert first.id not in delivered


async def test_backup_and_restore_refuse_wrong_files_and_stores(site: Site, tmp_path: Path) -> None:
    file = str(tmp_path / "a.backup")
    await command("backup", file, "--store", site.source)
    assert "is there already" in await refused("backup", file, "--store", site.source)
    assert "not empty" in await refused("restore", file, "--store", site.source)
    async with site.open(site.source) as store:
        await store.open_session(a_worker(ttl=HOUR))
        assert "processes work on" in await refused("restore", file, "--store", site.source, "--replace")
    # The store is unchanged.
    async with site.open(site.source) as store:
        assert (await store.jobs(site.installation.jobs))[0] is not None

    manifest = BackupFileReader(Path(file)).manifest
    newer = msgspec.structs.replace(manifest, migrations=(*manifest.migrations, 9_000))
    assert "schema version 9000" in await refused(
        "restore", str(alter(Path(file), tmp_path / "newer", newer)), "--store", site.target
    )
    strange = msgspec.structs.replace(manifest, format=FORMAT + 1)
    assert "upgrade the program" in await refused("backup", "verify", str(alter(Path(file), tmp_path / "f", strange)))
    older = msgspec.structs.replace(manifest, format=FORMAT - 1)
    assert "older checkout" in await refused(
        "restore", str(alter(Path(file), tmp_path / "g", older)), "--store", site.target
    )

    [part] = [part for part in manifest.parts if part.name in ("store.db", "history")]
    damaged = msgspec.structs.replace(
        manifest,
        parts=tuple(msgspec.structs.replace(one, sha256="0" * 64) if one is part else one for one in manifest.parts),
    )
    broken = str(alter(Path(file), tmp_path / "broken", damaged))
    assert "is damaged" in await refused("backup", "verify", broken)
    assert "is damaged" in await refused("restore", broken, "--store", site.target)
    # A truncated file and a missing one.
    (tmp_path / "half").write_bytes((tmp_path / "a.backup").read_bytes()[:5_000])
    assert "is not a whole backup" in await refused("restore", str(tmp_path / "half"), "--store", site.target)
    assert "there is no" in await refused("backup", "verify", str(tmp_path / "nowhere"))
    assert "was not restored" in await refused("restore", "review", "--store", site.source)
    (tmp_path / "ids").write_text("abc\n")
    assert "line 1: 'abc'" in await refused("restore", "finished", str(tmp_path / "ids"), "--store", site.source)
    # The refused restores left the target usable.
    await command("restore", file, "--store", site.target)


@pytest.mark.postgres
async def test_backup_needs_a_role_that_sees_all_rows(postgres_dsn: str, tmp_path: Path) -> None:
    role, file = f"test_backup_{uuid.uuid4().hex[:8]}", str(tmp_path / "a.backup")
    async with databases(postgres_dsn, "walled") as (source,):
        store = PostgresStore(source, shards=SHARDS)
        await store.open()
        await store.submit([a_run()])
        await store.close()
        admin = await asyncpg.connect(as_administrator(source))
        await admin.execute(f"CREATE ROLE {role} LOGIN IN ROLE pg_read_all_data")
        try:
            refusal = await refused("backup", file, "--store", with_user(source, role))
            assert "row-level security" in refusal
            assert "BYPASSRLS" in refusal
            await admin.execute(f"ALTER ROLE {role} BYPASSRLS")
            assert (await command("backup", file, "--store", with_user(source, role)))["rows"]["run"] == 1
            await admin.execute(f"REVOKE pg_read_all_data FROM {role}; GRANT USAGE ON SCHEMA mainspring TO {role}")
            await admin.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA mainspring TO {role}")
            assert "may not read" in await refused("backup", f"{file}2", "--store", with_user(source, role))
        finally:
            await admin.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
            await admin.close()


@pytest.mark.postgres
async def test_replace_keeps_grants_and_refuses_while_dependent_objects_exist(
    postgres_dsn: str, tmp_path: Path
) -> None:
    role, file = f"test_shop_{uuid.uuid4().hex[:8]}", str(tmp_path / "a.backup")
    async with databases(postgres_dsn, "replaced") as (source,):
        store = PostgresStore(source, shards=SHARDS)
        await store.open()
        await store.submit([a_run()])
        await store.close()
        await command("backup", file, "--store", source)
        admin = await asyncpg.connect(as_administrator(source))
        owner = await asyncpg.connect(source)
        await admin.execute(f"CREATE ROLE {role} LOGIN")
        try:
            # Those of docs/guides/transactions.md, and more.
            for right in (
                "USAGE ON SCHEMA mainspring",
                "EXECUTE ON FUNCTION mainspring.submit_runs",
                "EXECUTE ON FUNCTION mainspring.submit",
                "SELECT ON mainspring.meta",
                "SELECT (id, name) ON mainspring.name",
                "USAGE ON SEQUENCE mainspring.session_id_seq",
            ):
                await owner.execute(f"GRANT {right} TO {role}")
            await owner.execute("GRANT SELECT ON mainspring.shard TO PUBLIC")
            await owner.execute(f"ALTER DEFAULT PRIVILEGES IN SCHEMA mainspring GRANT SELECT ON TABLES TO {role}")
            rights = await owner.fetch(_RIGHTS)
            assert len([right for right in rights if role in str(right)]) >= 7
            await admin.execute(
                "CREATE VIEW public.runs AS SELECT id FROM mainspring.run;"
                "CREATE VIEW mainspring.mine AS SELECT 1;"
                "CREATE TABLE public.theirs (at bigint DEFAULT mainspring.now_us());"
            )
            refusal = await refused("restore", file, "--store", source, "--replace")
            assert 'rule "_RETURN" on public.runs' in refusal
            assert "public.theirs.at" in refusal
            assert "view mainspring.mine" in refusal
            await admin.execute("DROP VIEW public.runs, mainspring.mine; DROP TABLE public.theirs")
            await command("restore", file, "--store", source, "--replace")
            assert await owner.fetch(_RIGHTS) == rights
            shop = await asyncpg.connect(with_user(source, role))
            assert await shop.fetchval("SELECT mainspring.submit('greet')")
            await shop.close()
        finally:
            await owner.close()
            await admin.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
            await admin.close()


_RIGHTS = """
SELECT 'schema', nspacl::text FROM pg_namespace WHERE nspname = 'mainspring'
UNION ALL SELECT relname, relacl::text FROM pg_class WHERE relnamespace = 'mainspring'::regnamespace
UNION ALL SELECT attname, attacl::text FROM pg_attribute WHERE attrelid = 'mainspring.name'::regclass
UNION ALL SELECT proname, proacl::text FROM pg_proc WHERE pronamespace = 'mainspring'::regnamespace
UNION ALL SELECT 'default', defaclacl::text FROM pg_default_acl
ORDER BY 1, 2
"""


async def test_restore_refuses_to_replace_an_open_file(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "a.db", SystemClock(), shards=SHARDS)
    await store.open()
    file = str(tmp_path / "a.backup")
    try:
        await store.submit([a_run()])
        await command("backup", file, "--store", str(tmp_path / "a.db"))
        refusal = await refused("restore", file, "--store", str(tmp_path / "a.db"), "--replace")
        assert "another process, such as an API, has" in refusal
        [answer] = await store.submit([a_run()])
        assert answer.new
    finally:
        await store.close()
    await command("restore", file, "--store", str(tmp_path / "a.db"), "--replace")


async def test_restore_replaces_a_damaged_file_and_keeps_a_copy(tmp_path: Path) -> None:
    path, file = tmp_path / "a.db", str(tmp_path / "a.backup")
    await create_store(path)
    await command("backup", file, "--store", str(path))
    path.write_bytes(b"no database " * 1_000)
    path.with_name("a.db-wal").write_bytes(b"of before")
    assert "is damaged" in await refused("restore", file, "--store", str(path))
    await command("restore", file, "--store", str(path), "--replace")
    assert not path.with_name("a.db-wal").exists()
    [kept, *logs] = sorted(name for name in os.listdir(tmp_path) if name.startswith("a.db.before-"))
    assert (tmp_path / kept).read_bytes() == b"no database " * 1_000
    assert f"{kept}-wal" in logs
    store = SqliteStore(path, SystemClock(), shards=SHARDS)
    await store.open()
    await store.close()


async def test_a_failed_restore_leaves_the_old_file_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, file = tmp_path / "a.db", str(tmp_path / "a.backup")
    await create_store(path)
    await command("backup", file, "--store", str(path))
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "replace", fail)
    assert "Input/output error" in await refused("restore", file, "--store", str(path), "--replace")
    assert path.read_bytes() == before
    monkeypatch.undo()
    await command("restore", file, "--store", str(path), "--replace")
    assert path.read_bytes() != before
    kept = [name for name in os.listdir(tmp_path) if name.startswith("a.db.before-")]
    assert {(tmp_path / name).read_bytes() for name in kept} == {before}


async def test_backup_counts_waiting_dependents_as_blocked(site: Site, tmp_path: Path) -> None:
    async with site.open(site.source) as store:
        parent = a_run(delay=HOUR)
        await store.submit([parent, a_run(after=[parent])])
    report = await command("backup", str(tmp_path / "a.backup"), "--store", site.source)
    assert report["unfinished"]["blocked"] > 0
    assert set(report["unfinished"]) <= {state.value for state in RunState}


async def test_a_refused_restore_does_not_migrate_the_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = str(tmp_path / "a.backup")
    await create_store(tmp_path / "a.db")
    await command("backup", file, "--store", str(tmp_path / "a.db"))
    connection = apsw.Connection(str(tmp_path / "old.db"))
    connections.migrate(connection, SHARDS)
    version = connections.schema_version(connection)
    connection.execute(
        "INSERT INTO api_key (id, name, role, secret_hash, queues, made_by, created_at) "
        "VALUES ('k', 'k', 'admin', '00', '[]', 'me', 1)"
    )
    connection.close()
    newer = (version + 1, "newer.sql", "ALTER TABLE meta ADD COLUMN color TEXT")
    monkeypatch.setattr(connections, "MIGRATIONS", [*connections.MIGRATIONS, newer])
    assert "not empty" in await refused("restore", file, "--store", str(tmp_path / "old.db"))
    connection = apsw.Connection(str(tmp_path / "old.db"))
    assert connections.schema_version(connection) == version
    connection.close()


async def test_disk_errors_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, file = tmp_path / "a.db", str(tmp_path / "a.backup")
    await create_store(path)
    # Another process is writing a backup of the same name.
    part = tmp_path / "a.backup.part"
    part.write_bytes(b"theirs")
    assert "another backup is being written" in await refused("backup", file, "--store", str(path))
    assert part.read_bytes() == b"theirs"
    part.unlink()
    await command("backup", file, "--store", str(path))

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile.TemporaryDirectory, "__init__", full)
    assert "No space left" in await refused("backup", "verify", file)
    assert "No space left" in await refused("restore", file, "--store", str(tmp_path / "b.db"))
    monkeypatch.undo()
    monkeypatch.setattr("mainspring.stores.sqlite.upkeep.backup._extract", full)
    assert "No space left" in await refused("restore", file, "--store", str(tmp_path / "b.db"))
    monkeypatch.undo()
    spoil_manifest(Path(file), tmp_path / "spoilt")
    assert "is not a whole backup" in await refused("backup", "verify", str(tmp_path / "spoilt"))


async def create_store(path: Path) -> None:
    store = SqliteStore(path, SystemClock(), shards=SHARDS)
    await store.open()
    await store.close()


def spoil_manifest(file: Path, to: Path) -> None:
    whole = bytearray(file.read_bytes())
    with zipfile.ZipFile(file) as archive:
        entry = archive.getinfo(MANIFEST)
    first = entry.header_offset + 30 + len(MANIFEST)
    whole[first : first + entry.compress_size] = b"\xff" * entry.compress_size
    to.write_bytes(whole)


def alter(file: Path, to: Path, manifest: Any) -> Path:
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(to, "w") as new:
        for name in old.namelist():
            content = msgspec.json.encode(manifest) if name == MANIFEST else old.read(name)
            new.writestr(name, content)
    return to


async def test_backup_and_restore_refuse_another_kind_of_store(tmp_path: Path) -> None:
    await create_store(tmp_path / "a.db")
    file = str(tmp_path / "a.backup")
    await command("backup", file, "--store", str(tmp_path / "a.db"))
    assert "mainspring move" in await refused("restore", file, "--store", "postgresql://nobody@localhost:1/x")
    assert "several servers" in await refused(
        "backup", str(tmp_path / "b"), "--store", '["postgresql://a/x", "postgresql://b/x"]'
    )
    assert "keeps nothing" in await refused("backup", str(tmp_path / "b"), "--store", "memory:")
    assert "there is no store" in await refused("backup", str(tmp_path / "b"), "--store", str(tmp_path / "none.db"))
    assert "b" not in os.listdir(tmp_path)


@pytest.mark.postgres
async def test_restore_migrates_a_backup_of_an_older_schema(
    postgres_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, known = str(tmp_path / "a.backup"), statements.migrations(PACKAGE)
    newer = (newest() + 1, "newer.sql", "-- expand\nALTER TABLE meta ADD COLUMN color text NOT NULL DEFAULT 'red'")
    async with databases(postgres_dsn, "older", "newer") as (source, target):
        store = PostgresStore(source, shards=8)
        await store.open()
        await store.close()
        await command("backup", file, "--store", source)
        monkeypatch.setattr(statements, "migrations", lambda _: [*known, newer])
        await command("restore", file, "--store", target)
        connection = await asyncpg.connect(target)
        assert await connection.fetchval("SELECT max(version) FROM mainspring.migration") == newest() == newer[0]
        assert await connection.fetchval("SELECT color FROM mainspring.meta") == "red"
        await connection.close()
        store = PostgresStore(target, shards=8)
        await store.open()
        try:
            assert (await store.submit([a_run()]))[0].new
        finally:
            await store.close()


async def test_a_restored_job_catches_up_on_missed_ticks(site: Site, tmp_path: Path) -> None:
    """The ledger has the ticks between the backup and the restore, decided by the catch-up rule."""
    async with site.open(site.source) as store:
        now = await store.now()
        put = await store.put_jobs([a_job(a_spec(name="steady", schedule=every(SECOND, start=now)))])
        job = put[0].job.id
    file = str(tmp_path / "a.backup")
    await command("backup", file, "--store", site.source)
    await wait_for_time(site, now + 2 * SECOND)
    await command("restore", file, "--store", site.target)
    async with site.open(site.target) as store:
        scheduler = await store.join("scheduler", HOUR)
        await store.take(scheduler, ALL)
        now = await store.now()
        await store.fire(scheduler, plan(await store.due_jobs(ALL, now, 100), now))
        ledger = await store.ledger(job, 0, 2**60, 10_000)
        assert ledger
        last = ledger[-1].last_at or ledger[-1].scheduled_at
        assert 0 <= now - last < SECOND
        queued = [run for run in await store.runs([entry.run_id for entry in ledger if entry.run_id]) if run]
        assert all(run.state is RunState.QUEUED for run in queued)
