"""How processes start, and how they end whatever handlers do."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import pytest

from mainspring import Mainspring
from mainspring.bootstrap.engine import Engine
from mainspring.cli.processes import PATIENCE, opened
from mainspring.domain.errors import Invalid, StoreUnavailable
from mainspring.domain.instant import SECOND
from mainspring.domain.job import JobState
from mainspring.domain.run import RunState, RunView
from mainspring.settings import load
from tests.support.clock import ManualClock
from tests.support.processes import free_port
from tools.chaos.link import Link

TASKS = """
import asyncio, time
from mainspring import Mainspring

app = Mainspring()

@app.task
async def in_a_thread() -> None:
    print("started", flush=True)
    await asyncio.to_thread(time.sleep, 60)

@app.task
async def in_all_threads() -> None:
    print("started", flush=True)
    await asyncio.gather(*[asyncio.to_thread(time.sleep, 60) for _ in range(40)])

@app.task
async def stubborn() -> None:
    print("started", flush=True)
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass

@app.task
async def blocking() -> None:
    print("started", flush=True)
    time.sleep(60)

@app.task
async def three_seconds() -> None:
    print("started", flush=True)
    await asyncio.sleep(3)
    print("done", flush=True)
"""


class Commands:
    """Starts commands in a directory with a store, and reads what they write."""

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
            engine = Engine(load({"store": str(self.directory / "mainspring.db")}))
            await engine.open()
            (found,) = await engine.store.runs([run.id])
            await engine.close()
            assert found is not None
            return found

        return asyncio.run(view())

    def until(self, text: str, seconds: float = 20) -> None:
        deadline = time.monotonic() + seconds
        while text not in self.log.read_text():
            assert time.monotonic() < deadline, f"no {text!r} in\n{self.log.read_text()}"
            time.sleep(0.05)

    def end(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    (tmp_path / "tasks.py").write_text(TASKS)
    commands = Commands(tmp_path)
    yield commands
    commands.end()


# Leaving


@pytest.mark.parametrize(
    ("task", "status"), [("in_a_thread", 0), ("in_all_threads", 0), ("stubborn", 0), ("blocking", 1)]
)
def test_whatever_a_handler_does_the_process_is_gone_soon_after_its_grace(
    commands: Commands, task: str, status: int
) -> None:
    commands.submit(task)
    process = commands.start("worker", "tasks:app", MAINSPRING_WORKER_GRACE="1s")
    commands.until("started")
    # Python hears a signal that comes in the very moment a call begins to block only when that has ended.
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    asked = time.monotonic()
    assert process.wait(10) == status, commands.log.read_text()
    assert 1 <= time.monotonic() - asked < 6.5
    assert "Traceback" not in commands.log.read_text()


@pytest.mark.parametrize("task", ["in_a_thread", "blocking"])
def test_whatever_a_handler_does_the_process_is_gone_soon_after_a_second_signal(commands: Commands, task: str) -> None:
    commands.submit(task)
    process = commands.start("worker", "tasks:app", MAINSPRING_WORKER_GRACE="60s")
    commands.until("started")
    # Python hears a signal that comes in the very moment a call begins to block only when that has ended.
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert process.poll() is None, "it lets what runs go on"
    process.send_signal(signal.SIGTERM)
    process.wait(5.5)


def test_recycling_lets_a_run_take_longer_than_the_grace(commands: Commands) -> None:
    run = commands.submit("three_seconds")
    process = commands.start(
        "worker", "tasks:app", MAINSPRING_WORKER_GRACE="500ms", MAINSPRING_WORKER_RECYCLE_AFTER_RUNS="1"
    )
    commands.until("done")
    deadline = time.monotonic() + 10
    # The same process with a new worker in it.
    while commands.log.read_text().count("session opened") < 2:
        assert time.monotonic() < deadline, commands.log.read_text()
        time.sleep(0.05)
    view = commands.view(run)
    assert (view.state, view.attempt) == (RunState.SUCCEEDED, 1)
    assert commands.log.read_text().count("started\n") == 1
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0


def test_a_signal_hurries_a_worker_that_recycles(commands: Commands) -> None:
    commands.submit("stubborn")
    process = commands.start(
        "worker", "tasks:app", MAINSPRING_WORKER_GRACE="500ms", MAINSPRING_WORKER_RECYCLE_AFTER_RUNS="1"
    )
    commands.until("started")
    commands.until("worker recycles")
    process.send_signal(signal.SIGTERM)
    assert process.wait(8) == 0


# Schedules


def test_a_schedule_that_the_code_names_no_more_can_be_cancelled(commands: Commands) -> None:
    (commands.directory / "renamed.py").write_text(TASKS + 'app.cron("* * * * * *", name="old")(three_seconds)\n')
    process = commands.start("worker", "renamed:app")
    commands.until("mainspring: worker on")
    process.send_signal(signal.SIGTERM)
    process.wait(10)
    assert commands.start("jobs", "cancel", "old").wait(10) == 0
    assert "job old is cancelled\n" in commands.log.read_text()

    async def state() -> JobState:
        engine = Engine(load({"store": str(commands.directory / "mainspring.db")}))
        await engine.open()
        job = await engine.store.job_named("default", "old")
        assert job is not None
        (found,) = await engine.store.jobs([job])
        await engine.close()
        assert found is not None
        return found.state

    assert asyncio.run(state()) is JobState.CANCELLED
    assert commands.start("jobs", "cancel", "older").wait(10) == 4
    assert "mainspring: there is no job 'older'\n" in commands.log.read_text()


# Starting


def test_a_start_that_cannot_finish_can_be_ended(commands: Commands) -> None:
    hanging = """
