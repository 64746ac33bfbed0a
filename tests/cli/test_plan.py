"""``mainspring plan`` and ``apply`` as a user sees them: from code and from a file, on stores and over an API."""

import asyncio
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

from mainspring.cli.main import application
from mainspring.core.model.base.errors import Conflict, Invalid
from tests.support.command_line import wait_for_http
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
    # Python would take bytecode compiled within the same second for that of the new text.
    for compiled in folder.glob("__pycache__/plan_tasks*"):
        compiled.unlink()


def run(*arguments: str) -> Result:
    return CliRunner().invoke(application, list(arguments))


def plan(*arguments: str) -> dict[str, Any]:
    found = run("plan", *arguments, "--json")
    assert found.exit_code in (0, 3), found.output
    answer: dict[str, Any] = json.loads(found.stdout)
    assert found.exit_code == (3 if answer["steps"] else 0)
    # There is no worker in these tests.
    assert all(warning.startswith("no worker is running") for warning in answer.pop("warnings", []))
    return answer


def list_steps(answer: dict[str, Any]) -> list[tuple[str, str]]:
    return [(step["action"], step["name"]) for step in answer["steps"]]


def test_plan_and_apply_add_change_and_remove_schedules(folder: Path) -> None:
    write(folder)
    assert run("migrate").exit_code == 0
    assert list_steps(plan("plan_tasks:app")) == [("add", "nightly"), ("add", "poll"), ("add", "hourly")]
    assert plan("plan_tasks:app")["source"] == "app:billing"

    done = run("apply", "plan_tasks:app")
    assert done.exit_code == 0, done.output
    assert "3 added" in done.stdout
    assert plan("plan_tasks:app")["steps"] == []
    assert "nothing to do; 3 unchanged" in run("plan", "plan_tasks:app").stdout

    write(folder, timeout="1m", every="30s", more="")
    found = plan("plan_tasks:app")
    assert list_steps(found) == [("change", "nightly"), ("change", "poll"), ("remove", "hourly")]
    assert found["steps"][1]["changes"] == {
        "every": {"before": "20s", "after": "30s"},
        "timeout": {"before": "30s", "after": "1m"},
    }
    assert 'every: "20s" → "30s"' in run("plan", "plan_tasks:app").stdout

    # Without a terminal to confirm on, apply removes nothing.
    partly = run("apply", "plan_tasks:app")
    assert partly.exit_code == 3
    assert "2 changed" in partly.stdout
    assert "mainspring: warning: 1 not changed: hourly (--yes)" in partly.stderr
    assert list_steps(plan("plan_tasks:app")) == [("remove", "hourly")]

    assert "1 removed" in run("apply", "plan_tasks:app", "--yes").stdout
    assert plan("plan_tasks:app") == {
        "source": "app:billing",
        "tenant": "default",
        "steps": [],
        "unchanged": ["nightly", "poll"],
    }
    # A schedule that is declared again comes back.
    write(folder, timeout="1m", every="30s")
    [back] = plan("plan_tasks:app")["steps"]
    assert back["action"] == "change"
    assert back["changes"]["status"] == {"before": "cancelled", "after": "scheduled"}


def test_a_file_and_an_application_do_not_touch_each_others_schedules(folder: Path) -> None:
    write(folder)
    (folder / "schedules.yaml").write_text(FILE)
    assert run("apply", "plan_tasks:app", "--yes").exit_code == 0
    assert run("apply", "-f", "schedules.yaml", "--yes").exit_code == 0
    assert plan("plan_tasks:app")["steps"] == []
    assert plan("-f", "schedules.yaml")["source"] == "file:schedules.yaml"
    (folder / "schedules.yaml").write_text("schedules: []\n")
    assert list_steps(plan("-f", "schedules.yaml")) == [("remove", "from-file")]
    assert run("apply", "-f", "schedules.yaml", "--yes").exit_code == 0
    assert plan("plan_tasks:app")["steps"] == []


def test_a_schedule_of_another_source_is_taken_over_only_with_yes(folder: Path) -> None:
    (folder / "one.yaml").write_text(FILE)
    (folder / "two.yaml").write_text(FILE)
    assert run("apply", "-f", "one.yaml").exit_code == 0
    [step] = plan("-f", "two.yaml")["steps"]
    assert step["action"] == "take over"
    assert step["changes"] == {"source": {"before": "file:one.yaml", "after": "file:two.yaml"}}
    assert run("apply", "-f", "two.yaml").exit_code == 3
    assert plan("-f", "one.yaml")["steps"] == []
    assert run("apply", "-f", "two.yaml", "--yes").exit_code == 0
    assert [step["action"] for step in plan("-f", "one.yaml")["steps"]] == ["take over"]


