"""The task ``shell`` with real processes: arguments and environment of scripts, checks, and how scripts are stopped."""

import os
import sys
import textwrap
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec
import pytest

from mainspring.config.runtime import Runtime
from mainspring.config.settings import Settings
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import JobId
from mainspring.core.model.base.instant import HOUR, MILLISECOND, MINUTE, Micros, parse_instant
from mainspring.core.model.runs.names import MAX_ERROR, MAX_RESULT
from mainspring.core.model.runs.new_run import JobRef, NewRun
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.worker.attempt import Stop
from mainspring.core.worker.builtin.tasks import BuiltinTasks
from tests.support.builders import a_policy, a_run, an_id
from tests.support.builtin_worker import no_egress, working
from tests.support.clock import SkippingClock
from tests.support.processes import Processes, is_alive, kill, until_gone, until_written
from tests.support.waiting import eventually
from tests.support.worker_kit import Bench

pytestmark = pytest.mark.system

SHOW = """
import json, os, sys
print(json.dumps({
    "arguments": sys.argv[1:],
    "stdin": sys.stdin.read(),
    "environment": dict(os.environ),
    "folder": os.getcwd(),
    "python": sys.executable,
    "leader": os.getpgrp() == os.getpid(),
}))
"""

#: Ignores SIGTERM, starts a child in a session of its own, and writes both process ids.
STUBBORN = """
import os, signal, subprocess
print("so far", flush=True)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
null = subprocess.DEVNULL
child = subprocess.Popen(["sleep", "300"], stdin=null, stdout=null, stderr=null, start_new_session=True)
with open("pids.tmp", "w") as note:
    note.write(f"{os.getpid()} {child.pid}")
os.rename("pids.tmp", "pids")
child.wait()
signal.pause()
"""


def script(folder: Path, name: str, text: str, *, executable: bool = False) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text).lstrip())
    path.chmod(0o755 if executable else 0o644)


def call(timeout: Micros = MINUTE, retries: int = 0, **payload: object) -> NewRun:
    policy = a_policy(retries=retries, timeout=timeout)
    return a_run(task="shell", payload=msgspec.json.encode(payload), policy=policy)


def a_worker(
    folder: Path | None, *, commands: bool = False, grace: Micros = 300 * MILLISECOND
) -> AbstractAsyncContextManager[Bench]:
    return working(BuiltinTasks(scripts=folder, commands=commands, grace=grace))


async def done(bench: Bench, run: NewRun) -> RunView:
    (run_id,) = await bench.submit(run)
    return await bench.until(run_id, RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED)


async def read_pids(folder: Path) -> list[int]:
    return [int(word) for word in (await until_written(folder / "pids")).split()]


def skip(bench: Bench, duration: Micros) -> None:
    assert isinstance(bench.clock, SkippingClock)
    bench.clock.skip(duration)


def result(view: RunView) -> dict[str, object]:
    assert view.state is RunState.SUCCEEDED, view.error
    assert view.result is not None
    found: dict[str, object] = msgspec.json.decode(view.result)
    return found


# Arguments, environment and results


async def test_a_script_receives_its_parameters_and_no_variables_of_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAINSPRING_STORE", "postgresql://user:password@host/x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    script(tmp_path, "cleanup.py", SHOW)
    async with a_worker(tmp_path) as bench:
        view = await done(bench, call(script="cleanup.py", params={"days": 30}))
    stdout = result(view)["stdout"]
    assert isinstance(stdout, str)
    seen = msgspec.json.decode(stdout)
    assert seen["arguments"] == ["--days=30"]
    assert msgspec.json.decode(seen["stdin"]) == {"days": 30}
    assert (seen["folder"], seen["python"], seen["leader"]) == (str(tmp_path), sys.executable, True)
    environment = seen["environment"]
    assert environment["MAINSPRING_RUN_ID"] == view.id
    assert environment["MAINSPRING_ATTEMPT"] == "1"
    assert environment["MAINSPRING_FENCE"] == str(view.fence)
    assert "hush" not in stdout
    assert "password" not in stdout
    assert set(environment) <= {
        *("PATH", "LANG", "LC_CTYPE", "MAINSPRING_RUN_ID", "MAINSPRING_ATTEMPT", "MAINSPRING_FENCE"),
        *("MAINSPRING_JOB_ID", "MAINSPRING_TICK", "MAINSPRING_TENANT"),
    }
    assert environment["MAINSPRING_JOB_ID"] == environment["MAINSPRING_TICK"] == ""


