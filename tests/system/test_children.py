"""Sync tasks in real child processes: they run, stop and are killed, and leave no process behind."""

import os
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
import psutil
import pytest

from mainspring.config.loading import load
from mainspring.config.node import Node, Role
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import HOUR, MILLISECOND, MINUTE, SECOND, Micros
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.model.runs.retry import RetryPolicy
from mainspring.core.model.runs.run import HeldRun, Outcome, RunState
from mainspring.core.worker.executors.marks import marked
from mainspring.core.worker.handler import AsyncHandler
from mainspring.core.worker.settings import ChildSettings, WorkerSettings
from tests.support import submitting_tasks
from tests.support.builders import a_policy, a_run
from tests.support.builtin_worker import running
from tests.support.clock import SkippingClock
from tests.support.processes import is_alive, until_gone, until_written
from tests.support.sync_tasks import Application
from tests.support.waiting import eventually
from tests.support.worker_kit import Bench, Tasks

pytestmark = pytest.mark.system

SOURCE = "tests.support.sync_tasks:app"
ROOT = Path(__file__).resolve().parents[2]
CLOSED_CONNECTION = "its process had to end, because a task closed its connection to the worker"
KILL_GRACE: Micros = 10 * MINUTE


def call(task: str, *, policy: RunPolicy | None = None, **arguments: str | Path) -> NewRun:
    payload = msgspec.json.encode({name: str(value) for name, value in arguments.items()})
    return a_run(task=task, payload=payload, policy=policy or a_policy(retries=0))


@asynccontextmanager
async def a_worker(
    source: str = SOURCE, *, patient: bool = False, children: ChildSettings | None = None
) -> AsyncIterator[Bench]:
    """``patient``: an attempt that is asked to stop is not killed before the test skips ``KILL_GRACE``."""
    settings = WorkerSettings(lease=HOUR, kill_grace=300 * MILLISECOND, children=children or ChildSettings())
    bench = Bench(SkippingClock(), Tasks(Application().handlers()), settings, source)
    async with running(bench, kill_grace=KILL_GRACE if patient else None):
        yield bench


def skip(bench: Bench, duration: Micros) -> None:
    assert isinstance(bench.clock, SkippingClock)
    bench.clock.skip(duration)


async def cancel(bench: Bench, run: RunId) -> None:
    await bench.memory.cancel([run])
    bench.wakeups.notify(["cancels"])


# Running


async def test_sync_tasks_run_in_children_that_start_on_demand() -> None:
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


async def test_a_worker_releases_runs_that_find_no_free_thread_in_a_child(tmp_path: Path) -> None:
    children = ChildSettings(children=1, threads_per_child=4, patience=200 * MILLISECOND)
    async with a_worker(children=children) as bench:
        (warm,) = await bench.submit(call("identify"))
        await bench.until(warm)
        runs = await bench.submit(*[call("wait", until=tmp_path / "released") for _ in range(12)])

        async def states() -> Counter[tuple[RunState, int]]:
            views = [await bench.run(run) for run in runs]
            return Counter((view.state, view.attempt) for view in views)

        async def four_run() -> bool:
            return await states() == {(RunState.RUNNING, 1): 4, (RunState.QUEUED, 0): 8}

        await eventually(four_run, lambda: bench.store.claims)
        assert bench.worker.running == 4
        (tmp_path / "released").touch()
        for run in runs:
            assert (await bench.until(run)).state is RunState.SUCCEEDED
        answers = [got for _, got in bench.store.claims if got]
        assert answers[:2] == [1, 12]
        # After that the worker claims no more than there is room for.
        assert max(answers[2:]) <= 4


async def test_output_of_tasks_does_not_disturb_the_connection_to_the_worker() -> None:
    async with a_worker() as bench:
        (run,) = await bench.submit(call("make_noise"))
        assert (await bench.until(run)).result == b'"quiet"'


async def test_the_traceback_of_an_error_has_only_frames_of_the_task() -> None:
    async with a_worker() as bench:
        (run,) = await bench.submit(call("fail"))
        view = await bench.until(run)
        assert view.error is not None
        assert view.error.splitlines()[-1].startswith("ValueError: bad input in ")
        assert "in fail" in view.error
        assert "interruption.py" not in view.error