async def test_declare_stores_the_specs_that_plan_compares(folder: Path) -> None:
    """``declare`` and the API produce equal specs, so that a plan after either one is empty."""
    from mainspring.http.jobs.reading import build_spec, read_payload
    from mainspring.http.rendering.jobs import read_spec_fields

    write(folder, more=MORE + '\napp.cron("H 3 * * *", name="x", dst_gap="skip", dst_fold="twice")(work)')
    app = import_module("plan_tasks").app
    for spec, payload in app.schedules():
        fields = read_spec_fields(spec, payload)
        assert (build_spec(fields), read_payload(fields)) == (msgspec.structs.replace(spec, source=""), payload)
    async with app:
        await app.declare()
        assert await app.list_removed() == []
        assert [job.spec.source for job in await app.declare()] == ["app:billing"] * 4
        del app._jobs["poll"]
        assert await app.list_removed() == ["poll"]


def test_plan_and_apply_work_over_the_api(folder: Path) -> None:
    write(folder, more="")
    port = free_port()

    async def work() -> None:
        (folder / "logs").mkdir()
        async with Processes(str(folder / "mainspring.db"), folder / "logs") as processes:
            process = processes.start("api", "--port", str(port))
            await asyncio.to_thread(wait_for_http, f"http://127.0.0.1:{port}", process)
            url = ("--url", f"http://127.0.0.1:{port}")
            assert await asyncio.to_thread(lambda: list_steps(plan("plan_tasks:app", *url))) == [
                ("add", "nightly"),
                ("add", "poll"),
            ]
            assert (await asyncio.to_thread(run, "apply", "plan_tasks:app", *url)).exit_code == 0
            assert (await asyncio.to_thread(plan, "plan_tasks:app", *url))["steps"] == []

    asyncio.run(work())
    assert plan("plan_tasks:app")["steps"] == []


def test_plan_reverts_a_schedule_that_was_changed_by_hand(folder: Path) -> None:
    write(folder)
    assert run("apply", "plan_tasks:app").exit_code == 0
    changed = run("jobs", "update", "poll", "--json", "--set", "every=40s")
    assert changed.exit_code == 0, changed.output
    [step] = plan("plan_tasks:app")["steps"]
    assert step["changes"] == {"every": {"before": "40s", "after": "20s"}}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((), Invalid, "either an application or -f FILE"),
        (("plan_tasks:app", "-f", "x.yaml"), Invalid, "either an application or -f FILE"),
        (("plan_tasks:app", "--name", "x"), Invalid, "--name: requires -f"),
        (("-f", "absent.yaml"), Invalid, "cannot be read"),
        (("plan_tasks:twin",), Conflict, "has two applications called 'billing'"),
    ],
)
def test_plan_refuses_invalid_arguments(
    folder: Path, arguments: tuple[str, ...], error: type[Exception], message: str
) -> None:
    write(folder, more='twin = Mainspring(name="billing")' if "plan_tasks:twin" in arguments else MORE)
    found = run("plan", *arguments)
    assert isinstance(found.exception, error)
    assert message in str(found.exception)


def test_an_application_is_named_after_its_module_by_default(folder: Path) -> None:
    (folder / "plan_unnamed.py").write_text("from mainspring import Mainspring\napp = Mainspring()\nprint(app.name)\n")
    assert import_module("plan_unnamed").app.name == "plan_unnamed"
    ran = subprocess.run([sys.executable, "plan_unnamed.py"], capture_output=True, text=True, check=True, cwd=folder)
    assert ran.stdout == "plan_unnamed\n"


def test_apply_warns_of_schedules_that_no_worker_runs_and_strict_refuses_them(folder: Path) -> None:
    write(folder)
    found = run("apply", "plan_tasks:app")
    assert "mainspring: warning: no worker is running" in found.stderr
    assert "(schedules " in found.stderr
    (folder / "mainspring.db").unlink()
    refused = run("apply", "plan_tasks:app", "--strict")
    assert refused.exit_code == 1
    assert "no worker is running" in refused.stderr
    assert "Traceback" not in refused.stderr
