"""What docs/operations says of PostgreSQL, clocks and upgrades: its commands and files are these."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mainspring.adapters.postgres_servers import split
from mainspring.cli.main import application
from mainspring.domain.errors import Invalid
from mainspring.settings import load

DOCS = Path(__file__).parents[2] / "docs" / "operations"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_the_settings_of_several_servers_and_of_a_replica(tmp_path: Path) -> None:
    blocks = [text for kind, text in _BLOCK.findall((DOCS / "postgresql.md").read_text()) if kind == "toml"]
    assert len(blocks) == 2
    for text in blocks:
        (tmp_path / "mainspring.toml").write_text(text)
        settings = load(file=tmp_path / "mainspring.toml", environment={})
        assert len(split(settings.store)) > 1
        assert not settings.replica or len(split(settings.replica)) > 1


@pytest.mark.postgres
@pytest.mark.timeout(180)
def test_the_commands_of_an_upgrade(postgres_database: str, tmp_path: Path) -> None:
    [text] = [text for kind, text in _BLOCK.findall((DOCS / "upgrades.md").read_text()) if kind == "sh"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    found = subprocess.run(
        ["/bin/sh", "-c", text],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "MAINSPRING_STORE": postgres_database},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "_clocks.sql: expand: programs of the version before work on" in found.stdout
    assert "the schema is up to date" in found.stdout


def test_contracts_are_not_for_files(tmp_path: Path) -> None:
    result = CliRunner().invoke(application, ["migrate", "--contract", "--store", str(tmp_path / "mainspring.db")])
    assert isinstance(result.exception, Invalid)
    assert not (tmp_path / "mainspring.db").exists()


def test_migrating_a_file_says_what_was_done(tmp_path: Path) -> None:
    result = CliRunner().invoke(application, ["migrate", "--json", "--store", str(tmp_path / "mainspring.db")])
    assert json.loads(result.stdout) == {"applied": [], "waiting": []}