@pytest.mark.parametrize("task", ["raise_oddly", "thread_raise_oddly"])
async def test_any_exception_of_a_sync_task_fails_the_run(task: str) -> None:
    kinds = ("NotAnException", "GeneratorExit", "KeyboardInterrupt", "SystemExit")
    async with a_worker() as bench:
        for kind, run in zip(kinds, await bench.submit(*[call(task, kind=kind) for kind in kinds]), strict=True):
            view = await bench.until(run)
            assert view.state is RunState.FAILED
            assert view.error is not None
            assert view.error.splitlines()[-1].endswith(f"{kind}: by a handler")


@pytest.mark.parametrize("task", ["choose_failure", "thread_choose_failure"])
async def test_a_sync_task_chooses_whether_and_when_its_run_is_retried(task: str) -> None:
    policy = RunPolicy(retry=RetryPolicy(backoff="fixed", first_delay=HOUR, never_on=("ConnectionError",)))
    expected = {"later": "scheduled ", "never": "failed gave up", "reset": "failed not retried"}
    async with a_worker() as bench:
        runs = await bench.submit(*[call(task, policy=policy, failure=failure) for failure in expected])
        found = {}
        for failure, run in zip(expected, runs, strict=True):
            view = await bench.until(run, RunState.SCHEDULED, RunState.FAILED)
            found[failure] = f"{view.state} {view.reason}"
            if failure == "later":
                # Five minutes, as the task says, and not the hour of the policy.
                assert view.due - view.created_at < HOUR
        assert found == expected


async def test_a_result_that_is_too_large_fails_the_run_with_the_limit() -> None:
    async with a_worker() as bench:
        (run,) = await bench.submit(call("big"))
        view = await bench.until(run)
        assert view.state is RunState.FAILED
        assert view.error is not None
        assert "the result has 10000002 bytes, and at most 65536 are kept" in view.error


async def test_an_application_that_a_child_cannot_load_fails_the_attempt_with_the_reason() -> None:
    async with a_worker("tests.support.broken_tasks:app") as bench:
        (run,) = await bench.submit(call("identify"))
        view = await bench.until(run)
        assert view.state is RunState.FAILED
        assert view.error is not None
        assert view.error.splitlines()[-1] == "ImportError: no database driver here"
        assert "tests.support.broken_tasks:app could not be loaded" in view.error


async def test_runs_are_released_while_a_child_is_slow_to_start_and_run_when_it_is_ready() -> None:
    async with a_worker(children=ChildSettings(start_patience=1)) as bench:
        (run,) = await bench.submit(call("identify"))
        attempts = await eventually(lambda: bench.memory.attempts(run))
        assert (attempts[0].outcome, attempts[0].reason) == (Outcome.RELEASED, "the child process is still starting")
        assert (await bench.until(run)).state is RunState.SUCCEEDED


async def test_a_child_that_does_not_start_in_time_fails_its_runs_with_the_reason() -> None:
    async with a_worker(children=ChildSettings(start_timeout=1)) as bench:
        (run,) = await bench.submit(call("identify"))
        view = await bench.until(run)
        assert view.state is RunState.FAILED
        assert view.error is not None
        assert "importing tests.support.sync_tasks takes too long (worker.child_start)" in view.error


async def test_runs_that_were_released_before_fail_once_no_child_starts_in_time() -> None:
    async with a_worker(children=ChildSettings(start_patience=1, start_timeout=2)) as bench:
        (run,) = await bench.submit(call("identify"))
        assert (await bench.until(run)).state is RunState.FAILED


@pytest.mark.parametrize(
    ("task", "how"),
    [
        ("crash", "its process was killed by SIGSEGV (signal 11)"),
        ("exit_at_once", "its process ended with exit code 3"),
        ("close_connection", CLOSED_CONNECTION),
        ("close_connection_and_hang", CLOSED_CONNECTION),
        ("reuse_connection", CLOSED_CONNECTION),
    ],
)
async def test_the_run_says_how_its_process_ended(task: str, how: str) -> None:
    async with a_worker() as bench:
        (run,) = await bench.submit(call(task, policy=a_policy(retries=0, at_most_once=True)))
        view = await bench.until(run)
        assert view.state is RunState.FAILED
        assert view.error == f"{how}; at-most-once is never repeated"


