"""The code of the workflows page works."""

import importlib
import re
from pathlib import Path

import msgspec
import pytest

from mainspring.core.model.runs.reserved import FAN_OUT
from mainspring.core.runtime.plain_yaml import read_yaml
from mainspring.http.plans.fan_out import read_fan_out
from mainspring.http.plans.workflow import read_plan
from mainspring.testing import TestScheduler
from tests.support.doc_blocks import write_blocks

PAGE = Path(__file__).parents[2] / "docs/guides/workflows.md"


async def test_the_code_of_the_workflows_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    [path] = write_blocks(PAGE, tmp_path)
    tasks = importlib.import_module(path.rename(tmp_path / "workflow_tasks.py").stem)
    async with TestScheduler(tasks.app, start="2026-01-05T05:59:00+00:00") as s:
        assert await tasks.one_after_the_other() == len("mondaytuesday")
        await tasks.nightly("friday")
        await s.advance("5m")
        assert tasks.log == ["cleaned up"]
        assert s.runs(tasks.load).succeeded == 3, "by hand, nightly, and by the schedule"
        assert await tasks.all_frames() == sum(frame * frame for frame in range(240))
        await tasks.a_film("pulp")
        await s.run_until_idle()
        assert s.runs(tasks.encode).succeeded == 243


def test_the_json_of_the_workflows_page_is_a_fan_out() -> None:
    [text] = re.findall(r"^```json\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    job = msgspec.json.decode(text)
    plan = read_fan_out(msgspec.json.encode(job["payload"]), "default")
    assert (job["task"], plan.template.task, plan.at_a_time) == (FAN_OUT, "encode", 100)
    assert plan.items is not None
    assert (plan.items.count, plan.items.payload(7)) == (240, b'{"frame":7}')


def test_the_yaml_of_the_workflows_page_is_a_workflow() -> None:
    [text] = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    name, nodes = read_plan(msgspec.json.encode(read_yaml(text, "page")[0]), "default", {})
    assert (name, [node.name for node in nodes]) == ("nightly", ["extract", "load", "clean_up"])
