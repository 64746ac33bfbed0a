"""A SQLite file that is corrupt, is no database, or disappears: nothing is acknowledged, and the error says why."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import apsw
import httpx2
import pytest
from structlog.testing import capture_logs

from mainspring.core.model.base.errors import StoreDamaged
from mainspring.core.model.cluster.diagnosis import Finding
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.stores.sqlite import SqliteStore, threads
from mainspring.stores.sqlite.upkeep.health import SqliteHealth
from tests.api.conftest import Service
from tests.support.builders import a_run, a_worker
from tests.support.waiting import eventually


def replace(path: Path) -> None:
    path.rename(path.with_suffix(".old"))
    path.write_bytes(path.with_suffix(".old").read_bytes())


def remove_log(path: Path) -> None:
    Path(f"{path}-wal").unlink()


def truncate(path: Path) -> None:
    path.write_bytes(b"")


def overwrite(path: Path) -> None:
    """As ``cp`` does, into the same inode."""
    path.write_bytes(path.read_bytes()[:4_096])


def take_log_into_file(path: Path) -> None:
    """So that the file itself holds the database."""
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


async def test_a_store_by_a_relative_path_stays_usable_in_another_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.chdir(tmp_path)
    store = SqliteStore(Path("store.db"), SystemClock())
    await store.open()
    try:
        monkeypatch.chdir(other)
        await store.submit([a_run()])
        assert list(other.iterdir()) == []
    finally:
        await store.close()


@pytest.mark.parametrize(
    "harm",
    [Path.unlink, replace, remove_log, truncate, overwrite],
    ids=["removed", "replaced", "log removed", "truncated", "overwritten"],
)
async def test_nothing_is_acknowledged_after_the_file_was_removed_or_replaced(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    store = SqliteStore(tmp_path / "store.db", SystemClock())
    await store.open()
    try:
        await store.submit([a_run()])
        take_log_into_file(store.path)
        await store.submit([a_run()])
        await store.runs([])
        await store.now()
        harm(store.path)
        with pytest.raises(StoreDamaged, match="while it was in use"):
            await store.submit([a_run()])
        with pytest.raises(StoreDamaged):
            await store.runs([])
        service = Service(auth=False, store=store)
        async with service.client() as client:
            answers = [await client.get(path) for path in ("/healthz", "/readyz")]
            refused: httpx2.Response = await client.post("/v1/jobs", json={"task": "t"})
        for answer in answers:
            assert answer.status_code == 503
            assert "while it was in use" in answer.json()["problems"][0]
        assert (refused.status_code, refused.json()["title"]) == (500, "Store damaged")
    finally:
        await store.close()


async def a_store(path: Path, runs: int) -> SqliteStore:
    store = SqliteStore(path, SystemClock())
    await store.open()
    await store.submit([a_run() for _ in range(runs)])
    return store


async def a_file(path: Path, runs: int) -> bytes:
    """A store that was closed: all of it is in the file."""
    await (await a_store(path, runs)).close()
    return read_all(path.parent)[path]


def read_all(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.iterdir())}


def write_in_place(path: Path, content: bytes) -> None:
    with path.open("r+b") as file:
        file.write(content)


@pytest.mark.parametrize("origin", ["an earlier copy", "another store", "a copy that was used elsewhere", "zeros"])
@pytest.mark.parametrize("longer", [0, 100], ids=["same size", "larger"])
async def test_a_file_that_is_overwritten_in_place_is_noticed(tmp_path: Path, origin: str, longer: int) -> None:
    path = tmp_path / "store.db"
    content = await a_file(path, 300)
    if origin == "another store":
        content = await a_file(tmp_path / "other.db", 300)
    elif origin == "a copy that was used elsewhere":
        (tmp_path / "elsewhere.db").write_bytes(content)
        content = await a_file(tmp_path / "elsewhere.db", 5)
    elif origin == "zeros":
        content = bytes(len(content))
    store = await a_store(path, 1)
    try:
        content = content.ljust(path.stat().st_size + longer * 4_096, b"\0")
        write_in_place(path, content)
        with pytest.raises(StoreDamaged, match="while it was in use"):
            await store.submit([a_run()])
        with pytest.raises(StoreDamaged):
            await store.now()
    finally:
        await store.close()


async def test_a_file_that_was_put_in_place_under_a_process_is_not_changed_by_it(tmp_path: Path) -> None:
    """Neither when the process ends, nor by the log that it leaves, when the next one starts."""
    path = tmp_path / "store.db"
    content = await a_file(tmp_path / "other.db", 300)
    store = await a_store(path, 50)
    write_in_place(path, content)
    with pytest.raises(StoreDamaged):
        await store.submit([a_run()])
    await store.close()
    files = read_all(tmp_path)
    assert files[path].startswith(content)
    assert path.with_name("store.db-wal") not in files
    assert len([each for each in files if ".db-wal.lost-" in each.name]) == 1
    await store.open()
    assert [depth.queued for depth in await store.depths()] == [300]
    await store.close()


async def test_log_and_file_that_are_overwritten_with_an_earlier_copy_are_noticed(tmp_path: Path) -> None:
    """As ``cp backup/* .`` does, with what a process had written until the copy was made."""
    path = tmp_path / "store.db"
    store = await a_store(path, 10)
    guard = store._guard
    try:
        files = read_all(tmp_path)
        await eventually(lambda: guard._progress)
        before = guard._progress
        for _ in range(3):
            await store.open_session(a_worker())
        await eventually(lambda: guard._progress > before)
        for each, content in files.items():
            write_in_place(each, content)
        await eventually(lambda: guard._damage)
        with pytest.raises(StoreDamaged, match="while it was in use"):
            await store.submit([a_run()])
    finally:
        await store.close()


async def test_damage_is_noticed_and_logged_without_a_request(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    content = await a_file(tmp_path / "other.db", 300)
    store = await a_store(path, 1)
    try:
        with capture_logs() as logs:
            write_in_place(path, content)
            await eventually(lambda: any(entry["event"] == "store damaged" for entry in logs))
        [entry] = logs
        assert "overwritten while it was in use" in entry["error"]
        [finding] = await find_in_doctor(path, "file in use")
        assert f"process {os.getpid()}: {path} was overwritten" in finding.says
        path.unlink()
        assert len(await find_in_doctor(path, "file in use")) == 1
    finally:
        await store.close()
    assert await find_in_doctor(path, "file in use") == []


async def test_the_damage_that_two_stores_of_a_process_notice_is_published_with_its_reason(tmp_path: Path) -> None:
    """``mainspring up`` opens the file twice. The second store must not empty the notice of the first."""
    path = tmp_path / "store.db"
    one, other = await a_store(path, 1), await a_store(path, 1)
    with capture_logs() as logs:
        path.unlink()
        await eventually(lambda: [entry["event"] for entry in logs].count("store damaged") == 2)
    [finding] = await find_in_doctor(path, "file in use")
    assert finding.says == f"process {os.getpid()}: {path} was removed while it was in use; restart with a backup"
    await other.close()
    assert await find_in_doctor(path, "file in use") == [finding]
    await one.close()
    assert await find_in_doctor(path, "file in use") == []


async def find_in_doctor(path: Path, check: str) -> list[Finding]:
    examination = await SqliteHealth(path, SystemClock()).examine()
    return [finding for finding in examination.findings if finding.check == check]


async def test_checkpoints_of_several_stores_on_one_file_are_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "CHECKPOINT_PAGES", 8)
    stores = [SqliteStore(tmp_path / "store.db", SystemClock()) for _ in range(3)]
    for store in stores:
        await store.open()
    try:
        for _ in range(100):
            await asyncio.gather(*(store.submit([a_run() for _ in range(5)]) for store in stores))
            await asyncio.gather(*(store.depths() for store in stores))
        stamps = await stores[0]._read(
            lambda connection: connection.execute("SELECT count(*) FROM file_generation").get
        )
        assert stamps > 100
    finally:
        for store in stores:
            await store.close()


@pytest.mark.parametrize("content", [b"not a database " * 1_000, b"SQLite format 3\0" + b"\xff" * 8_192])
async def test_a_file_that_is_no_database_is_an_error_at_start(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(content)
    with pytest.raises(StoreDamaged, match="damaged, or is no SQLite database"):
        await SqliteStore(path, SystemClock()).open()
    assert path.read_bytes() == content


async def ask_about_damage(store: SqliteStore) -> tuple[list[tuple[int, str]], tuple[int, str]]:
    """What the probes answer, and what a submit answers."""
    service = Service(auth=False, store=store)
    async with service.client() as client:
        refused = await client.post("/v1/jobs", json={"task": "t"})
        answers = [await client.get(path) for path in ("/healthz", "/readyz")]
    probes = [(answer.status_code, " ".join(answer.json().get("problems", []))) for answer in answers]
    return probes, (refused.status_code, refused.json()["title"])


async def test_probes_report_corrupt_pages_that_a_request_has_met(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db", SystemClock())
    await store.open()
    try:
        await store.submit([a_run()])
        take_log_into_file(store.path)
        size = store.path.stat().st_size
        with store.path.open("r+b") as file:
            file.seek(4_096)
            file.write(b"\xff" * (size - 4_096))
        probes, refused = await ask_about_damage(store)
    finally:
        await store.close()
    assert refused == (500, "Store damaged")
    assert [status for status, _ in probes] == [503, 503]
    assert all("damaged" in problem for _, problem in probes)


async def test_tables_that_are_gone_are_damage_and_no_fault_of_the_request(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db", SystemClock())
    await store.open()
    try:
        await store.submit([a_run()])
        other = apsw.Connection(str(store.path))
        other.execute("ALTER TABLE run RENAME TO another")
        other.close()
        probes, refused = await ask_about_damage(store)
    finally:
        await store.close()
    assert refused == (500, "Store damaged")
    assert [status for status, _ in probes] == [503, 503]