@pytest.mark.parametrize("task", ["close_descriptors", "replace_descriptor"])
async def test_a_child_whose_descriptors_were_closed_is_replaced(task: str) -> None:
    async with a_worker(children=ChildSettings(children=1)) as bench:
        (first,) = await bench.submit(call(task))
        assert (await bench.until(first)).state is RunState.SUCCEEDED
        (second,) = await bench.submit(call("identify"))
        view = await bench.until(second)
        assert (view.state, view.result != (await bench.run(first)).result) == (RunState.SUCCEEDED, True)


async def test_each_task_in_mode_process_has_a_process_of_its_own(tmp_path: Path) -> None:
    notes = [tmp_path / "first", tmp_path / "second"]
    async with a_worker(children=ChildSettings(processes=2)) as bench:
        runs = await bench.submit(*[call("process_wait", note=note, until=tmp_path / "released") for note in notes])
        pids = {await until_written(note) for note in notes}
        (tmp_path / "released").touch()
        for run in runs:
            await bench.until(run)
        assert len(pids) == 2


async def test_a_child_is_replaced_after_a_number_of_runs() -> None:
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
async def test_a_node_replaces_children_by_its_settings(setting: str, tmp_path: Path) -> None:
    app = submitting_tasks.app
    settings = load({"store": str(tmp_path / "app.db"), "worker.children": "1", setting: "1"})
    node = Node(settings, {Role.WORKER}, app, "tests.support.submitting_tasks:app")
    await node.runtime.open()
    app.use(node.runtime)
    try:
        await node.start()
        results = [(await (await submitting_tasks.identify.submit()).wait("2m")).result for _ in range(3)]
        assert len(set(results)) == 3
    finally:
        await node.stop()
        await app.close()
        await node.runtime.close()


# Stopping


async def test_a_sync_task_can_clean_up_at_its_timeout(tmp_path: Path) -> None:
    note = tmp_path / "note"
    async with a_worker(patient=True) as bench:
        (run,) = await bench.submit(call("clean_up", policy=a_policy(retries=0, timeout=MINUTE), note=note))
        await until_written(note)
        skip(bench, MINUTE)
        view = await bench.until(run)
        assert (view.state, view.reason) == (RunState.FAILED, "timeout")
        assert note.read_text() == "cleaned up"
        (pid,) = bench.worker.processes
        # The child was not killed, and its thread is used again.
        (next_run,) = await bench.submit(call("identify"))
        assert (await bench.until(next_run)).result == f'"{pid}"'.encode()


async def test_a_timeout_kills_a_task_that_hangs_and_releases_its_neighbors(tmp_path: Path) -> None:
    note, released = tmp_path / "note", tmp_path / "released"
    async with a_worker(children=ChildSettings(children=1)) as bench:
        hung, innocent = await bench.submit(
            call("hang", policy=a_policy(retries=0, timeout=MINUTE), note=note),
            call("wait", note=tmp_path / "neighbor", until=released),
        )
        pid = int(await until_written(note))
        await until_written(tmp_path / "neighbor")
        skip(bench, MINUTE)
        view = await bench.until(hung)
        assert not is_alive(pid), "it was completed before its process was dead"
        assert (view.state, view.reason) == (RunState.FAILED, "timeout")
        released.touch()
        view = await bench.until(innocent)
        assert (view.state, view.attempt, view.lost) == (RunState.SUCCEEDED, 1, 0)
        (attempt,) = await bench.memory.attempts(innocent)
        assert attempt.outcome is Outcome.RELEASED


async def test_a_deadline_kills_the_attempt_and_fails_the_run_without_a_retry(tmp_path: Path) -> None:
    note = tmp_path / "note"
    async with a_worker() as bench:
        run = msgspec.structs.replace(call("hang", policy=a_policy(retries=3), note=note), deadline=10 * MINUTE)
        (hung,) = await bench.submit(run)
        pid = int(await until_written(note))
        skip(bench, 10 * MINUTE)
        view = await bench.until(hung)
        assert not is_alive(pid), "it was completed before its process was dead"
        assert (view.state, view.reason, view.attempt) == (RunState.FAILED, "deadline", 1)


