"""The pages on PostgreSQL, clocks and upgrades: their commands and files work as shown."""

import json
import re
from pathlib import Path

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


def test_migrate_with_contract_refuses_sqlite(tmp_path: Path) -> None:
    result = CliRunner().invoke(application, ["migrate", "--contract", "--store", str(tmp_path / "mainspring.db")])
    assert isinstance(result.exception, Invalid)
    assert not (tmp_path / "mainspring.db").exists()


def test_migrate_with_json_lists_the_applied_migrations(tmp_path: Path) -> None:
    result = CliRunner().invoke(application, ["migrate", "--json", "--store", str(tmp_path / "mainspring.db")])
    assert json.loads(result.stdout) == {"applied": [], "waiting": []}
