"""The command line as a user meets it."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

TASKS = """
import asyncio
from mainspring import Mainspring

app = Mainspring()

@app.task
async def slow(seconds: float) -> None:
    print("started", flush=True)
    await asyncio.sleep(seconds)

@app.cron("* * * * * *")
async def tick() -> None:
    print("tick", flush=True)
"""


def run(directory: Path, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "mainspring", *arguments],
        cwd=directory,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_help_lists_the_commands(tmp_path: Path) -> None:
    found = run(tmp_path, "--help")
    assert found.returncode == 0
    for command in ("up", "scheduler", "worker", "migrate", "bench"):
        assert command in found.stdout


def test_the_version_is_told(tmp_path: Path) -> None:
    told = run(tmp_path, "--version").stdout
    assert re.fullmatch(
        r"mainspring 0\.\S+\ncommit ([0-9a-f]{40}\+? of \S+|unknown)\nPython 3.+\nschema: PostgreSQL \d+, SQLite \d+\n",
        told,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["worker", "tasks"], "'tasks' is not of the form module:app"),
        (["worker", "nowhere:app"], "there is no module 'nowhere' here"),
        (["worker", "tasks:application"], "tasks has no Mainspring called 'application'"),
        (["worker", "tasks:app", "--queue", "mail:x"], "--queue: mail:x is not a queue"),
        (["up", "--port", "99999"], "port: 99999 is out of range"),
        (["up", "--host", "0.0.0.0"], "host: 0.0.0.0 can be reached from outside"),
        (["worker", "--config", "off.toml"], "there is nothing to run"),
        (["worker", "--config", "absent-folder.toml"], "tasks.scripts: nowhere is not a folder"),
        (["migrate", "--store", "mysql://x"], "mysql:// is not a store"),
        (["scheduler", "--config", "absent.toml"], "absent.toml: cannot be read"),
    ],
)
def test_an_error_is_one_line_and_exit_code_2(tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    (tmp_path / "off.toml").write_text("[tasks]\nhttp = false\n")
    (tmp_path / "absent-folder.toml").write_text('[tasks]\nscripts = "nowhere"\n')
    found = run(tmp_path, *arguments)
    assert found.returncode == 2
    assert message in found.stderr
    assert len(found.stderr.strip().splitlines()) == 1
    assert "Traceback" not in found.stderr


def test_a_store_that_is_away_has_an_exit_code_of_its_own(tmp_path: Path) -> None:
    found = run(tmp_path, "migrate", "--store", "postgresql://nobody@127.0.0.1:1/x")
    assert found.returncode == 6
    assert "PostgreSQL" in found.stderr
    assert len(found.stderr.strip().splitlines()) == 1


def test_migrate_makes_a_store(tmp_path: Path) -> None:
    found = run(tmp_path, "migrate", MAINSPRING_STORE=str(tmp_path / "made.db"))
    assert found.returncode == 0, found.stderr
    assert "up to date" in found.stdout
    assert (tmp_path / "made.db").exists()


def test_up_runs_everything_answers_healthz_and_leaves_on_sigterm(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "mainspring", "up", "tasks:app", "--port", str(port)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        health = _until_healthy(port)
        assert health["status"] == "ok"
        assert health["shards"] == 100
        assert process.stdout is not None
        assert process.stdout.readline() == "tick\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert process.stderr is not None
        log = process.stderr.read()
        assert "Traceback" not in log
        assert f"http://127.0.0.1:{port}/docs" in log
    finally:
        process.kill()
        process.communicate()


def test_up_without_an_application_serves_the_built_in_tasks(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "hello.sh").write_text("echo hello $1")
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "mainspring", "up", "--port", str(port)],
        cwd=tmp_path,
        env={**os.environ, "MAINSPRING_TASKS_SCRIPTS": "scripts"},
        stderr=subprocess.PIPE,
        text=True,
    )
    submit = (
        "import asyncio\nfrom mainspring import Mainspring\n"
        "async def main():\n async with Mainspring() as app:\n"
        '  run = await app.named("shell").submit(script="hello.sh", params=["you"])\n'
        "  print((await run.wait(20)).result)\n"
        "asyncio.run(main())"
    )
    try:
        assert _until_healthy(port)["roles"] == ["http", "scheduler", "worker"]
        found = subprocess.run(
            [sys.executable, "-c", submit], cwd=tmp_path, check=False, timeout=30, capture_output=True, text=True
        )
        assert "hello you" in found.stdout, found.stderr
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert process.stderr is not None
        assert " tasks, queues default:100" in process.stderr.read()
    finally:
        process.kill()
        process.communicate()


def test_a_second_sigterm_gives_back_what_runs_at_once(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    submit = "import asyncio, tasks; asyncio.run(tasks.slow.submit(60.0))"
    process = subprocess.Popen(
        [sys.executable, "-m", "mainspring", "worker", "tasks:app"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    try:
        subprocess.run([sys.executable, "-c", submit], cwd=tmp_path, check=True, timeout=30)
        assert process.stdout is not None
        while process.stdout.readline() != "started\n":
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert process.poll() is None, "it lets what runs go on"
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.communicate()
    show = (
        "import asyncio\nfrom mainspring.bootstrap.engine import Engine\nfrom mainspring.settings import load\n"
        "async def main():\n e = Engine(load()); await e.open(); print(await e.store.depths()); await e.close()\n"
        "asyncio.run(main())"
    )
    found = subprocess.run([sys.executable, "-c", show], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert "queued=1, running=0" in found.stdout


def test_a_taken_port_is_said_in_words(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        found = run(tmp_path, "up", "--port", str(taken.getsockname()[1]))
    assert found.returncode == 2
    assert "cannot be used" in found.stderr
    assert "Traceback" not in found.stderr


def _until_healthy(port: int) -> dict[str, object]:
    deadline = time.monotonic() + 30
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=2) as answer:
                found: dict[str, object] = json.loads(answer.read())
                if found["shards"]:
                    return found
        except OSError:
            pass
        assert time.monotonic() < deadline, "it did not come up"
        time.sleep(0.1)