async def test_a_cancel_kills_a_task_that_hangs_with_its_grandchildren(tmp_path: Path) -> None:
    note = tmp_path / "note"
    async with a_worker() as bench:
        (run,) = await bench.submit(call("leave_a_grandchild", note=note))
        child, grandchild = map(int, (await until_written(note)).split())
        assert is_alive(grandchild)
        await cancel(bench, run)
        assert (await bench.until(run)).state is RunState.CANCELLED
        assert not is_alive(child)
        await until_gone(grandchild)


def is_sleeping(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).name() == "sleep"
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("way", ["cancel", "timeout"])
async def test_a_stopped_task_leaves_no_process_in_any_session(way: str, tmp_path: Path) -> None:
    note = tmp_path / "note"
    async with a_worker() as bench:
        policy = a_policy(retries=0, timeout=MINUTE)
        (run,) = await bench.submit(call("run_escaping_program", policy=policy, note=note))
        await until_written(note)
        [child] = bench.worker.processes
        mark = f"MAINSPRING_CHILD={psutil.Process(child).environ()['MAINSPRING_CHILD']}".encode()
        await eventually(lambda: sum(map(is_sleeping, marked([mark]))) == 3, lambda: marked([mark]))
        if way == "cancel":
            await cancel(bench, run)
        else:
            skip(bench, MINUTE)
        view = await bench.until(run)
        assert view.state is (RunState.CANCELLED if way == "cancel" else RunState.FAILED)
        assert marked([mark]) == []


async def test_programs_of_a_task_receive_sigterm_before_they_are_killed(tmp_path: Path) -> None:
    note = tmp_path / "note"
    async with a_worker(patient=True) as bench:
        (run,) = await bench.submit(call("wait_for_a_program", note=note))
        await until_written(tmp_path / "note.began")
        await cancel(bench, run)
        await bench.until(run, RunState.CANCELLING)
        await eventually(lambda: bench.worker._cancellation._stopping_attempts)
        skip(bench, KILL_GRACE)
        assert (await bench.until(run)).state is RunState.CANCELLED
    assert note.read_text() == "asked\n"


