"""The task ``shell``: whatever a command does to escape, nothing of it is left. Survivors are counted in ``/proc``."""

import asyncio
import os
import sys
import time
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec
import pytest

from mainspring.domain.ids import RunId
from mainspring.domain.instant import MILLISECOND, SECOND
from mainspring.domain.run import NewRun, RunState
from mainspring.ports.wakeups import CANCELS
from mainspring.worker.builtin.confinement import Confinement, Limits
from mainspring.worker.builtin.process import Order, Program
from mainspring.worker.builtin.tasks import BuiltinTasks
from mainspring.worker.marks import marked
from tests.support.builders import a_policy, a_run
from tests.support.builtin_worker import working
from tests.support.worker_kit import Bench

pytestmark = [pytest.mark.system, pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")]

GRACE = SECOND
#: Ignores SIGTERM, and puts children into the group, into a session, and into a session of a session whose parents have
#: ended. Each of them ignores SIGTERM, too. All carry the mark of the run in their environment.
ESCAPE = """
trap '' TERM HUP
sleep 300 &
setsid sh -c 'trap "" TERM; sleep 300; sleep 300' &
setsid sh -c 'setsid sh -c "trap \\"\\" TERM; setsid sleep 300 & exec sleep 300" & exit 0' &
(setsid sh -c 'sleep 300 & sleep 300 & exit 0' &)
sleep 0.3
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


async def until_it_says(bench: Bench, run: RunId, word: str) -> None:
    for _ in range(1_000):
        if any(word in piece.text for piece in await bench.memory.log(run, 0, 100)):
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{run} did not say {word}")


async def cancel(bench: Bench, run: RunId) -> None:
    await bench.memory.cancel([run])
    bench.wakeups.ring({CANCELS})


async def test_a_tree_that_ignores_term_and_double_forks_is_gone_within_the_grace_period_after_cancel() -> None:
    async with a_worker() as bench:
        (run,) = await bench.submit(sh(ESCAPE))
        await until_it_says(bench, run, "ready")
        assert len(survivors(run)) >= 8, "it has spread"
        asked = time.monotonic()
        await cancel(bench, run)
        view = await bench.until(run, RunState.CANCELLED, within=5 * SECOND)
        took = time.monotonic() - asked
        assert survivors(run) == [], "counted when it is called cancelled"
    assert view.state is RunState.CANCELLED
    assert GRACE / SECOND <= took < GRACE / SECOND + 1.5, "the grace for who cleans up, and not much more"


async def test_what_hid_in_another_session_is_gone_when_the_command_ends_by_itself() -> None:
    async with a_worker() as bench:
        (run,) = await bench.submit(sh("setsid sh -c 'setsid sleep 300 & sleep 300' & sleep 0.2; echo done"))
        view = await bench.until(run, RunState.SUCCEEDED, within=10 * SECOND)
        assert survivors(run) == []
    assert b'"stdout":"done\\n"' in (view.result or b"")


async def test_a_command_that_kills_its_launcher_does_not_escape() -> None:
    async with a_worker() as bench:
        (run,) = await bench.submit(sh("setsid sleep 300 & sleep 0.2; kill -KILL $PPID; sleep 300"))
        view = await bench.until(run, RunState.FAILED, within=10 * SECOND)
        assert survivors(run) == []
    assert "signal SIGKILL" in (view.error or "")


async def test_a_command_that_stops_its_launcher_can_be_cancelled_all_the_same() -> None:
    async with a_worker(BuiltinTasks(commands=True, grace=100 * MILLISECOND)) as bench:
        (run,) = await bench.submit(sh("setsid sleep 300 & echo ready; sleep 0.2; kill -STOP $PPID; sleep 300"))
        await until_it_says(bench, run, "ready")
        await asyncio.sleep(0.4)
        await cancel(bench, run)
        await bench.until(run, RunState.CANCELLED, within=10 * SECOND)
        assert survivors(run) == []


def _cgroups() -> Path | None:
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    folder = next((Path(words[1]) for words in mounts if words[2] == "cgroup2"), None)
    return folder if folder is not None and os.access(folder, os.W_OK) else None


@pytest.mark.skipif(_cgroups() is None, reason="no cgroup (v2) is writable here")
async def test_in_a_cgroup_all_is_killed_at_once_and_the_cgroup_is_removed() -> None:
    home = _cgroups()
    assert home is not None
    home = home / f"mainspring-test-{os.getpid()}"
    home.mkdir()
    confinement = Confinement(Limits(), cgroup=str(home))
    confinement.check()
    try:
        async with a_worker(BuiltinTasks(commands=True, grace=GRACE, confinement=confinement)) as bench:
            (run,) = await bench.submit(sh(ESCAPE))
            await until_it_says(bench, run, "ready")
            (made,) = [path for path in home.iterdir() if path.is_dir()]
            inside = {int(pid) for pid in (made / "cgroup.procs").read_text().split()}
            assert set(survivors(run)) <= inside
            await cancel(bench, run)
            await bench.until(run, RunState.CANCELLED, within=5 * SECOND)
            assert survivors(run) == []
            assert not made.exists()
    finally:
        home.rmdir()


async def test_the_time_that_all_of_a_tree_has_used_is_told() -> None:
    burn = f"{sys.executable} -S -c 'x = 0\nfor i in range(2_000_000): x += i'"
    environment = {"PATH": os.environ["PATH"], "MAINSPRING_RUN_ID": "none", "MAINSPRING_FENCE": "1"}
    order = Order(argv=["sh", "-c", f"(setsid {burn} &) ; {burn}; sleep 0.5"], environment=environment, folder="/")
    program = Program(order, stdin=b"", keep=0, tell=lambda line, cut: None)
    ended = await program.ended
    program.stdout.close()
    program.stderr.close()
    assert 20 * MILLISECOND < ended.cpu < 20 * SECOND
