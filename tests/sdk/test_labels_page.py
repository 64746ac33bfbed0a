"""The code, command and settings of the labels page work."""

import importlib
import re
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mainspring.cli import processes
from mainspring.cli.main import application
from mainspring.config.loading import load
from mainspring.config.node import Node, Role
from mainspring.config.settings import Settings
from tests.support.doc_blocks import write_blocks

PAGE = Path(__file__).parents[2] / "docs/guides/labels.md"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


async def test_the_code_of_the_labels_page(folder: Path) -> None:
    tasks, submitting = [importlib.import_module(path.stem) for path in write_blocks(PAGE, folder)]
    [settings] = re.findall(r"^```toml\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    labels = tomllib.loads(settings)["worker"]["labels"]
    nodes = []
    for roles, given in (({Role.SCHEDULER, Role.WORKER}, {}), ({Role.WORKER}, labels)):
        node = Node(tasks.app.settings({"worker.labels": given}), roles, tasks.app, None)
        await node.runtime.open()
        await node.start()
        nodes.append(node)
    try:
        assert await submitting.main() == "digits is trained"
        assert await submitting.everywhere() == 2
        assert tasks.config == {"colour": "blue"}
    finally:
        await tasks.app.close()
        for node in nodes:
            await node.stop()


def test_the_command_and_the_settings_of_the_labels_page_are_equivalent(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_blocks(PAGE, folder)
    page = PAGE.read_text()
    [command] = re.findall(r"^mainspring (worker .*)$", page, re.MULTILINE)
    [settings] = re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    [variable] = re.findall(r"MAINSPRING_WORKER_LABELS=([^`]*)`", page)
    seen: list[Settings] = []
    monkeypatch.setattr(processes, "_run", lambda settings, *_: seen.append(settings))
    result = CliRunner().invoke(application, command.split())
    assert result.exit_code == 0, result.output
    (folder / "mainspring.toml").write_text(settings)
    seen.append(load({}))
    (folder / "mainspring.toml").unlink()
    monkeypatch.setenv("MAINSPRING_WORKER_LABELS", variable)
    seen.append(load({}))
    assert [one.worker.labels for one in seen] == [{"gpu": "a100", "region": "eu"}] * 3