import asyncio
from mainspring.api.server import HttpServer

async def hang(self):
    print("hanging", flush=True)
    await asyncio.Event().wait()

HttpServer.start = hang
"""
    (commands.directory / "hanging.py").write_text(hanging + TASKS)
    process = commands.start("up", "hanging:app")
    commands.until("hanging")
    process.send_signal(signal.SIGTERM)
    assert process.wait(6) == 0, commands.log.read_text()
    assert "worker left" in commands.log.read_text()
    assert "Traceback" not in commands.log.read_text()


class Absent:
    """What is started on a store that is not there for so many times."""

    def __init__(self, *outcomes: Exception | None) -> None:
        self.clock = ManualClock()
        self.tried = 0
        self._outcomes = outcomes

    async def open(self) -> None:
        outcome = self._outcomes[min(self.tried, len(self._outcomes) - 1)]
        self.tried += 1
        if outcome is not None:
            raise outcome

    async def waited_for(self) -> None:
        waiting = asyncio.create_task(opened(cast("Engine", self)))
        while not waiting.done():
            await asyncio.sleep(0)
            self.clock.advance(SECOND)
        await waiting


async def test_a_store_that_is_away_at_the_start_is_waited_for_but_not_for_ever() -> None:
    away = StoreUnavailable("PostgreSQL: the database system is starting up")
    back = Absent(*[away] * 30, None)
    await back.waited_for()
    assert back.tried == 31
    gone = Absent(away)
    with pytest.raises(StoreUnavailable, match="starting up"):
        await gone.waited_for()
    assert gone.clock.monotonic() >= PATIENCE


async def test_a_wrong_setting_is_not_waited_for() -> None:
    wrong = Absent(Invalid("store", "PostgreSQL refused: password authentication failed"))
    with pytest.raises(Invalid, match="password"):
        await wrong.waited_for()
    assert wrong.tried == 1


@pytest.mark.postgres
async def test_a_process_that_starts_before_its_server_says_so_once_and_works_when_it_is_there(
    commands: Commands, postgres_database: str
) -> None:
    server = urlsplit(postgres_database)
    assert server.hostname
    assert server.port
    link = Link(server.hostname, server.port)
    link.port = free_port()
    commands.start("scheduler", MAINSPRING_STORE=postgres_database.replace(f":{server.port}/", f":{link.port}/"))
    await asyncio.to_thread(commands.until, "the store is away: waiting for it")
    await link.open()
    try:
        await asyncio.to_thread(commands.until, "mainspring: scheduler on")
        assert commands.log.read_text().count("is away") == 1
    finally:
        await asyncio.to_thread(commands.end)
        await link.close()


@pytest.mark.parametrize("words", [["scheduler"], ["worker", "--autoscale", "1:2"]])
def test_whoever_waits_for_a_store_can_be_ended(commands: Commands, words: list[str]) -> None:
    process = commands.start(*words, MAINSPRING_STORE=f"postgresql://nobody@127.0.0.1:{free_port()}/x")
    commands.until("the store is away: waiting for it")
    process.send_signal(signal.SIGTERM)
    assert process.wait(6) == 0, commands.log.read_text()
    assert "Traceback" not in commands.log.read_text()


def test_a_schedule_that_the_store_refuses_is_one_line_and_nothing_has_begun(commands: Commands) -> None:
    refused = """
from mainspring import Invalid

async def declare():
    raise Invalid("schedule", "is refused for the test")

app.declare = declare
"""
    (commands.directory / "refused.py").write_text(TASKS + refused)
    process = commands.start("worker", "refused:app")
    assert process.wait(10) == 2, commands.log.read_text()
    log = commands.log.read_text()
    assert "mainspring: schedule: is refused for the test" in log
    assert len(log.strip().splitlines()) == 1


def test_a_schedule_whose_end_is_past_is_shown_as_finished(commands: Commands) -> None:
    finished = """
from datetime import UTC, datetime
app.cron("0 0 * * *", name="old", end=datetime(2020, 1, 1, tzinfo=UTC))(three_seconds)
app.every("1h", mode="fixed_delay", name="slow")(three_seconds)
"""
    (commands.directory / "finished.py").write_text(TASKS + finished)
    commands.start("worker", "finished:app")
    commands.until("mainspring: worker on")
    shown = [line for line in commands.log.read_text().splitlines() if line.startswith("  schedule ")]
    assert shown[0].startswith("  schedule old")
    assert shown[0].endswith(": finished")
    assert "finished" not in shown[1]


def test_the_store_named_in_code_goes_before_the_one_of_a_chosen_file(commands: Commands) -> None:
    (commands.directory / "coded.py").write_text(TASKS.replace("Mainspring()", 'Mainspring("code.db")'))
    (commands.directory / "ok.toml").write_text('store = "file.db"\n')
    commands.start("worker", "coded:app", "--config", "ok.toml")
    commands.until("mainspring: worker on code.db")