async def test_a_script_of_a_schedule_receives_the_time_of_its_tick(tmp_path: Path) -> None:
    script(tmp_path, "tick.sh", 'printf %s "$MAINSPRING_TICK"')
    job = JobRef(id=JobId(an_id()), version=1, kind="backfill", scheduled_at=parse_instant("2026-01-02T02:00:00Z"))
    async with a_worker(tmp_path) as bench:
        view = await done(bench, msgspec.structs.replace(call(script="tick.sh"), job=job))
    assert result(view)["stdout"] == "2026-01-02T02:00:00Z"


async def test_parameters_reach_a_script_without_a_shell_and_not_as_options(tmp_path: Path) -> None:
    script(tmp_path, "show.py", SHOW)
    wild = {"name": "--force", "text": "a b; touch hacked $(touch hacked) `touch hacked`", "deep": {"a": [1, None]}}
    async with a_worker(tmp_path) as bench:
        first = result(await done(bench, call(script="show.py", params=wild)))
        second = result(await done(bench, call(script="show.py", params=["-x", "a b", "$HOME", ""])))
    assert msgspec.json.decode(str(first["stdout"]))["arguments"] == [
        "--name=--force",
        "--text=a b; touch hacked $(touch hacked) `touch hacked`",
        '--deep={"a":[1,null]}',
    ]
    assert msgspec.json.decode(str(second["stdout"]))["arguments"] == ["-x", "a b", "$HOME", ""]
    assert not (tmp_path / "hacked").exists()


async def test_sh_scripts_and_executables_in_subfolders_run(tmp_path: Path) -> None:
    script(tmp_path, "a.sh", "echo from sh")
    script(tmp_path, "tools/b", "#!/bin/sh\necho from b", executable=True)
    script(tmp_path, "c", "echo never")
    script(tmp_path, "d", "echo no line", executable=True)
    async with a_worker(tmp_path) as bench:
        assert result(await done(bench, call(script="a.sh")))["stdout"] == "from sh\n"
        assert result(await done(bench, call(script="tools/b")))["stdout"] == "from b\n"
        assert "not executable" in ((await done(bench, call(script="c"))).error or "")
        assert "no #! line" in ((await done(bench, call(script="d"))).error or "")


async def test_a_failing_exit_code_is_reported_with_the_end_of_the_output(tmp_path: Path) -> None:
    script(tmp_path, "bad.sh", "echo before\necho trouble >&2\nexit 3")
    async with a_worker(tmp_path) as bench:
        view = await done(bench, call(script="bad.sh"))
    assert view.state is RunState.FAILED
    assert view.error == "before\ntrouble\nScriptFailed: bad.sh ended with exit code 3"


async def test_a_script_that_is_killed_fails_with_the_name_of_the_signal(tmp_path: Path) -> None:
    script(tmp_path, "dies.sh", "kill -9 $$")
    async with a_worker(tmp_path) as bench:
        view = await done(bench, call(script="dies.sh"))
    assert view.error == "ScriptFailed: dies.sh ended with signal SIGKILL"


@pytest.mark.parametrize("code", [0, 1])
async def test_only_the_end_of_a_large_output_is_kept(tmp_path: Path, code: int) -> None:
    flood = "import sys\nfor s in (sys.stdout, sys.stderr):\n s.write('\\x00' * 5_000_000 + 'end')\n s.flush()\n"
    script(tmp_path, "flood.py", f"{flood}sys.exit({code})")
    async with a_worker(tmp_path) as bench:
        view = await done(bench, call(script="flood.py"))
    if code:
        assert view.error is not None
        assert "end" in view.error
        assert len(view.error) <= MAX_ERROR + 10
    else:
        found = result(view)
        assert len(view.result or b"") <= MAX_RESULT
        assert str(found["stdout"]).endswith("end")
        assert str(found["stderr"]).endswith("end")
        assert found["truncated"] is True


