"""Sync tasks in real child processes: they run, they are stopped, they are killed, and nobody is left behind."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import psutil
import pytest

from mainspring.adapters.clock.system import SystemClock
from mainspring.bootstrap.node import Node, Role
from mainspring.domain.instant import HOUR, MILLISECOND, MINUTE, SECOND, Micros
from mainspring.domain.retry import RetryPolicy
from mainspring.domain.run import HeldRun, NewRun, Outcome, RunPolicy, RunState
from mainspring.settings import load
from mainspring.worker.handler import AsyncHandler
from mainspring.worker.marks import marked
from mainspring.worker.settings import ChildSettings, WorkerSettings
from tests.support import submitting_tasks
from tests.support.builders import a_policy, a_run
from tests.support.sync_tasks import Application
from tests.support.worker_kit import Bench, Tasks

pytestmark = pytest.mark.system

SOURCE = "tests.support.sync_tasks:app"
ROOT = Path(__file__).resolve().parents[2]


def call(task: str, *, policy: RunPolicy | None = None, **arguments: str | Path) -> NewRun:
    payload = msgspec.json.encode({name: str(value) for name, value in arguments.items()})
    return a_run(task=task, payload=payload, policy=policy or a_policy(retries=0))


@asynccontextmanager
async def a_worker(
    source: str = SOURCE, *, kill_grace: Micros = 300 * MILLISECOND, children: ChildSettings | None = None
) -> AsyncIterator[Bench]:
    settings = WorkerSettings(kill_grace=kill_grace, children=children or ChildSettings())
    bench = Bench(SystemClock(), Tasks(Application().handlers()), settings, source)
    await bench.worker.start()
    try:
        yield bench
    finally:
        bench.worker.stop_now()
        await bench.worker.left()
        assert bench.worker.processes == []


async def written(note: Path) -> str:
    """What a task wrote, as soon as it has."""
    for _ in range(1_000):
        if text := _read(note):
            return text
        await asyncio.sleep(0.01)
    raise AssertionError("nothing was written")


def _read(note: Path) -> str:
    return note.read_text() if note.exists() else ""


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def gone(*pids: int) -> bool:
    for _ in range(500):
        if not any(alive(pid) for pid in pids):
            return True
        await asyncio.sleep(0.01)
    return False


# Running


async def test_sync_tasks_run_in_children_that_are_started_when_they_are_needed() -> None:
    async with a_worker() as bench:
        assert bench.worker.processes == []
        runs = await bench.submit(*[call("identify") for _ in range(50)])
        pids = set()
        for run in runs:
            view = await bench.until(run)
            assert view.state is RunState.SUCCEEDED
            assert view.result is not None
            pids.add(int(msgspec.json.decode(view.result, type=str)))
        assert pids <= set(bench.worker.processes)
        assert os.getpid() not in pids
        assert len(pids) <= 2


async def test_calls_of_one_child_run_side_by_side_and_wait_for_a_thread_only_as_long_as_is_patient() -> None:
    children = ChildSettings(children=1, threads_per_child=4, patience=200 * MILLISECOND)
    async with a_worker(children=children) as bench:
        (warm,) = await bench.submit(call("identify"))
        await bench.until(warm)
        runs = await bench.submit(*[call("sleep", seconds="0.5") for _ in range(12)])
        await asyncio.sleep(0.1)
        assert bench.worker.running == 12
        await asyncio.sleep(0.25)
        # What found no thread went back uncharged, and no more is claimed than there is room for.
        assert bench.worker.running == 4
        views = [await bench.run(run) for run in runs]
        assert sorted({(view.state, view.attempt) for view in views}) == [(RunState.QUEUED, 0), (RunState.RUNNING, 1)]
        for run in runs:
            assert (await bench.until(run)).state is RunState.SUCCEEDED
        answers = [got for _, got in bench.store.claims if got]
        assert answers[:2] == [1, 12]
        assert max(answers[2:]) <= 4


async def test_what_tasks_print_does_not_disturb_the_line_to_the_worker() -> None:
    async with a_worker() as bench:
        (run,) = await bench.submit(call("make_noise"))
        assert (await bench.until(run)).result == b'"quiet"'


async def test_an_error_comes_with_the_frames_of_the_task_alone() -> None:
    async with a_worker() as bench:
        (run,) = await bench.submit(call("fail"))
        view = await bench.until(run)
        assert view.error is not None
        assert view.error.splitlines()[-1].startswith("ValueError: bad input in ")
        assert "in fail" in view.error
        assert "interruption.py" not in view.error


@pytest.mark.parametrize("task", ["raise_oddly", "thread_raise_oddly"])
async def test_whatever_a_sync_task_raises_is_its_failure(task: str) -> None:
    kinds = ("NotAnException", "GeneratorExit", "KeyboardInterrupt", "SystemExit")
    async with a_worker() as bench:
        for kind, run in zip(kinds, await bench.submit(*[call(task, kind=kind) for kind in kinds]), strict=True):
            view = await bench.until(run)
            assert view.state is RunState.FAILED
            assert view.error is not None
            assert view.error.splitlines()[-1].endswith(f"{kind}: by a handler")


@pytest.mark.parametrize("task", ["give_a_verdict", "thread_give_a_verdict"])
async def test_what_a_sync_task_says_of_its_failure_is_heard(task: str) -> None:
    patient = RunPolicy(retry=RetryPolicy(backoff="fixed", first_delay=HOUR, never_on=("ConnectionError",)))
    verdicts = {"later": "scheduled ", "never": "failed gave up", "reset": "failed not retried"}
    async with a_worker() as bench:
        runs = await bench.submit(*[call(task, policy=patient, verdict=verdict) for verdict in verdicts])
        found = {}
        for verdict, run in zip(verdicts, runs, strict=True):
            view = await bench.until(run, RunState.SCHEDULED, RunState.FAILED)
            found[verdict] = f"{view.state} {view.reason}"
            if verdict == "later":
                assert view.due - view.created_at < 6 * MINUTE
        assert found == verdicts


async def test_a_result_that_is_too_large_is_a_failure_that_says_so() -> None:
    async with a_worker() as bench:
        (run,) = await bench.submit(call("big"))
        view = await bench.until(run)
        assert view.state is RunState.FAILED
        assert view.error is not None
        assert "the result has 10000002 bytes, and at most 65536 are kept" in view.error


async def test_an_application_that_cannot_be_loaded_in_a_child_fails_the_attempt_with_the_reason() -> None:
    async with a_worker("tests.support.broken_tasks:app") as bench:
        (run,) = await bench.submit(call("identify"))
        view = await bench.until(run)
        assert view.state is RunState.FAILED
        assert view.error is not None
        assert view.error.splitlines()[-1] == "ImportError: no database driver here"
        assert "tests.support.broken_tasks:app could not be loaded" in view.error


async def test_a_child_that_starts_late_costs_nobody_an_attempt() -> None:
    async with a_worker(children=ChildSettings(start_timeout=1)) as bench:
        (run,) = await bench.submit(call("identify"))
        while not (tries := await bench.memory.attempts(run)):
            await asyncio.sleep(0.01)
        assert tries[0].outcome is Outcome.RELEASED
        assert "did not start within" in tries[0].reason


async def test_cpu_bound_tasks_have_a_process_each() -> None:
    async with a_worker(children=ChildSettings(processes=2)) as bench:
        runs = await bench.submit(*[call("process_sleep", seconds="0.3") for _ in range(2)])
        results = {(await bench.until(run)).result for run in runs}
        assert len(results) == 2


async def test_a_child_is_replaced_after_so_many_runs() -> None:
    async with a_worker(children=ChildSettings(children=1, recycle_after_runs=5)) as bench:
        pids = []
        for _ in range(12):
            (run,) = await bench.submit(call("identify"))
            view = await bench.until(run)
            assert view.state is RunState.SUCCEEDED
            pids.append(view.result)
        assert len(set(pids)) == 3


async def test_a_child_that_uses_too_much_memory_is_replaced() -> None:
    async with a_worker(children=ChildSettings(children=1, recycle_memory_bytes=1)) as bench:
        pids = set()
        for _ in range(3):
            (run,) = await bench.submit(call("identify"))
            pids.add((await bench.until(run)).result)
        assert len(pids) == 3


@pytest.mark.parametrize("setting", ["worker.recycle_child_after_runs", "worker.recycle_child_memory"])
async def test_children_are_replaced_as_the_settings_say(setting: str, tmp_path: Path) -> None:
    app = submitting_tasks.app
    settings = load({"store": str(tmp_path / "app.db"), "worker.children": "1", setting: "1"})
    node = Node(settings, {Role.WORKER}, app, "tests.support.submitting_tasks:app")
    await node.engine.open()
    app.use(node.engine)
    try:
        await node.start()
        results = [(await (await submitting_tasks.identify.submit()).wait("20s")).result for _ in range(3)]
        assert len(set(results)) == 3
    finally:
        await node.stop()
        await app.close()
        await node.engine.close()


# Stopping


async def test_a_timeout_interrupts_a_sync_task_which_can_clean_up(tmp_path: Path) -> None:
    note = tmp_path / "note"
    async with a_worker() as bench:
        (run,) = await bench.submit(call("clean_up", policy=a_policy(retries=0, timeout=SECOND // 2), note=note))
        view = await bench.until(run)
        assert (view.state, view.reason) == (RunState.FAILED, "timeout")
        assert note.read_text() == "cleaned up"
        (pid,) = bench.worker.processes
        # The child was not killed, and its thread is used again.
        (next_run,) = await bench.submit(call("identify"))
        assert (await bench.until(next_run)).result == f'"{pid}"'.encode()


async def test_a_timeout_kills_what_cannot_be_interrupted_and_spares_its_neighbours(tmp_path: Path) -> None:
    note = tmp_path / "note"
    async with a_worker(children=ChildSettings(children=1)) as bench:
        hung, innocent = await bench.submit(
            call("hang", policy=a_policy(retries=0, timeout=SECOND), note=note), call("sleep", seconds="3")
        )
        pid = int(await written(note))
        view = await bench.until(hung)
        assert not alive(pid), "it was settled before its process was dead"
        assert (view.state, view.reason) == (RunState.FAILED, "timeout")
        view = await bench.until(innocent)
        assert (view.state, view.attempt, view.lost) == (RunState.SUCCEEDED, 1, 0)
        (attempt,) = await bench.memory.attempts(innocent)
        assert attempt.outcome is Outcome.RELEASED


async def test_a_deadline_kills_the_attempt_that_runs_and_ends_the_run_for_good(tmp_path: Path) -> None:
    note = tmp_path / "note"
    async with a_worker() as bench:
        run = msgspec.structs.replace(call("hang", policy=a_policy(retries=3), note=note), deadline=SECOND)
        (hung,) = await bench.submit(run)
        pid = int(await written(note))
        view = await bench.until(hung)
        assert not alive(pid), "it was settled before its process was dead"
        assert (view.state, view.reason, view.attempt) == (RunState.FAILED, "deadline", 1)


async def test_a_cancel_kills_what_cannot_be_interrupted_with_everything_it_started(tmp_path: Path) -> None:
    note = tmp_path / "note"
    async with a_worker() as bench:
        (run,) = await bench.submit(call("leave_a_grandchild", note=note))
        child, grandchild = map(int, (await written(note)).split())
        assert alive(grandchild)
        await bench.memory.cancel([run])
        bench.wakeups.ring(["cancels"])
        assert (await bench.until(run)).state is RunState.CANCELLED
        assert not alive(child)
        assert await gone(grandchild)


def mark_of(child: int) -> bytes:
    words = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
    return next(word for word in words if word.startswith(b"MAINSPRING_CHILD="))


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("way", ["cancel", "timeout"])
async def test_nothing_that_a_stopped_task_has_started_is_left_wherever_it_has_gone(way: str, tmp_path: Path) -> None:
    note = tmp_path / "note"
    async with a_worker() as bench:
        policy = a_policy(retries=0, timeout=2 * SECOND if way == "timeout" else 60 * SECOND)
        (run,) = await bench.submit(call("run_what_escapes", policy=policy, note=note))
        await written(note)
        [child] = bench.worker.processes
        mark = mark_of(child)
        assert len(marked([mark])) > 3
        if way == "cancel":
            await bench.memory.cancel([run])
            bench.wakeups.ring(["cancels"])
        view = await bench.until(run)
        assert view.state is (RunState.CANCELLED if way == "cancel" else RunState.FAILED)
        assert marked([mark]) == []


async def test_what_a_task_has_started_is_asked_to_end_before_it_is_killed(tmp_path: Path) -> None:
    note = tmp_path / "note"
    async with a_worker() as bench:
        (run,) = await bench.submit(call("wait_for_a_program", note=note))
        await written(tmp_path / "note.began")
        await bench.memory.cancel([run])
        bench.wakeups.ring(["cancels"])
        assert (await bench.until(run)).state is RunState.CANCELLED
    assert await written(note) == "asked\n"


async def test_what_outlasts_the_grace_period_is_killed_and_given_back_uncharged(tmp_path: Path) -> None:
    note = tmp_path / "note"
    async with a_worker() as bench:
        (run,) = await bench.submit(call("hang", note=note))
        pid = int(await written(note))
        asked = time.monotonic()
        await bench.worker.stop(SECOND // 2)
        assert time.monotonic() - asked < 2
        assert not alive(pid)
        view = await bench.run(run)
        assert (view.state, view.attempt, view.lost) == (RunState.QUEUED, 0, 0)


async def test_a_bare_thread_is_interrupted_too() -> None:
    async with a_worker() as bench:
        (run,) = await bench.submit(call("thread_sleep", policy=a_policy(retries=0, timeout=SECOND // 3)))
        view = await bench.until(run)
        assert (view.state, view.reason) == (RunState.FAILED, "timeout")
        assert bench.worker.processes == []


async def test_a_lost_lease_kills_every_child_and_tells_nothing(tmp_path: Path) -> None:
    note = tmp_path / "note"
    settings = WorkerSettings(lease=3 * SECOND, beat_interval=SECOND // 2, lease_margin=SECOND)
    bench = Bench(SystemClock(), Tasks(Application().handlers()), settings, SOURCE)
    await bench.worker.start()
    (run,) = await bench.submit(call("hang", note=note))
    pid = int(await written(note))
    bench.store.fail("beat")
    lost = time.monotonic()
    assert await gone(pid)
    assert time.monotonic() - lost < 3
    bench.store.heal()
    (healthy,) = await bench.submit(call("identify"))
    assert (await bench.until(healthy)).state is RunState.SUCCEEDED
    assert await bench.state(run) is RunState.RUNNING
    assert len(bench.store.sessions) == 2
    await bench.worker.stop()
    assert [settlement.run for batch in bench.store.settled for settlement in batch] == [healthy]


# Dying


@pytest.mark.parametrize("task", ["exit_at_once", "crash"])
async def test_a_run_that_kills_its_process_is_blamed_and_parked_at_the_third_time(task: str) -> None:
    async with a_worker() as bench:
        (poison,) = await bench.submit(call(task, policy=a_policy(retries=10)))
        view = await bench.until(poison)
        assert (view.state, view.reason, view.lost) == (RunState.FAILED, "poison", 3)
        attempts = await bench.memory.attempts(poison)
        assert [attempt.outcome for attempt in attempts] == [Outcome.LOST] * 3
        (healthy,) = await bench.submit(call("identify"))
        assert (await bench.until(healthy)).state is RunState.SUCCEEDED


async def test_the_neighbours_of_a_poison_run_are_lost_with_it_but_never_parked() -> None:
    async with a_worker(children=ChildSettings(children=1)) as bench:
        (warm,) = await bench.submit(call("identify"))
        await bench.until(warm)
        neighbour, poison = await bench.submit(call("sleep", seconds="1"), call("exit_at_once"))
        assert (await bench.until(poison)).reason == "poison"
        view = await bench.until(neighbour)
        assert view.state is RunState.SUCCEEDED
        assert 1 <= view.lost <= 2


async def test_a_run_that_was_lost_twice_runs_alone_in_a_child_whatever_its_mode() -> None:
    async with a_worker() as bench:
        (run,) = await bench.submit(a_run(task="async_identify", delay=SECOND))
        bench.memory._tables.runs[run].lost = 2
        await asyncio.sleep(1)
        await _stage(bench)
        view = await bench.until(run)
        assert view.result is not None
        assert int(view.result) != os.getpid()

        (poison,) = await bench.submit(a_run(task="async_exit", delay=SECOND, policy=a_policy(retries=10)))
        bench.memory._tables.runs[poison].lost = 2
        await asyncio.sleep(1)
        await _stage(bench)
        view = await bench.until(poison)
        assert (view.state, view.reason) == (RunState.FAILED, "poison")


async def test_a_built_in_task_that_was_lost_twice_stays_on_the_loop() -> None:
    """A child process loads the application, and that does not have it."""

    async def identify(held: HeldRun) -> bytes:
        return str(os.getpid()).encode()

    tasks = Tasks({"http": AsyncHandler("http", identify, harmless=True)})
    bench = Bench(SystemClock(), tasks, WorkerSettings(), SOURCE)
    await bench.worker.start()
    (run,) = await bench.submit(a_run(task="http", delay=50 * MILLISECOND, policy=a_policy(retries=0)))
    bench.memory._tables.runs[run].lost = 2
    await asyncio.sleep(0.1)
    await _stage(bench)
    view = await bench.until(run, within=10 * SECOND)
    bench.worker.stop_now()
    await bench.worker.left()
    assert view.result == str(os.getpid()).encode(), view.error


async def _stage(bench: Bench) -> None:
    """Queue what is due, as a scheduler would."""
    member = await bench.memory.join("scheduler", 10 * SECOND)
    await bench.memory.take(member, range(bench.memory.shards))
    await bench.memory.stage(member, range(bench.memory.shards), 100)
    await bench.memory.leave(member)
    bench.wakeups.ring(["queue:default"])


@pytest.mark.parametrize("task", ["leave_a_grandchild", "spin"])
async def test_a_killed_worker_leaves_nobody_behind(task: str, tmp_path: Path) -> None:
    notes = [tmp_path / "first", tmp_path / "second"]
    program = f"""
        import asyncio
        from tests.system.test_children import a_worker, call
        from mainspring.worker.settings import ChildSettings

        async def main():
            async with a_worker(children=ChildSettings(children=2, threads_per_child=1)) as bench:
                await bench.submit(*[call({task!r}, note=note) for note in {[str(note) for note in notes]!r}])
                await asyncio.sleep(1000)

        asyncio.run(main())
    """
    worker = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", textwrap.dedent(program)], cwd=ROOT, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    try:
        pids = [int(pid) for note in notes for pid in (await written(note)).split()]
        assert len(pids) == 4
        assert all(alive(pid) for pid in pids)
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    assert await gone(*pids)


async def test_children_of_a_frozen_worker_end_before_its_lease_does(tmp_path: Path) -> None:
    note = tmp_path / "note"
    program = f"""
        import asyncio
        from tests.support.builders import a_run
        from tests.support.worker_kit import Bench, Tasks
        from tests.support.sync_tasks import Application
        from tests.system.test_children import SOURCE, call
        from mainspring.adapters.clock.system import SystemClock
        from mainspring.domain.instant import SECOND
        from mainspring.worker.settings import WorkerSettings

        async def main():
            settings = WorkerSettings(lease=3 * SECOND, beat_interval=SECOND // 2, lease_margin=SECOND)
            bench = Bench(SystemClock(), Tasks(Application().handlers()), settings, SOURCE)
            await bench.worker.start()
            await bench.submit(call("leave_a_grandchild", note={str(note)!r}))
            await asyncio.sleep(1000)

        asyncio.run(main())
    """
    worker = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", textwrap.dedent(program)], cwd=ROOT, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    try:
        pids = [int(pid) for pid in (await written(note)).split()]
        await asyncio.sleep(3.5)
        assert all(alive(pid) for pid in pids), "the lifeline broke without reason"
        worker.send_signal(signal.SIGSTOP)
        frozen = time.monotonic()
        assert await gone(*pids)
        assert time.monotonic() - frozen < 3.5
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.wait()
