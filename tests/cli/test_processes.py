"""How processes start, and how they stop even if handlers block or ignore their cancellation."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner

from mainspring import Mainspring
from mainspring.cli import processes
from mainspring.cli.main import application
from mainspring.cli.processes import PATIENCE, wait_for_runtime
from mainspring.config.loading import load
from mainspring.config.runtime import Runtime
from mainspring.core.model.base.errors import Invalid, StoreUnavailable
from mainspring.core.model.base.instant import SECOND
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.model.schedules.job import JobState
from tests.support.clock import ManualClock
from tests.support.command_line import terminate, wait_for_exit
from tests.support.processes import free_port
from tests.support.waiting import wait_until
from tools.chaos.link import Link

TASKS = """
import asyncio, os, signal, time
from pathlib import Path
from mainspring import Mainspring
from mainspring.core.model.base.instant import SECOND
from mainspring.core.runtime import signals

app = Mainspring()
if "LEAVING_SECONDS" in os.environ:
    signals._LEAVING = int(os.environ["LEAVING_SECONDS"]) * SECOND

def start() -> None:
    handle = signal.getsignal(signal.SIGTERM)
    def report(number, frame) -> None:
        handle(number, frame)
        os.write(1, b"signal received\\n")
    signal.signal(signal.SIGTERM, report)
    print("started", flush=True)

@app.task
async def in_a_thread() -> None:
    start()
    await asyncio.to_thread(time.sleep, 3_600)

@app.task
async def in_all_threads() -> None:
    start()
    await asyncio.gather(*[asyncio.to_thread(time.sleep, 3_600) for _ in range(40)])

@app.task
async def stubborn() -> None:
    start()
    while True:
        try:
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            pass

@app.task
async def blocking() -> None:
    start()
    # Python handles a signal only between two calls, so one long call could miss it.
    while True:
        time.sleep(0.01)

@app.task
async def waiting() -> None:
    start()
    while not Path("finish").exists():
        await asyncio.sleep(0.01)
    # Longer than the grace period of the test about recycling.
    await asyncio.sleep(1)
    print("done", flush=True)
