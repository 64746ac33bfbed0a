"""The command line as a user sees it, each command in its own process."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Refuse
from tests.support.command_line import run_command, terminate, wait_for_exit, wait_for_http
from tests.support.processes import free_port
from tests.support.waiting import wait_until

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


#: Appended to tasks: never end the process by force. A busy machine may need long to stop in order.
UNHURRIED = """
from mainspring.core.runtime import signals
signals._LEAVING = 3_600_000_000
"""


def test_help_lists_the_commands(tmp_path: Path) -> None:
    found = run_command(tmp_path, "--help")
    assert found.returncode == 0
    for command in ("up", "scheduler", "worker", "migrate", "bench"):
        assert command in found.stdout


def test_version_prints_the_commit_and_the_schema_versions(tmp_path: Path) -> None:
    shown = run_command(tmp_path, "--version").stdout
    assert re.fullmatch(
        r"mainspring 0\.\S+\ncommit ([0-9a-f]{40}\+? of \S+|unknown)\nPython 3.+\n"
        r"time zones: \d{4}[a-z] \((package|system)\)\nschema: PostgreSQL \d+, SQLite \d+\n",
        shown,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["worker", "tasks"], "'tasks' is not of the form module:app"),
        (["worker", "nowhere:app"], "there is no module 'nowhere' here"),
        (["worker", "tasks:application"], "tasks has no Mainspring called 'application'"),
        (["worker", "tasks:app", "--queue", "mail:x"], "--queue: mail:x is not a queue"),
        (["up", "--port", "99999"], "port: 99999 is out of range"),
        (["up", "--host", "0.0.0.0"], "host: 0.0.0.0 is reachable from other machines"),
        (["worker", "--config", "off.toml"], "there is nothing to run"),
        (["worker", "--config", "absent-folder.toml"], "tasks.scripts: nowhere is not a folder"),
        (["migrate", "--store", "mysql://x"], "mysql:// is not a store"),
        (["scheduler", "--config", "absent.toml"], "absent.toml: cannot be read"),
    ],
)
def test_an_error_is_one_line_and_exit_code_2(
    tmp_path: Path, refuse: Refuse, arguments: list[str], message: str
) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    (tmp_path / "off.toml").write_text("[tasks]\nhttp = false\n")
    (tmp_path / "absent-folder.toml").write_text('[tasks]\nscripts = "nowhere"\n')
    assert message in refuse(*arguments)


def test_an_unreachable_store_is_exit_code_6(tmp_path: Path) -> None:
    found = run_command(tmp_path, "migrate", "--store", "postgresql://nobody@127.0.0.1:1/x")
    assert found.returncode == 6
    assert "PostgreSQL" in found.stderr
    assert len(found.stderr.strip().splitlines()) == 1


def test_migrate_creates_a_store(tmp_path: Path) -> None:
    found = run_command(tmp_path, "migrate", MAINSPRING_STORE=str(tmp_path / "made.db"))
    assert found.returncode == 0, found.stderr
    assert "up to date" in found.stdout
    assert (tmp_path / "made.db").exists()


def test_up_runs_everything_serves_healthz_and_stops_on_sigterm(tmp_path: Path) -> None:
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
        health = wait_until(lambda: _read_health(process, port))
        assert health is not None
        assert health["status"] == "ok"
        assert health["shards"] == 100
        assert process.stdout is not None
        assert process.stdout.readline() == "tick\n"
        assert terminate(process) == 0
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
        "  print((await run.wait(100)).result)\n"
        "asyncio.run(main())"
    )
    try:
        assert wait_for_http(f"http://127.0.0.1:{port}", process)["roles"] == ["http", "scheduler", "worker"]
        found = subprocess.run(
            [sys.executable, "-c", submit], cwd=tmp_path, check=False, capture_output=True, text=True
        )
        assert "hello you" in found.stdout, found.stderr
        assert terminate(process) == 0
        assert process.stderr is not None
        assert " built-in tasks; queues default:100" in process.stderr.read()
    finally:
        process.kill()
        process.communicate()


def test_a_worker_releases_its_runs_at_once_on_a_second_sigterm(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(TASKS + UNHURRIED)
    submit = "import asyncio, tasks; asyncio.run(tasks.slow.submit(3600.0))"
    process = subprocess.Popen(
        [sys.executable, "-m", "mainspring", "worker", "tasks:app"],
        cwd=tmp_path,
        env={**os.environ, "MAINSPRING_WORKER_GRACE": "1h"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        subprocess.run([sys.executable, "-c", submit], cwd=tmp_path, check=True)
        assert process.stdout is not None
        assert process.stderr is not None
        while process.stdout.readline() != "started\n":
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        while "worker leaving" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert wait_for_exit(process) == 0
    finally:
        process.kill()
        process.communicate()
    show = (
        "import asyncio\nfrom mainspring.config.runtime import Runtime\nfrom mainspring.config.loading import load\n"
        "async def main():\n e = Runtime(load()); await e.open(); print(await e.store.depths()); await e.close()\n"
        "asyncio.run(main())"
    )
    found = subprocess.run([sys.executable, "-c", show], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert "queued=1, running=0" in found.stdout


def test_a_port_in_use_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        found = run_command(tmp_path, "up", "--port", str(taken.getsockname()[1]))
    assert found.returncode == 2
    assert "cannot be used" in found.stderr
    assert "MAINSPRING_PORT" in found.stderr, "make run has no options"
    assert "Traceback" not in found.stderr


def _read_health(process: "subprocess.Popen[str]", port: int) -> dict[str, Any] | None:
    """Return the answer of ``/healthz`` if the scheduler has its shards."""
    health = wait_for_http(f"http://127.0.0.1:{port}", process)
    return health if health["shards"] else None
