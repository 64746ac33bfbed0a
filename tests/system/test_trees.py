"""The task ``shell``: no process of a command is left, however it tries to escape. ``/proc`` shows the survivors."""

import os
import sys
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path

import msgspec
import pytest

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import MILLISECOND, SECOND
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.run import RunState
from mainspring.core.ports.wakeups import CANCELS
from mainspring.core.worker.builtin.confinement import Confinement, Limits
from mainspring.core.worker.builtin.process import Program, ProgramSpec
from mainspring.core.worker.builtin.tasks import BuiltinTasks
from mainspring.core.worker.executors.marks import marked
from tests.support.builders import a_policy, a_run
from tests.support.builtin_worker import working
from tests.support.waiting import eventually
from tests.support.worker_kit import Bench

pytestmark = [pytest.mark.system, pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")]

GRACE = SECOND
#: Ignores SIGTERM, and starts children in its group, in a session, and in a session whose parents have ended. Most of
#: them ignore SIGTERM, too. All have the id of the run in their environment, and six of them sleep for 300 s.
ESCAPE = """
trap '' TERM HUP
sleep 300 &
setsid sh -c 'trap "" TERM; sleep 300; sleep 300' &
setsid sh -c 'setsid sh -c "trap \\"\\" TERM; setsid sleep 300 & exec sleep 300" & exit 0' &
(setsid sh -c 'sleep 300 & sleep 300 & exit 0' &)
echo ready
while :; do sleep 1; done
"""


def a_worker(tasks: BuiltinTasks | None = None) -> AbstractAsyncContextManager[Bench]:
    return working(tasks or BuiltinTasks(commands=True, grace=GRACE))


def sh(text: str, **payload: object) -> NewRun:
    payload = {"command": ["sh", "-c", text], **payload}
    return a_run(task="shell", payload=msgspec.json.encode(payload), policy=a_policy(retries=0, timeout=60 * SECOND))


def survivors(run: RunId) -> list[int]:
    return marked([f"MAINSPRING_RUN_ID={run}\0".encode()])


async def until_sleeping(run: RunId, count: int) -> None:
    """Wait until so many processes of a run sleep for 300 s."""

    def sleeping() -> int:
        found = 0
        for pid in survivors(run):
            with suppress(OSError):
                found += Path(f"/proc/{pid}/cmdline").read_bytes() == b"sleep\x00300\x00"
        return found

    await eventually(lambda: sleeping() == count, lambda: f"{sleeping()} of {count} sleep")


async def cancel(bench: Bench, run: RunId) -> None:
    await bench.memory.cancel([run])
    bench.wakeups.notify({CANCELS})


async def test_a_cancelled_tree_that_ignores_sigterm_and_double_forks_is_gone() -> None:
    async with a_worker() as bench:
        (run,) = await bench.submit(sh(ESCAPE))
        await until_sleeping(run, 6)
        await cancel(bench, run)
        await bench.until(run, RunState.CANCELLED)
        assert survivors(run) == [], "it was completed before every process was gone"


async def test_processes_in_other_sessions_are_gone_when_the_command_ends(tmp_path: Path) -> None:
    async with a_worker() as bench:
        escape = "setsid sh -c 'setsid sleep 300 & sleep 300' &"
        (run,) = await bench.submit(sh(f"{escape} until [ -e {tmp_path}/end ]; do sleep 0.1; done; echo done"))
        await until_sleeping(run, 2)
        (tmp_path / "end").touch()
        view = await bench.until(run, RunState.SUCCEEDED)
        assert survivors(run) == []
    assert b'"stdout":"done\\n"' in (view.result or b"")


async def test_a_command_that_kills_its_launcher_does_not_escape(tmp_path: Path) -> None:
    async with a_worker() as bench:
        (run,) = await bench.submit(
            sh(f"setsid sleep 300 & until [ -e {tmp_path}/go ]; do sleep 0.1; done; kill -KILL $PPID; sleep 300")
        )
        await until_sleeping(run, 1)
        (tmp_path / "go").touch()
        view = await bench.until(run, RunState.FAILED)
        assert survivors(run) == []
    assert "signal SIGKILL" in (view.error or "")


async def test_a_command_that_stops_its_launcher_can_be_cancelled() -> None:
    async with a_worker(BuiltinTasks(commands=True, grace=100 * MILLISECOND)) as bench:
        (run,) = await bench.submit(sh("setsid sleep 300 & kill -STOP $PPID; sleep 300"))
        # The shell starts the second one after it has stopped its launcher.
        await until_sleeping(run, 2)
        await cancel(bench, run)
        await bench.until(run, RunState.CANCELLED)
        assert survivors(run) == []


def _cgroups() -> Path | None:
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    folder = next((Path(words[1]) for words in mounts if words[2] == "cgroup2"), None)
    return folder if folder is not None and os.access(folder, os.W_OK) else None


@pytest.mark.skipif(_cgroups() is None, reason="no cgroup (v2) is writable here")
async def test_a_cancel_kills_the_whole_cgroup_of_a_command_and_removes_it() -> None:
    home = _cgroups()
    assert home is not None
    home = home / f"mainspring-test-{os.getpid()}"
    home.mkdir()
    confinement = Confinement(Limits(), cgroup=str(home))
    confinement.check()
    try:
        async with a_worker(BuiltinTasks(commands=True, grace=GRACE, confinement=confinement)) as bench:
            (run,) = await bench.submit(sh(ESCAPE))
            await until_sleeping(run, 6)
            (made,) = [path for path in home.iterdir() if path.is_dir()]
            inside = {int(pid) for pid in (made / "cgroup.procs").read_text().split()}
            assert set(survivors(run)) <= inside
            await cancel(bench, run)
            await bench.until(run, RunState.CANCELLED)
            assert survivors(run) == []
            assert not made.exists()
    finally:
        home.rmdir()


async def test_a_program_reports_the_processor_time_of_its_whole_tree(tmp_path: Path) -> None:
    """One process uses 20 ms, and another one in a session of its own as much."""
    burn = "import time, pathlib, sys\nwhile time.process_time() < 0.02: pass\npathlib.Path(sys.argv[1]).touch()"
    script = """
(setsid "$0" -S -c "$1" apart &)
"$0" -S -c "$1" here
until [ -e apart ]; do sleep 0.1; done
"""
    environment = {"PATH": os.environ["PATH"], "MAINSPRING_RUN_ID": "none", "MAINSPRING_FENCE": "1"}
    argv = ["sh", "-c", script, sys.executable, burn]
    order = ProgramSpec(argv=argv, environment=environment, folder=str(tmp_path))
    program = Program(order, stdin=b"", keep=0, on_line=lambda line, cut: None)
    ended = await program.ended
    program.stdout.close()
    program.stderr.close()
    assert ended.cpu >= 40 * MILLISECOND
