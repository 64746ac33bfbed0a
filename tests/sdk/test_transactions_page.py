"""The code of the transactions page works."""

import asyncio
import importlib
import re
import sys
import time
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path

import asyncpg
import pytest

from mainspring.core.model.runs.run import RunState
from mainspring.core.ports.storage.catalog import RunFilter
from tests.support.databases import as_administrator
from tests.support.doc_blocks import write_blocks
from tests.support.waiting import eventually

pytestmark = pytest.mark.postgres

PAGE = Path(__file__).parents[2] / "docs/guides/transactions.md"


@pytest.mark.slow
async def test_the_code_of_the_transactions_page(
    postgres_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop, script = write_blocks(PAGE, tmp_path)
    monkeypatch.setenv("MAINSPRING_STORE", postgres_database)
    monkeypatch.syspath_prepend(tmp_path)
    app = importlib.import_module(shop.stem).app
    role = f"shop_{time.monotonic_ns()}"
    connection = await asyncpg.connect(postgres_database)
    admin = await asyncpg.connect(as_administrator(postgres_database))
    try:
        await admin.execute(f"CREATE ROLE {role}")
        await connection.execute(
            """
            CREATE TABLE orders (id integer PRIMARY KEY, reminded boolean NOT NULL DEFAULT false);
            CREATE TABLE stock (pieces integer);
            INSERT INTO stock VALUES (100);
            """
        )
        async with app.running():
            done = await asyncio.create_subprocess_exec(
                sys.executable, script, cwd=tmp_path, stdout=PIPE, stderr=STDOUT
            )
            output, _ = await done.communicate()
            assert done.returncode == 0, output.decode()
            for block in re.findall(r"^```sql\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE):
                await connection.execute(re.sub(r"\bshop\b", role, block))
            await connection.execute("INSERT INTO orders (id) VALUES (8)")
            await importlib.import_module(script.stem).remind_all(connection)
            handle = await app.named("book").submit(9)
            await handle.result("2m")
            assert await connection.fetchval("SELECT pieces FROM stock") == 99
            store = (await app.runtime()).store

            # Three orders placed, one by hand, one by the trigger, four reminders, a booking and its receipt.
            async def all_have_succeeded() -> bool:
                runs = (await store.list_runs(RunFilter(tenant="default"), None, 100)).items
                assert not any(run.state is RunState.FAILED for run in runs), runs
                return len(runs) == 11 and all(run.state is RunState.SUCCEEDED for run in runs)

            await eventually(all_have_succeeded)
        await app.close()
    finally:
        await admin.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
        await admin.close()
        await connection.close()
