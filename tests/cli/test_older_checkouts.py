"""A store that a checkout from before the first release made is refused with one sentence, and left as it is."""

import os
import subprocess
import sys
from pathlib import Path

import apsw
import asyncpg
import pytest

from tests.support.command_line import run_command
from tests.support.processes import free_port

APPLICATION = """
import asyncio
from mainspring import Mainspring

app = Mainspring()

@app.task
async def greet() -> None: ...

async def main() -> None:
    async with app:
        await greet.submit()

if __name__ == "__main__":
    asyncio.run(main())
"""
# The tables that a start reads, as the last of these checkouts made them.
SQLITE = "PRAGMA application_id = 1297305682; CREATE TABLE meta (schema_version INTEGER); INSERT INTO meta VALUES (1)"
POSTGRES = """
CREATE SCHEMA mainspring;
CREATE TABLE mainspring.meta (shards integer);
CREATE TABLE mainspring.migration (version integer PRIMARY KEY, name text NOT NULL, needs integer);
INSERT INTO mainspring.migration VALUES (1, '0001_schema.sql', 1);
"""


@pytest.fixture
def sqlite(tmp_path: Path) -> str:
    path = tmp_path / "old.db"
    connection = apsw.Connection(str(path))
    connection.execute(SQLITE)
    connection.close()
    return str(path)


@pytest.fixture
async def postgres(postgres_database: str) -> str:
    server = await asyncpg.connect(postgres_database)
    await server.execute(POSTGRES)
    await server.close()
    return postgres_database


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def store(request: pytest.FixtureRequest) -> str:
    """The address of a store that an older checkout made."""
    address: str = request.getfixturevalue(request.param)
    return address


@pytest.mark.parametrize("command", [["up", "tasks:app"], ["api"], ["runs", "list"], ["backup", "a.backup"]])
def test_a_command_refuses_the_store_with_one_sentence(tmp_path: Path, store: str, command: list[str]) -> None:
    (tmp_path / "tasks.py").write_text(APPLICATION)
    found = run_command(tmp_path, *command, MAINSPRING_STORE=store, MAINSPRING_PORT=str(free_port()))
    assert found.returncode != 0
    assert "Traceback" not in found.stderr
    [line] = [line for line in found.stderr.splitlines() if "older checkout" in line]
    assert line.endswith("start with a new store, or run that checkout")


def test_the_sdk_refuses_the_store_with_one_sentence(tmp_path: Path, store: str) -> None:
    (tmp_path / "tasks.py").write_text(APPLICATION)
    found = subprocess.run(
        [sys.executable, "tasks.py"],
        cwd=tmp_path,
        env={**os.environ, "MAINSPRING_STORE": store},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode != 0
    assert "mainspring.core.model.base.errors.Conflict: " in found.stderr.splitlines()[-1]
    assert "made by an older checkout" in found.stderr.splitlines()[-1]