async def test_processes_that_a_script_leaves_running_are_killed(tmp_path: Path) -> None:
    script(tmp_path, "leaves.py", STUBBORN.replace("child.wait()\nsignal.pause()", ""))
    async with a_worker(tmp_path) as bench:
        view = await done(bench, call(script="leaves.py"))
        assert result(view)["stdout"] == "so far\n"
        await until_gone(*await read_pids(tmp_path))


# Checks


@pytest.mark.parametrize(
    "name",
    [
        "../outside.sh",
        "/bin/true",
        "a/../../outside.sh",
        "./a.sh",
        ".hidden.sh",
        "sub/.git/x",
        "..",
        ".",
        "a\\b",
        "a\n.sh",
    ],
)
async def test_a_script_name_outside_of_the_scripts_folder_is_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(Invalid, match=r"payload\.script"):
        BuiltinTasks(scripts=tmp_path).check("shell", msgspec.json.encode({"script": name}))
    async with a_worker(tmp_path) as bench:
        assert (await done(bench, call(script=name))).state is RunState.FAILED


async def test_links_that_lead_out_folders_and_missing_files_are_rejected(tmp_path: Path) -> None:
    folder = tmp_path / "scripts"
    folder.mkdir()
    script(tmp_path, "outside.sh", "echo out")
    script(folder, "inside.sh", "echo in")
    (folder / "out.sh").symlink_to(tmp_path / "outside.sh")
    (folder / "up").symlink_to(tmp_path)
    (folder / "in.sh").symlink_to(folder / "inside.sh")
    (folder / "folder.sh").mkdir()
    os.mkfifo(folder / "fifo.sh")
    async with a_worker(folder) as bench:
        for name, words in [
            ("out.sh", "leads out of the scripts folder"),
            ("up/outside.sh", "leads out of the scripts folder"),
            ("folder.sh", "is not a file"),
            ("fifo.sh", "is not a file"),
            ("absent.sh", "there is no 'absent.sh' in the scripts folder"),
        ]:
            assert words in ((await done(bench, call(script=name))).error or ""), name
        assert result(await done(bench, call(script="in.sh")))["stdout"] == "in\n"


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({}, "either a script or a command"),
        ({"script": "a.sh", "command": ["ls"]}, "either a script or a command"),
        ({"script": "a.sh", "shell": "rm"}, r"payload\.shell: is no field of this"),
        ({"script": "a.sh", "params": "days"}, r"payload\.params"),
        ({"script": "a.sh", "params": [1]}, r"payload\.params"),
        ({"script": "a.sh", "params": {"a b": 1}}, "cannot be a name of an option"),
        ({"script": "a.sh", "params": {"-x": 1}}, "cannot be a name of an option"),
        ({"script": "a.sh", "params": ["a\0b"]}, "zero character"),
        ({"script": "a.sh", "timeout": 0}, r"payload\.timeout"),
        ({"command": ["ls"]}, "running commands is off here"),
    ],
)
def test_a_bad_payload_is_rejected_before_it_is_submitted(
    tmp_path: Path, payload: dict[str, object], message: str
) -> None:
    with pytest.raises(Invalid, match=message):
        BuiltinTasks(scripts=tmp_path).check("shell", msgspec.json.encode(payload))


def test_without_a_scripts_folder_the_shell_task_is_off_and_names_the_setting() -> None:
    off = BuiltinTasks()
    assert off.names == ["http"]
    assert "shell" not in off.handlers(no_egress)
    with pytest.raises(Invalid, match=r"running scripts is off here \(.*--scripts DIR.*tasks\.scripts"):
        off.check("shell", b'{"script":"cleanup.py","params":{"days":30}}')


