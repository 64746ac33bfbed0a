"""The pages on PostgreSQL, clocks and upgrades: their commands and files work as shown."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mainspring.cli.main import application
from mainspring.config.loading import load
from mainspring.core.model.base.errors import Invalid
from mainspring.stores.postgres.servers import split

DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_the_settings_on_the_page_about_postgresql_are_valid(tmp_path: Path) -> None:
    blocks = [text for kind, text in _BLOCK.findall((DOCS / "deploy" / "postgresql.md").read_text()) if kind == "toml"]
    assert len(blocks) == 2
    for text in blocks:
        (tmp_path / "mainspring.toml").write_text(text)
        settings = load(file=tmp_path / "mainspring.toml", environment={})
        assert len(split(settings.store)) > 1
        assert not settings.replica or len(split(settings.replica)) > 1


@pytest.mark.postgres
def test_the_commands_on_the_page_about_upgrades_work(postgres_database: str, tmp_path: Path) -> None:
    [text] = [text for kind, text in _BLOCK.findall((DOCS / "operate" / "upgrades.md").read_text()) if kind == "sh"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    found = subprocess.run(
        ["/bin/sh", "-c", text],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "MAINSPRING_STORE": postgres_database},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "0001_store.sql: breaking: older programs cannot use this schema" in found.stdout
    assert "the schema is up to date" in found.stdout


def test_migrate_with_contract_refuses_sqlite(tmp_path: Path) -> None:
    result = CliRunner().invoke(application, ["migrate", "--contract", "--store", str(tmp_path / "mainspring.db")])
    assert isinstance(result.exception, Invalid)
    assert not (tmp_path / "mainspring.db").exists()


def test_migrate_with_json_lists_the_applied_migrations(tmp_path: Path) -> None:
    result = CliRunner().invoke(application, ["migrate", "--json", "--store", str(tmp_path / "mainspring.db")])
    assert json.loads(result.stdout) == {"applied": [], "waiting": []}
