"""The page on queues: its worker commands and settings give the pools that it names, and its task has its weight."""

import importlib
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mainspring.cli import processes
from mainspring.cli.main import application
from mainspring.config.loading import load
from mainspring.config.node import Node, Role
from mainspring.config.settings import Settings
from tests.support.doc_blocks import write_blocks

PAGE = Path(__file__).parents[2] / "docs/guides/queues.md"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("MAINSPRING_STORE", str(tmp_path / "mainspring.db"))
    return tmp_path


def invoke(command: str) -> str:
    words = re.findall(r'"[^"]*"|\S+', command)
    result = CliRunner().invoke(application, [word.strip('"') for word in words[1:]])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_worker_commands_and_settings_give_the_pools_of_the_page(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_blocks(PAGE, folder)
    page = PAGE.read_text()
    seen: list[Settings] = []
    monkeypatch.setattr(processes, "_run", lambda settings, *_: seen.append(settings))
    for command in re.findall(r"^mainspring worker .*$", page, re.MULTILINE):
        invoke(command)
    assert [one.worker.queues for one in seen] == [{"payouts": 100, "mail": 50}, {}]
    for settings in re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        (folder / "mainspring.toml").write_text(settings)
        seen.append(load({}))
    assert [one.dispatch.queues.keys() for one in seen[2:]] == [set(), {"payouts"}]
    (folder / "mainspring.toml").unlink()
    [variable] = re.findall(r"MAINSPRING_WORKER_PRIORITIES=([^`]*)`", page)
    monkeypatch.setenv("MAINSPRING_WORKER_PRIORITIES", variable)
    seen.append(load({}))
    assert [one.worker.priorities for one in seen[1:]] == [{"1": 100, "2": 50, "3": 20}] * 4


async def test_the_weighted_task_runs_where_it_fits(folder: Path) -> None:
    [path] = write_blocks(PAGE, folder)
    tasks = importlib.import_module(path.stem)
    given = {"worker.queues": {"default": 4}, "worker.priorities": {"5": 5}}
    node = Node(tasks.app.settings(given), {Role.SCHEDULER, Role.WORKER}, tasks.app, None)
    await node.runtime.open()
    await node.start()
    try:
        runs = [await tasks.render.submit("Alien"), await tasks.render.options(weight=8).submit("Brazil")]
        assert [await run.result("2m") for run in runs] == ["Alien is rendered", "Brazil is rendered"]
    finally:
        await tasks.app.close()
        await node.stop()