"""


class Commands:
    """Starts commands in a directory with a store, and reads their output."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log = directory / "log"
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str, **environment: str) -> "subprocess.Popen[bytes]":
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "mainspring", *arguments],
                cwd=self.directory,
                env={**os.environ, **environment},
                stdout=log,
                stderr=log,
            )
        self._started.append(process)
        return process

    def submit(self, task: str) -> RunView:
        async def submit() -> RunView:
            app = Mainspring(str(self.directory / "mainspring.db"))
            return await (await app.named(task).submit()).view()

        return asyncio.run(submit())

    def view(self, run: RunView) -> RunView:
        async def view() -> RunView:
            runtime = Runtime(load({"store": str(self.directory / "mainspring.db")}))
            await runtime.open()
            (found,) = await runtime.store.runs([run.id])
            await runtime.close()
            assert found is not None
            return found

        return asyncio.run(view())

    def wait_for_log(self, text: str, count: int = 1) -> None:
        wait_until(lambda: self.log.read_text().count(text) >= count, self.log.read_text)

    def kill(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    (tmp_path / "tasks.py").write_text(TASKS)
    commands = Commands(tmp_path)
    yield commands
    commands.kill()


# Stopping

#: Forces no exit. A busy machine may need long to stop in order.
UNHURRIED = {"LEAVING_SECONDS": "3600"}


def test_a_worker_finishes_its_runs_within_the_grace_period(commands: Commands) -> None:
    run = commands.submit("waiting")
    process = commands.start("worker", "tasks:app", MAINSPRING_WORKER_GRACE="1h", **UNHURRIED)
    commands.wait_for_log("started")
    process.send_signal(signal.SIGTERM)
    commands.wait_for_log("worker leaving")
    (commands.directory / "finish").touch()
    assert wait_for_exit(process) == 0, commands.log.read_text()
    view = commands.view(run)
    assert (view.state, view.attempt) == (RunState.SUCCEEDED, 1)


@pytest.mark.parametrize("task", ["in_a_thread", "in_all_threads", "stubborn"])
def test_a_process_exits_after_its_grace_period_even_if_a_handler_does_not_return(
    commands: Commands, task: str
) -> None:
    commands.submit(task)
    process = commands.start("worker", "tasks:app", MAINSPRING_WORKER_GRACE="1s", **UNHURRIED)
    commands.wait_for_log("started")
    assert terminate(process) == 0, commands.log.read_text()
    assert "Traceback" not in commands.log.read_text()


def test_a_process_is_ended_by_force_if_a_handler_blocks_the_event_loop(commands: Commands) -> None:
    commands.submit("blocking")
    process = commands.start("worker", "tasks:app", MAINSPRING_WORKER_GRACE="1s")
    commands.wait_for_log("started")
    assert terminate(process) == 1, commands.log.read_text()
    assert "the process is ended by force" in commands.log.read_text()
    assert "Traceback" not in commands.log.read_text()


@pytest.mark.parametrize("task", ["in_a_thread", "blocking"])
def test_a_process_exits_after_a_second_signal_even_if_a_handler_does_not_return(commands: Commands, task: str) -> None:
    commands.submit(task)
    process = commands.start("worker", "tasks:app", MAINSPRING_WORKER_GRACE="1h")
    commands.wait_for_log("started")
    process.send_signal(signal.SIGTERM)
    commands.wait_for_log("signal received")
    terminate(process)


def test_a_worker_that_recycles_lets_runs_take_longer_than_the_grace_period(commands: Commands) -> None:
    run = commands.submit("waiting")
    process = commands.start(
        "worker", "tasks:app", MAINSPRING_WORKER_GRACE="1ms", MAINSPRING_WORKER_RECYCLE_AFTER_RUNS="1", **UNHURRIED
    )
    commands.wait_for_log("worker recycling")
    (commands.directory / "finish").touch()
    # The same process with a new worker in it.
    commands.wait_for_log("mainspring: worker on", 2)
    view = commands.view(run)
    assert (view.state, view.attempt) == (RunState.SUCCEEDED, 1)
    assert commands.log.read_text().count("started\n") == 1
    assert terminate(process) == 0


def test_a_signal_applies_the_grace_period_to_a_worker_that_recycles(commands: Commands) -> None:
    commands.submit("stubborn")
    process = commands.start(
        "worker", "tasks:app", MAINSPRING_WORKER_GRACE="500ms", MAINSPRING_WORKER_RECYCLE_AFTER_RUNS="1", **UNHURRIED
    )
    commands.wait_for_log("started")
    commands.wait_for_log("worker recycling")
    assert terminate(process) == 0


# Schedules


def test_a_schedule_that_is_no_longer_in_the_code_can_be_cancelled(commands: Commands) -> None:
    (commands.directory / "renamed.py").write_text(TASKS + 'app.cron("* * * * * *", name="old")(waiting)\n')
    process = commands.start("worker", "renamed:app")
    commands.wait_for_log("mainspring: worker on")
    terminate(process)
    assert wait_for_exit(commands.start("jobs", "cancel", "old")) == 0
    assert "job old is cancelled\n" in commands.log.read_text()

    async def read_state() -> JobState:
        runtime = Runtime(load({"store": str(commands.directory / "mainspring.db")}))
        await runtime.open()
        job = await runtime.store.job_named("default", "old")
        assert job is not None
        (found,) = await runtime.store.jobs([job])
        await runtime.close()
        assert found is not None
        return found.state

    assert asyncio.run(read_state()) is JobState.CANCELLED
    assert wait_for_exit(commands.start("jobs", "cancel", "older")) == 4
    assert "mainspring: there is no job 'older'\n" in commands.log.read_text()


def test_a_schedule_that_is_no_longer_in_the_code_is_named_at_the_start(commands: Commands) -> None:
    for name in ("old", "new"):
        (commands.directory / "renamed.py").write_text(TASKS + f'app.cron("0 0 1 1 *", name="{name}")(waiting)\n')
        process = commands.start("worker", "renamed:app")
        commands.wait_for_log(f"  schedule {name}: ")
        commands.wait_for_log("mainspring: ready", 1 if name == "old" else 2)
        terminate(process)
    assert (
        "  still in the store, but not in the code: schedule old; "
        "mainspring plan shows what mainspring apply would remove\n" in commands.log.read_text()
    )


# Starting


def test_a_process_that_hangs_while_starting_stops_on_sigterm(commands: Commands) -> None:
    hanging = """
import asyncio
from mainspring.http.server import HttpServer

async def hang(self):
    print("hanging", flush=True)
    await asyncio.Event().wait()

HttpServer.start = hang
"""
    (commands.directory / "hanging.py").write_text(hanging + TASKS)
    process = commands.start("up", "hanging:app", **UNHURRIED)
    commands.wait_for_log("hanging")
    assert terminate(process) == 0, commands.log.read_text()
    assert "worker left" in commands.log.read_text()
    assert "Traceback" not in commands.log.read_text()


class AbsentStore:
    """A runtime whose ``open`` has these outcomes, one after the other; the last one repeats."""

    def __init__(self, *outcomes: Exception | None) -> None:
        self.clock = ManualClock()
        self.tried = 0
        self._outcomes = outcomes

    async def open(self) -> None:
        outcome = self._outcomes[min(self.tried, len(self._outcomes) - 1)]
        self.tried += 1
        if outcome is not None:
            raise outcome

    async def wait(self) -> None:
        waiting = asyncio.create_task(wait_for_runtime(cast("Runtime", self)))
        while not waiting.done():
            await asyncio.sleep(0)
            self.clock.advance(SECOND)
        await waiting


async def test_a_process_waits_for_an_unreachable_store_for_a_limited_time() -> None:
    unavailable = StoreUnavailable("PostgreSQL: the database system is starting up")
    back = AbsentStore(*[unavailable] * 30, None)
    await back.wait()
    assert back.tried == 31
    gone = AbsentStore(unavailable)
    with pytest.raises(StoreUnavailable, match="starting up"):
        await gone.wait()
    assert gone.clock.monotonic() >= PATIENCE


async def test_a_process_fails_at_once_if_the_store_refuses_its_settings() -> None:
    wrong = AbsentStore(Invalid("store", "PostgreSQL refused: password authentication failed"))
    with pytest.raises(Invalid, match="password"):
        await wrong.wait()
    assert wrong.tried == 1


@pytest.mark.postgres
async def test_a_process_that_starts_before_its_server_logs_once_and_starts_when_it_is_up(
    commands: Commands, postgres_database: str
) -> None:
    server = urlsplit(postgres_database)
    assert server.hostname
    assert server.port
    link = Link(server.hostname, server.port)
    link.port = free_port()
    commands.start("scheduler", MAINSPRING_STORE=postgres_database.replace(f":{server.port}/", f":{link.port}/"))
    await asyncio.to_thread(commands.wait_for_log, "store unavailable, waiting for it")
    await link.open()
    try:
        await asyncio.to_thread(commands.wait_for_log, "mainspring: scheduler on")
        assert commands.log.read_text().count("store unavailable") == 1
    finally:
        await asyncio.to_thread(commands.kill)
        await link.close()


@pytest.mark.parametrize("words", [["scheduler"], ["worker", "--autoscale", "1:2"]])
def test_a_process_that_waits_for_its_store_stops_on_sigterm(commands: Commands, words: list[str]) -> None:
    store = f"postgresql://nobody@127.0.0.1:{free_port()}/x"
    process = commands.start(*words, MAINSPRING_STORE=store, MAINSPRING_WORKER_GRACE="1h")
    commands.wait_for_log("store unavailable, waiting for it")
    assert terminate(process) == 0, commands.log.read_text()
    assert "Traceback" not in commands.log.read_text()


def test_a_schedule_that_the_store_refuses_is_one_line_and_nothing_starts(commands: Commands) -> None:
    refused = """
from mainspring import Invalid

async def declare():
    raise Invalid("schedule", "is refused for the test")

app.declare = declare
"""
    (commands.directory / "refused.py").write_text(TASKS + refused)
    process = commands.start("worker", "refused:app")
    assert wait_for_exit(process) == 2, commands.log.read_text()
    log = commands.log.read_text()
    assert "mainspring: schedule: is refused for the test" in log
    assert len(log.strip().splitlines()) == 1


def test_up_warns_of_schedules_whose_queue_no_worker_serves(commands: Commands) -> None:
    (commands.directory / "tasks.py").write_text(
        "from mainspring import Mainspring\napp = Mainspring()\n"
        "@app.every('1h')\n@app.task(queue='reports')\nasync def report() -> None: ...\n"
        "@app.every('1h')\n@app.task(queue='mail')\nasync def mail() -> None: ...\n"
    )
    commands.start("up", "tasks:app", "--queue", "mail:5", "--port", str(free_port()))
    commands.wait_for_log("  schedule mail")
    [warning] = [line for line in commands.log.read_text().splitlines() if line.startswith("  warning: ")]
    assert warning == (
        "  warning: no live worker serves queue 'reports'; start one with --queue reports (served queues: mail)"
        " (schedule report)"
    )


def test_a_schedule_whose_end_has_passed_is_shown_as_finished(commands: Commands) -> None:
    finished = """
from datetime import UTC, datetime
app.cron("0 0 * * *", name="old", end=datetime(2020, 1, 1, tzinfo=UTC))(waiting)
app.every("1h", mode="fixed_delay", name="slow")(waiting)
"""
    (commands.directory / "finished.py").write_text(TASKS + finished)
    commands.start("worker", "finished:app")
    commands.wait_for_log("mainspring: worker on")
    shown = [line for line in commands.log.read_text().splitlines() if line.startswith("  schedule ")]
    assert shown[0].startswith("  schedule old")
    assert shown[0].endswith("; finished")
    assert "finished" not in shown[1]


def test_a_store_in_the_code_takes_precedence_over_the_settings_file(commands: Commands) -> None:
    (commands.directory / "coded.py").write_text(TASKS.replace("Mainspring()", 'Mainspring("code.db")'))
    (commands.directory / "ok.toml").write_text('store = "file.db"\n')
    commands.start("worker", "coded:app", "--config", "ok.toml")
    commands.wait_for_log("mainspring: worker on code.db")


@pytest.mark.parametrize("command", ["scheduler", "api"])
def test_a_scheduler_and_an_api_use_the_settings_of_an_application(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "with_a_store.py").write_text("from mainspring import Mainspring\napp = Mainspring('theirs.db')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    seen: list[str] = []
    monkeypatch.setattr(processes, "_run", lambda settings, *_: seen.append(settings.store))
    for words in ([command, "with_a_store:app"], [command, "with_a_store:app", "--store", "mine.db"], [command]):
        result = CliRunner().invoke(application, words)
        assert result.exit_code == 0, result.output
    assert seen == ["theirs.db", "mine.db", "mainspring.db"]
