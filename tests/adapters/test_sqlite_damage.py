"""A SQLite file that is corrupt, is no database, or disappears: nothing is acknowledged, and the error says why."""

from collections.abc import Callable
from pathlib import Path

import apsw
import httpx2
import pytest

from mainspring.core.model.base.errors import StoreDamaged
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.stores.sqlite import SqliteStore
from tests.api.conftest import Service
from tests.support.builders import a_run


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
