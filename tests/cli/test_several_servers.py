"""A sharded store from the outside: settings, commands, and the guide."""

import asyncio
import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from mainspring.cli.main import application
from mainspring.config.loading import load
from mainspring.config.sections.addresses import hide_secrets, read_store_servers
from mainspring.core.model.base.errors import Invalid
from tests.support.databases import create_database, drop_database, with_database

PAGE = Path(__file__).parents[2] / "docs" / "deploy" / "sharding.md"


def test_a_list_of_addresses_is_a_sharded_store(tmp_path: Path) -> None:
    file = tmp_path / "mainspring.toml"
    [text] = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    file.write_text(text)
    from_file = load(environment={}, file=file)
    assert read_store_servers(from_file.store) == (
        "postgresql://jobs@db-a.example.org/jobs",
        "postgresql://jobs@db-b.example.org/jobs",
    )
    assert load(environment={"MAINSPRING_STORE": from_file.store}).store == from_file.store
    assert hide_secrets('["postgresql://a:secret@b/c"]') == "postgresql://a@b/c"
    for wrong in ('["mainspring.db"]', "[", "[]", '["postgresql://a", "postgresql://a"]'):
        with pytest.raises(Invalid) as refused:
            load(environment={"MAINSPRING_STORE": wrong})
        assert refused.value.field == "store"


@pytest.fixture
def store(postgres_dsn: str) -> Iterator[str]:
    names = [f"test_{uuid.uuid4().hex}" for _ in range(2)]

    async def make() -> None:
        for name in names:
            await create_database(postgres_dsn, name)

    async def drop() -> None:
        for name in names:
            await drop_database(postgres_dsn, name)

    asyncio.run(make())
    try:
        yield msgspec.json.encode([with_database(postgres_dsn, name) for name in names]).decode()
    finally:
        asyncio.run(drop())


@pytest.mark.postgres
def test_the_guide_to_sharded_stores_works(store: str, tmp_path: Path) -> None:
    blocks = re.findall(r"^ *```(\w+)\n(.*?)^ *```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "MAINSPRING_STORE": store,
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    (tmp_path / "placing.py").write_text(next(text for kind, text in blocks if kind == "python"))
    commands = [text for kind, text in blocks if kind == "sh"]
    commands.append(f"{sys.executable} -c 'import asyncio, placing; asyncio.run(placing.submit(7))'")
    for command in commands:
        done = subprocess.run(
            ["/bin/sh", "-ec", command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (command, done.stderr)
    assert len(commands) == 3

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(application, [*arguments, "--store", store], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    shown = json.loads(run("store", "show", "--json"))
    assert [(server["number"], len(server["placementGroups"]), server["away"]) for server in shown] == [
        (0, 16, False),
        (1, 16, False),
    ]
    made = json.loads(run("jobs", "submit", "bill", "--arg", "customer=1", "--placement", "region-1", "--json"))
    listed = json.loads(run("runs", "list", "--json"))
    assert len(listed["items"]) == 2
    assert made["jobId"] in {item["runId"] for item in listed["items"]}
    assert len(json.loads(run("store", "rebalance", "--without", "0", "--json"))) == 16
    assert len(json.loads(run("runs", "list", "--json"))["items"]) == 2
