"""``mainspring archive`` and ``mainspring tenants`` as a user types them."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from mainspring.cli.main import application
from mainspring.core.model.base.instant import DAY, Instant, parse_instant
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.ports.storage.upkeep import Retention
from mainspring.core.ports.upkeep.archive import ArchivedRun, ArchivePart
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.features.archive.service import Archiver
from mainspring.integrations.files.folder import FolderBlobs
from tests.support.builders import a_run

SINCE = parse_instant("2026-10-01T00:00:00Z")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(application, list(arguments))


class Past:
    """Two days of history, with three runs each."""

    def __init__(self) -> None:
        self.runs = [
            RunView(
                id=a_run().id,
                state=RunState.SUCCEEDED,
                task="pay",
                queue="default",
                tenant="bank" if number % 2 else "shop",
                priority=5,
                attempt=1,
                due=SINCE + number,
                created_at=SINCE + number,
                started_at=SINCE + number,
                finished_at=SINCE + number // 3 * DAY + number,
                payload=b'{"order": 42}',
                result=b'"paid"',
            )
            for number in range(6)
        ]

    async def now(self) -> Instant:
        return SINCE + 100 * DAY

    async def identity(self) -> str:
        return "0c"

    async def past_parts(self, retention: Retention) -> Sequence[ArchivePart]:
        days = (SINCE, SINCE + DAY)
        return [ArchivePart(kept_as="succeeded", since=day, until=day + DAY) for day in days]

    async def archived_runs(
        self, part: ArchivePart, after: ArchivedRun | None, limit: int, size: int
    ) -> Sequence[ArchivedRun]:
        runs = [one for one in self.runs if part.since <= (one.finished_at or 0) < part.until]
        return [] if after is not None else [ArchivedRun(run=one) for one in runs]


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Past:
    folder, past = tmp_path / "archive", Past()
    folder.mkdir()

    async def write() -> None:
        archiver = Archiver(past, FolderBlobs(folder), SystemClock(), lambda: {0}, lambda: False)
        while (await archiver.step(Retention()))[1]:
            pass

    asyncio.run(write())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MAINSPRING_RETENTION_ARCHIVE", str(folder))
    return past


def test_archive_list_shows_the_parts_of_the_archive(archive: Past) -> None:
    listed = run("archive", "list", "--json")
    assert listed.exit_code == 0, listed.output
    items = json.loads(listed.stdout)["items"]
    assert [(item["keptAs"], item["runs"], item["complete"]) for item in items] == [("succeeded", 3, True)] * 2
    assert "2026-10-02" in run("archive", "list", "--since", "2026-10-02").stdout
    assert "2026-10-01" not in run("archive", "list", "--since", "2026-10-02").stdout


def test_archive_restore_writes_a_store_with_the_chosen_runs(archive: Past) -> None:
    done = run("archive", "restore", "--until", "2026-10-01", "--tenant", "bank", "--into", "october.db", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {"into": "october.db", "runs": 1, "new": 1, "unfinished": 0, "stores": 1}
    mine = archive.runs[1]
    listed = run("runs", "list", "--store", "october.db", "--quiet")
    assert listed.stdout.split() == [mine.id]
    shown = run("runs", "show", mine.id, "--store", "october.db", "--json")
    assert '"order": 42' in shown.stdout
    assert '"paid"' in shown.stdout


def test_archive_restore_reports_unfinished_parts_and_several_stores(archive: Past, tmp_path: Path) -> None:
    [first, second] = sorted((tmp_path / "archive").glob("runs/0c/succeeded/*/manifest.json"))
    other = tmp_path / "archive/runs/0d/succeeded/2026-10-01/manifest.json"
    other.parent.mkdir(parents=True)
    other.write_text(first.read_text().replace('"store":"0c"', '"store":"0d"'))
    second.rename(second.with_name("unfinished.json"))
    second.with_name("unfinished.json").write_text(
        second.with_name("unfinished.json").read_text().replace('"complete":true', '"complete":false')
    )
    done = run("archive", "restore", "--into", "october.db")
    assert done.exit_code == 0, done.output
    assert "1 incomplete parts in this time range were skipped" in done.output
    assert "the runs come from 2 stores" in done.output
    first.write_text("{")
    failed = run("archive", "list")
    assert "manifest.json is damaged, or was written by a newer version" in str(failed.exception or failed.output)


def test_archive_commands_refuse_wrong_options_and_folders(archive: Past, monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments, words in (
        (("list", "--since", "yesterday"), "--since"),
        (("restore", "--since", "2030-01-01", "--into", "x.db"), "no complete part in this time range"),
    ):
        failed = run("archive", *arguments)
        assert failed.exit_code != 0
        assert words in str(failed.exception or failed.output)
    monkeypatch.setenv("MAINSPRING_RETENTION_ARCHIVE", "/nowhere/at/all")
    failed = run("archive", "list")
    assert "/nowhere/at/all is not a folder" in str(failed.exception or failed.output)
    found = run("doctor", "--store", "some.db")
    assert "/nowhere/at/all is not a folder" in found.output
    assert found.exit_code == 1
    monkeypatch.delenv("MAINSPRING_RETENTION_ARCHIVE")
    assert "retention.archive" in str(run("archive", "list").exception)


def test_a_tenant_has_a_retention_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MAINSPRING_STORE", "tenants.db")
    assert run("migrate").exit_code == 0
    assert run("tenants", "update", "default", "--retention", "audit").exit_code == 0
    [tenant] = json.loads(run("tenants", "list", "--json").stdout)["items"]
    assert (tenant["name"], tenant["retention"]) == ("default", "audit")
    wrong = run("tenants", "create", "other", "--retention", "centuries")
    assert wrong.exit_code != 0
    assert "standard, short, long, audit" in str(wrong.exception)
    made = run("jobs", "submit", "pay", "--retention", "long", "--json")
    assert json.loads(made.stdout)["retention"] == "long"
    refused = run("jobs", "submit", "pay", "--retention", "centuries")
    assert "retention" in str(refused.exception or refused.output)
