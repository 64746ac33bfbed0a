"""The code, commands and settings of the data centers and scaling pages work."""

import importlib
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mainspring.cli import processes
from mainspring.cli.main import application
from mainspring.config.loading import load
from mainspring.config.node import Node, Role
from mainspring.config.settings import Settings
from mainspring.core.model.cluster.autoscale import Bounds
from mainspring.core.model.cluster.datacenters import ALL
from mainspring.core.model.runs.run import RunState
from mainspring.features.schedules import file as schedule_file
from tests.support.doc_blocks import write_blocks
from tests.support.waiting import eventually

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "guides/data-centers.md"
SCALING = DOCS / "operate/scaling.md"
_ORDER = "datacenter=us-east>eu>30s"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


async def test_the_schedules_of_the_data_centers_page(folder: Path) -> None:
    [tasks] = [importlib.import_module(path.stem) for path in write_blocks(PAGE, folder)]
    specs = {spec.name: spec for spec, _ in tasks.app.schedules()}
    assert specs["warm_caches"].datacenters == ("us-east", "eu")
    assert specs["rotate_logs"].datacenters == (ALL,)
    assert (specs["daily_report"].datacenters, specs["daily_report"].policy.requires) == ((), (_ORDER,))
    [text] = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    declared = {spec.name: spec for spec, _ in schedule_file.read_text(text)}
    assert declared["warm-caches"].datacenters == specs["warm_caches"].datacenters
    assert declared["daily-report"].policy.requires == (_ORDER,)


async def test_a_run_goes_to_the_preferred_data_center(folder: Path) -> None:
    [tasks] = [importlib.import_module(path.stem) for path in write_blocks(PAGE, folder)]
    nodes = []
    for roles, place in (({Role.SCHEDULER}, "eu"), ({Role.WORKER}, "us-east"), ({Role.WORKER}, "eu")):
        node = Node(tasks.app.settings({"datacenter": place}), roles, tasks.app, None)
        await node.runtime.open()
        await node.start()
        nodes.append(node)
    try:
        run = await tasks.daily_report.submit()
        await run.result("2m")
        store = nodes[0].runtime.store
        [view] = await store.runs([run.id])
        assert view is not None
        assert view.state is RunState.SUCCEEDED
        assert view.session is not None
        session = await store.session(view.session)
        assert session is not None
        assert session.datacenter == "us-east"

        async def all_have_registered() -> bool:
            found = [(place.name, place.workers, place.schedulers) for place in await store.datacenters()]
            return found == [("eu", 1, 1), ("us-east", 1, 0)]

        await eventually(all_have_registered)
    finally:
        await tasks.app.close()
        for node in nodes:
            await node.stop()
            await node.runtime.close()


def test_commands_and_settings_set_the_data_center(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_blocks(PAGE, folder)
    page = PAGE.read_text()
    seen: list[Settings] = []
    monkeypatch.setattr(processes, "_run", lambda settings, *_: seen.append(settings))
    for command in re.findall(r"^mainspring (worker .*|scheduler .*)$", page, re.MULTILINE):
        result = CliRunner().invoke(application, command.split())
        assert result.exit_code == 0, result.output
    [line] = re.findall(r"`(datacenter = .*?)`", page)
    assert tomllib.loads(line) == {"datacenter": "us-east"}
    [variable] = re.findall(r"MAINSPRING_DATACENTER=([^`]*)`", page)
    monkeypatch.setenv("MAINSPRING_DATACENTER", variable)
    seen.append(load({}))
    assert [one.datacenter for one in seen] == ["us-east"] * 3


def test_the_commands_of_the_scaling_page(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "tasks.py").write_text("from mainspring import Mainspring\napp = Mainspring()\n")
    importlib.invalidate_caches()
    calls: list[Any] = []
    monkeypatch.setattr(processes, "_autoscale", lambda settings, app, bounds: calls.append((settings, bounds)))
    monkeypatch.setattr(processes, "_drain", lambda worker, store, config: calls.append(worker))
    for command in re.findall(r"^mainspring (worker .*)$", SCALING.read_text(), re.MULTILINE):
        result = CliRunner().invoke(application, command.split())
        assert result.exit_code == 0, result.output
    (settings, bounds), drained = calls
    assert (settings.worker.queues, bounds) == ({"default": 50}, Bounds(1, 16))
    assert drained == "mailer-1"
