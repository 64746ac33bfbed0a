"""``mainspring plan`` and ``apply`` as a user meets them: from code and from a file, on stores and through an API."""

import asyncio
import json
import subprocess
import sys
import urllib.request
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from mainspring.cli.main import application
from mainspring.domain.errors import Conflict, Invalid
from tests.support.processes import Processes, free_port

TASKS = """
from mainspring import Mainspring

app = Mainspring(name="billing")

@app.task(timeout="{timeout}")
async def work(size: int = 1) -> None: ...

app.cron("30 2 * * *", name="nightly", timezone="Europe/Paris", jitter="5m", overlap="skip")(work)
app.every("{every}", name="poll", mode="fixed_delay", catch_up="none")(work)
{more}
"""
MORE = 'app.cron("0 * * * *", name="hourly")(work)'
FILE = """
schedules:
  - name: from-file
    task: sweep
    every: 1h
    payload: {depth: 2}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("MAINSPRING_STORE", str(tmp_path / "mainspring.db"))
    return tmp_path


def write(folder: Path, *, timeout: str = "30s", every: str = "20s", more: str = MORE) -> None:
    (folder / "plan_tasks.py").write_text(TASKS.format(timeout=timeout, every=every, more=more))
    sys.modules.pop("plan_tasks", None)
    # What was compiled within the same second would be taken for the new text.
    for compiled in folder.glob("__pycache__/plan_tasks*"):
        compiled.unlink()


def run(*arguments: str) -> Result:
    return CliRunner().invoke(application, list(arguments))


def planned(*arguments: str) -> dict[str, Any]:
    found = run("plan", *arguments, "--json")
    assert found.exit_code in (0, 3), found.output
    answer: dict[str, Any] = json.loads(found.stdout)
    assert found.exit_code == (3 if answer["steps"] else 0)
    return answer


def steps(answer: dict[str, Any]) -> list[tuple[str, str]]:
    return [(step["action"], step["name"]) for step in answer["steps"]]


def test_from_nothing_to_removed(folder: Path) -> None:
    write(folder)
    assert run("migrate").exit_code == 0
    assert steps(planned("plan_tasks:app")) == [("add", "nightly"), ("add", "poll"), ("add", "hourly")]
    assert planned("plan_tasks:app")["source"] == "app:billing"

    done = run("apply", "plan_tasks:app")
    assert done.exit_code == 0, done.output
    assert "3 added" in done.stdout
    assert planned("plan_tasks:app")["steps"] == []
    assert "nothing to do; 3 unchanged" in run("plan", "plan_tasks:app").stdout

    write(folder, timeout="1m", every="30s", more="")
    found = planned("plan_tasks:app")
    assert steps(found) == [("change", "nightly"), ("change", "poll"), ("remove", "hourly")]
    assert found["steps"][1]["changes"] == {
        "every": {"before": "20s", "after": "30s"},
        "timeout": {"before": "30s", "after": "1m"},
    }
    assert 'every: "20s" → "30s"' in run("plan", "plan_tasks:app").stdout

    # Nobody can be asked here: what takes something away is left.
    partly = run("apply", "plan_tasks:app")
    assert partly.exit_code == 3
    assert "2 changed" in partly.stdout
    assert "1 left as they are: hourly (--yes)" in partly.stderr
    assert steps(planned("plan_tasks:app")) == [("remove", "hourly")]

    assert "1 removed" in run("apply", "plan_tasks:app", "--yes").stdout
    assert planned("plan_tasks:app") == {
        "source": "app:billing",
        "tenant": "default",
        "steps": [],
        "unchanged": ["nightly", "poll"],
    }
    # It comes back when it is declared again.
    write(folder, timeout="1m", every="30s")
    [back] = planned("plan_tasks:app")["steps"]
    assert back["action"] == "change"
    assert back["changes"]["status"] == {"before": "cancelled", "after": "scheduled"}


def test_a_file_and_an_application_leave_each_other_alone(folder: Path) -> None:
    write(folder)
    (folder / "schedules.yaml").write_text(FILE)
    assert run("apply", "plan_tasks:app", "--yes").exit_code == 0
    assert run("apply", "-f", "schedules.yaml", "--yes").exit_code == 0
    assert planned("plan_tasks:app")["steps"] == []
    assert planned("-f", "schedules.yaml")["source"] == "file:schedules.yaml"
    (folder / "schedules.yaml").write_text("schedules: []\n")
    assert steps(planned("-f", "schedules.yaml")) == [("remove", "from-file")]
    assert run("apply", "-f", "schedules.yaml", "--yes").exit_code == 0
    assert planned("plan_tasks:app")["steps"] == []


def test_a_schedule_of_another_source_is_taken_over_only_when_asked(folder: Path) -> None:
    (folder / "one.yaml").write_text(FILE)
    (folder / "two.yaml").write_text(FILE)
    assert run("apply", "-f", "one.yaml").exit_code == 0
    [step] = planned("-f", "two.yaml")["steps"]
    assert step["action"] == "take over"
    assert step["changes"] == {"source": {"before": "file:one.yaml", "after": "file:two.yaml"}}
    assert run("apply", "-f", "two.yaml").exit_code == 3
    assert planned("-f", "one.yaml")["steps"] == []
    assert run("apply", "-f", "two.yaml", "--yes").exit_code == 0
    assert [step["action"] for step in planned("-f", "one.yaml")["steps"]] == ["take over"]


async def test_what_declare_brings_in_is_what_the_plan_compares(folder: Path) -> None:
    """By the code itself, as ``up`` does it, and by way of the API: the same specs, so neither finds work to do."""
    from mainspring.api.schemas.job_answers import fields_of_spec
    from mainspring.api.schemas.jobs import payload_of, spec_of

    write(folder, more=MORE + '\napp.cron("H 3 * * *", name="x", dst_gap="skip", dst_fold="twice")(work)')
    app = import_module("plan_tasks").app
    for spec, payload in app.schedules():
        fields = fields_of_spec(spec, payload)
        assert (spec_of(fields), payload_of(fields)) == (type(spec)(**{**_fields(spec), "source": ""}), payload)
    async with app:
        await app.declare()
        assert await app.left_over() == []
        assert [job.spec.source for job in await app.declare()] == ["app:billing"] * 4
        del app._jobs["poll"]
        assert await app.left_over() == ["poll"]


def _fields(spec: Any) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in spec.__struct_fields__}


async def answers(port: int) -> None:
    """Until the API does."""
    for _ in range(200):
        try:
            await asyncio.to_thread(urllib.request.urlopen, f"http://127.0.0.1:{port}/readyz", timeout=2)
        except OSError:
            await asyncio.sleep(0.1)
        else:
            return
    raise AssertionError("the API does not answer")


def test_through_an_api(folder: Path) -> None:
    write(folder, more="")
    port = free_port()

    async def work() -> None:
        (folder / "logs").mkdir()
        async with Processes(str(folder / "mainspring.db"), folder / "logs") as processes:
            processes.start("api", "--port", str(port))
            await answers(port)
            url = ("--url", f"http://127.0.0.1:{port}")
            assert await asyncio.to_thread(lambda: steps(planned("plan_tasks:app", *url))) == [
                ("add", "nightly"),
                ("add", "poll"),
            ]
            assert (await asyncio.to_thread(run, "apply", "plan_tasks:app", *url)).exit_code == 0
            assert (await asyncio.to_thread(planned, "plan_tasks:app", *url))["steps"] == []

    asyncio.run(work())
    assert planned("plan_tasks:app")["steps"] == []


def test_one_that_somebody_changed_by_hand_is_drift(folder: Path) -> None:
    write(folder)
    assert run("apply", "plan_tasks:app").exit_code == 0
    changed = run("jobs", "update", "poll", "--json", "--set", "every=40s")
    assert changed.exit_code == 0, changed.output
    [step] = planned("plan_tasks:app")["steps"]
    assert step["changes"] == {"every": {"before": "40s", "after": "20s"}}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((), Invalid, "either an application or -f FILE"),
        (("plan_tasks:app", "-f", "x.yaml"), Invalid, "either an application or -f FILE"),
        (("plan_tasks:app", "--name", "x"), Invalid, "--name: is for files"),
        (("-f", "absent.yaml"), Invalid, "cannot be read"),
        (("plan_tasks:twin",), Conflict, "has two applications called 'billing'"),
    ],
)
def test_mistakes(folder: Path, arguments: tuple[str, ...], error: type[Exception], message: str) -> None:
    write(folder, more='twin = Mainspring(name="billing")' if "plan_tasks:twin" in arguments else MORE)
    found = run("plan", *arguments)
    assert isinstance(found.exception, error)
    assert message in str(found.exception)


def test_an_application_is_called_as_its_module(folder: Path) -> None:
    (folder / "plan_unnamed.py").write_text("from mainspring import Mainspring\napp = Mainspring()\nprint(app.name)\n")
    assert import_module("plan_unnamed").app.name == "plan_unnamed"
    ran = subprocess.run([sys.executable, "plan_unnamed.py"], capture_output=True, text=True, check=True, cwd=folder)
    assert ran.stdout == "plan_unnamed\n"