async def test_a_worker_without_a_scripts_folder_can_allow_commands() -> None:
    async with a_worker(None, commands=True) as bench:
        assert result(await done(bench, call(command=["echo", "a;b", "$X"])))["stdout"] == "a;b $X\n"
        assert "cannot be started" in ((await done(bench, call(command=["no-such-program"]))).error or "")
        assert "running scripts is off here" in ((await done(bench, call(script="a.sh"))).error or "")


# Stopping


async def test_the_timeout_of_a_run_ends_its_script_with_all_processes(tmp_path: Path) -> None:
    script(tmp_path, "stubborn.py", STUBBORN)
    async with a_worker(tmp_path) as bench:
        (run,) = await bench.submit(call(script="stubborn.py", timeout=MINUTE))
        pids = await read_pids(tmp_path)
        skip(bench, MINUTE)
        view = await bench.until(run)
        await until_gone(*pids)
    assert (view.state, view.reason) == (RunState.FAILED, "timeout")


async def test_the_timeout_of_a_payload_ends_its_script_with_all_processes(tmp_path: Path) -> None:
    script(tmp_path, "stubborn.py", STUBBORN)
    async with a_worker(tmp_path) as bench:
        # Real seconds, and more than a busy machine takes to start a script.
        payload = msgspec.json.encode({"script": "stubborn.py", "timeout": 10})
        view = await done(bench, a_run(task="shell", payload=payload, policy=a_policy(retries=0)))
        await until_gone(*await read_pids(tmp_path))
    assert view.error == "so far\nScriptFailed: stubborn.py may take 10s and took longer"


async def test_a_cancelled_script_can_clean_up(tmp_path: Path) -> None:
    text = "trap 'echo cleaned > note; exit 0' TERM\necho $$ > pids.tmp && mv pids.tmp pids\nsleep 300 &\nwait"
    script(tmp_path, "polite.sh", text)
    async with a_worker(tmp_path, grace=HOUR) as bench:
        (run_id,) = await bench.submit(call(script="polite.sh"))
        await read_pids(tmp_path)
        assert bench.worker.lease.holding is not None
        attempt = bench.worker.lease.holding.held[run_id]
        bench.worker._cancellation.request(attempt, Stop.CANCEL)
        view = await bench.until(run_id, RunState.CANCELLED)
    assert view.state is RunState.CANCELLED
    assert (tmp_path / "note").read_text() == "cleaned\n"


async def test_a_worker_that_stops_at_once_gives_scripts_no_grace_period(tmp_path: Path) -> None:
    """As when it loses its lease: the run is about to start elsewhere."""
    script(tmp_path, "stubborn.py", STUBBORN)
    async with a_worker(tmp_path, grace=HOUR) as bench:
        (run_id,) = await bench.submit(call(script="stubborn.py"))
        pids = await read_pids(tmp_path)
        bench.worker.stop_now()
        await bench.worker.left()
        await until_gone(*pids)
        assert await bench.state(run_id) is RunState.QUEUED, "released, not failed"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux's kernel kills for us")
async def test_a_script_does_not_outlive_a_worker_that_is_killed(tmp_path: Path) -> None:
    """``mainspring worker`` without an application serves the built-in tasks."""
    folder = tmp_path / "scripts"
    folder.mkdir()
    script(folder, "stubborn.py", STUBBORN)
    script(folder, "quick.sh", "echo quick")
    store = str(tmp_path / "store.db")
    runtime = Runtime(Settings(store=store))
    await runtime.open()
    try:
        async with Processes(store, tmp_path / "logs") as processes:
            worker = processes.start("worker", MAINSPRING_TASKS_SCRIPTS=str(folder))
            quick, stubborn = call(script="quick.sh"), call(script="stubborn.py")
            await runtime.store.submit([quick, stubborn])

            async def succeeded() -> bool:
                (view,) = await runtime.store.runs([quick.id])
                return view is not None and view.state is RunState.SUCCEEDED

            pids = await read_pids(folder)
            await eventually(succeeded, processes.logs)
            assert all(map(is_alive, pids))
            kill(worker)
            await until_gone(*pids)
    finally:
        await runtime.close()