async def test_a_worker_kills_and_releases_runs_that_outlast_its_grace_period(tmp_path: Path) -> None:
    note = tmp_path / "note"
    async with a_worker() as bench:
        (run,) = await bench.submit(call("hang", note=note))
        pid = int(await until_written(note))
        await bench.worker.stop(SECOND // 2)
        assert not is_alive(pid)
        view = await bench.run(run)
        assert (view.state, view.attempt, view.lost) == (RunState.QUEUED, 0, 0)


async def test_a_timeout_interrupts_a_task_on_a_thread() -> None:
    async with a_worker() as bench:
        (run,) = await bench.submit(call("thread_wait", policy=a_policy(retries=0, timeout=SECOND // 3)))
        view = await bench.until(run)
        assert (view.state, view.reason) == (RunState.FAILED, "timeout")
        assert bench.worker.processes == []


async def test_a_worker_that_cannot_renew_its_lease_kills_its_children_and_reports_nothing(tmp_path: Path) -> None:
    note = tmp_path / "note"
    async with a_worker() as bench:
        (run,) = await bench.submit(call("hang", note=note))
        pid = int(await until_written(note))
        bench.store.fail("heartbeat")
        # Not the whole lease: everything has stopped before it ends.
        skip(bench, bench.worker.settings.lease - bench.worker.settings.lease_margin)
        await until_gone(pid)
        bench.store.heal()
        (healthy,) = await bench.submit(call("identify"))
        assert (await bench.until(healthy)).state is RunState.SUCCEEDED
        assert await bench.state(run) is RunState.RUNNING
        assert len(bench.store.sessions) == 2
        await bench.worker.stop()
        assert [completion.run for batch in bench.store.completed for completion in batch] == [healthy]


# Dying


@pytest.mark.parametrize("task", ["exit_at_once", "crash"])
async def test_a_run_that_kills_its_process_three_times_fails_as_poison(task: str) -> None:
    async with a_worker() as bench:
        (poison,) = await bench.submit(call(task, policy=a_policy(retries=10)))
        view = await bench.until(poison)
        assert (view.state, view.reason, view.lost) == (RunState.FAILED, "poison", 3)
        attempts = await bench.memory.attempts(poison)
        assert [attempt.outcome for attempt in attempts] == [Outcome.LOST] * 3
        (healthy,) = await bench.submit(call("identify"))
        assert (await bench.until(healthy)).state is RunState.SUCCEEDED


async def test_neighbors_of_a_poison_run_are_lost_with_it_but_succeed_later(tmp_path: Path) -> None:
    note, released = tmp_path / "note", tmp_path / "released"
    async with a_worker(children=ChildSettings(children=1)) as bench:
        (neighbor,) = await bench.submit(call("wait", note=note, until=released))
        await until_written(note)
        (poison,) = await bench.submit(call("exit_at_once"))
        assert (await bench.until(poison)).reason == "poison"
        released.touch()
        view = await bench.until(neighbor)
        assert view.state is RunState.SUCCEEDED
        assert 1 <= view.lost <= 2


async def test_an_async_task_that_was_lost_twice_runs_alone_in_a_child() -> None:
    async with a_worker() as bench:
        (run,) = await bench.submit(a_run(task="async_identify", delay=SECOND))
        await mark_as_lost_twice(bench, run)
        view = await bench.until(run)
        assert view.result is not None
        assert int(view.result) != os.getpid()

        (poison,) = await bench.submit(a_run(task="async_exit", delay=SECOND, policy=a_policy(retries=10)))
        await mark_as_lost_twice(bench, poison)
        view = await bench.until(poison)
        assert (view.state, view.reason) == (RunState.FAILED, "poison")


async def test_a_built_in_task_that_was_lost_twice_runs_on_the_loop() -> None:
    """A child process has only the tasks of the application."""

    async def identify(held: HeldRun) -> bytes:
        return str(os.getpid()).encode()

    tasks = Tasks({"http": AsyncHandler("http", identify, harmless=True)})
    async with running(Bench(SkippingClock(), tasks, WorkerSettings(lease=HOUR), SOURCE)) as bench:
        (run,) = await bench.submit(a_run(task="http", delay=SECOND, policy=a_policy(retries=0)))
        await mark_as_lost_twice(bench, run)
        view = await bench.until(run)
    assert view.result == str(os.getpid()).encode(), view.error


async def mark_as_lost_twice(bench: Bench, run: RunId) -> None:
    """Change a run that waits for a second, and queue it after that second as a scheduler does."""
    bench.memory._tables.runs[run].lost = 2
    skip(bench, SECOND)
    member = await bench.memory.join("scheduler", 10 * SECOND)
    await bench.memory.take(member, range(bench.memory.shards))
    await bench.memory.stage(member, range(bench.memory.shards), 100)
    await bench.memory.leave(member)
    bench.wakeups.notify(["queue:default"])


@pytest.mark.parametrize("task", ["leave_a_grandchild", "spin"])
async def test_no_process_of_a_killed_worker_is_left(task: str, tmp_path: Path) -> None:
    notes = [tmp_path / "first", tmp_path / "second"]
    program = f"""
        import asyncio
        from tests.system.test_children import a_worker, call
        from mainspring.core.worker.settings import ChildSettings

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
        pids = [int(pid) for note in notes for pid in (await until_written(note)).split()]
        assert len(pids) == 4
        assert all(map(is_alive, pids))
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    await until_gone(*pids)


async def test_children_of_a_frozen_worker_end_by_themselves(tmp_path: Path) -> None:
    note = tmp_path / "note"
    program = f"""
        import asyncio
        from tests.support.worker_kit import Bench, Tasks
        from tests.support.sync_tasks import Application
        from tests.system.test_children import SOURCE, call
        from mainspring.core.runtime.system_clock import SystemClock
        from mainspring.core.worker.settings import WorkerSettings

        async def main():
            bench = Bench(SystemClock(), Tasks(Application().handlers()), WorkerSettings(), SOURCE)
            await bench.worker.start()
            await bench.submit(call("leave_a_grandchild", note={str(note)!r}))
            await asyncio.sleep(1000)

        asyncio.run(main())
    """
    worker = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", textwrap.dedent(program)], cwd=ROOT, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    try:
        pids = [int(pid) for pid in (await until_written(note)).split()]
        assert all(map(is_alive, pids))
        worker.send_signal(signal.SIGSTOP)
        await until_gone(*pids)
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.wait()
