"""What a worker's log shows of runs, on a terminal and in JSON."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_line import terminate
from tests.support.processes import free_port
from tests.support.waiting import wait_until

TASKS = """
import asyncio, logging, sys
from mainspring import Context, Mainspring

app = Mainspring()

@app.task
async def greet(context: Context, name: str) -> str:
    print("hello", name)
    context.log.info("greeted %s", name)
    return f"hello {name}"

@app.task(retries=1)
async def divide(by: int) -> float:
    return 1 / by

@app.task(retries=0)
def crunch() -> None:
    print("crunching", end="")
    raise RuntimeError("no numbers")

async def submit() -> None:
    async with app:
        for run in [await greet.submit("you"), await divide.submit(0), await crunch.submit()]:
            await run.wait(100)

if __name__ == "__main__":
    asyncio.run(submit())
"""


class Worker:
    def __init__(self, directory: Path, **environment: str) -> None:
        (directory / "tasks.py").write_text(TASKS)
        self._directory = directory
        self._log = directory / "log"
        self._environment = {**os.environ, **environment}
        self.process: subprocess.Popen[bytes] | None = None

    def run(self, *options: str) -> list[str]:
        """Run the three tasks and return the lines of the log."""
        arguments = [sys.executable, "-m", "mainspring", "up", "tasks:app", "--port", str(free_port()), *options]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                arguments, cwd=self._directory, env=self._environment, stdout=log, stderr=log
            )
        subprocess.run([sys.executable, "tasks.py"], cwd=self._directory, env=self._environment, check=True)
        wait_until(lambda: self._log.read_text().count("no attempt is left") >= 2, self._log.read_text)
        assert terminate(self.process) == 0
        return self._log.read_text().splitlines()


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    worker = Worker(tmp_path)
    yield worker
    if worker.process is not None:
        worker.process.kill()
        worker.process.wait()


def find(lines: list[str], *words: str) -> str:
    """Return the only line with all of these words."""
    [found] = [line for line in lines if all(word in line for word in words)]
    return found


def test_a_text_log_has_the_banner_first_and_a_line_for_each_attempt(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker._environment["MAINSPRING_LOG_FORMAT"] = "text"
    lines = worker.run()
    assert lines[0] == "mainspring: http, scheduler, worker on mainspring.db"
    assert "3 tasks and 4 built-in tasks" in lines[1]
    assert "attempt=1/4" in find(lines, "run succeeded", "task=greet", "took=", "result='hello you'")
    assert "hello you" in lines
    first = lines.index(find(lines, "[warning", "run failed", "task=divide", "attempt=1/2", "next_attempt_in="))
    assert lines[first + 1] == "Traceback (most recent call last):"
    assert "in divide" in lines[first + 2]
    assert find(lines, "[error", "run failed; no attempt is left", "task=divide", "attempt=2/2")
    assert find(lines, "[error", "run failed; no attempt is left", "task=crunch", "RuntimeError: no numbers")


def test_a_log_in_json_has_failures_only(worker: Worker) -> None:
    entries = [json.loads(line) for line in worker.run() if line.startswith("{")]
    assert not [entry for entry in entries if entry["message"] == "run succeeded"]
    [last] = [
        entry
        for entry in entries
        if entry.get("mainspring.task") == "divide" and entry["message"] == "run failed; no attempt is left"
    ]
    assert last["mainspring.attempt"] == 2
    assert last["error.message"] == "ZeroDivisionError: division by zero"
    assert "in divide" in last["error.stack_trace"]


def test_show_output_logs_printed_lines_with_their_run(worker: Worker) -> None:
    lines = worker.run("--show-output")
    entries = [json.loads(line) for line in lines if line.startswith("{")]
    printed = {
        entry["message"]: entry["mainspring.task"]
        for entry in entries
        if entry["message"] in ("hello you", "crunching")
    }
    assert printed == {"hello you": "greet", "crunching": "crunch"}
    assert "hello you" not in lines
