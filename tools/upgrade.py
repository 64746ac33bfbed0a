"""An older version of the program and this one on the same PostgreSQL, under load: does a rolling upgrade hold?

    python -m tools.upgrade COMMIT [--seconds 20]

The commit must have the migration 0001_store.sql: stores of the checkouts before it cannot be upgraded.
The older one is checked out beside this tree, run with the same libraries, and removed again. Its scheduler, worker and
a client start first; then this program migrates the schema, and its own three join. It says who did how much, what is
left undone, and whether the ticks of a cron are whole.
"""

import argparse
import asyncio
import itertools
import os
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import asyncpg

from tools.services import ROOT, ensure

_APPLICATION = "tests.support.load_tasks"
_CLIENT = f"""
import asyncio, sys, time
from {_APPLICATION} import app, moment
async def main():
    accepted, end = 0, time.monotonic() + float(sys.argv[1])
    async with app:
        while time.monotonic() < end:
            await asyncio.gather(*(moment.submit(1) for _ in range(5)))
            accepted += 5
            await asyncio.sleep(0.02)
    print(accepted)
asyncio.run(main())
"""
_CRON = f"""
import asyncio
from {_APPLICATION} import app
from mainspring.core.model.schedules.job import JobSpec, NewJob
from mainspring.core.model.schedules.schedule import CronSchedule
async def main():
    async with app:
        runtime = await app.runtime()
        spec = JobSpec(name="tick", task="tick", queue="ticks", schedule=CronSchedule("* * * * * *"))
        await runtime.store.put_jobs([NewJob(id=runtime.jobs.new_run_id(), spec=spec, payload=b"{{}}")])
asyncio.run(main())
"""


class Program:
    """One version of it."""

    def __init__(self, name: str, root: Path, store: str, logs: Path) -> None:
        self._name = name
        self._root = root
        self._environment = {**os.environ, "MAINSPRING_STORE": store, "PYTHONPATH": f"{root}/src:{root}"}
        self._logs = logs
        self._client = logs
        self.running: list[subprocess.Popen[bytes]] = []
        self._serving: list[tuple[str, subprocess.Popen[bytes]]] = []
        self._log_of: dict[int, Path] = {}

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        log = self._logs / f"{self._name}-{len(self.running)}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, *arguments], cwd=self._root, env=self._environment, stdout=file, stderr=file
            )
        self.running.append(process)
        self._log_of[process.pid] = log
        return process

    def serve(self) -> None:
        worker = ("worker", f"{_APPLICATION}:app")
        for role in (("scheduler",), worker):
            process = self.start("-m", "mainspring", *role, "--name", f"{self._name} {role[0]}")
            self._serving.append((role[0], process))

    def ended(self) -> list[str]:
        """What should serve and does not, with its last words."""
        return [
            f"{self._name} {role}: {self._log_of[process.pid].read_text(errors='replace')[-1000:]}"
            for role, process in self._serving
            if process.poll() is not None
        ]

    def submit(self, seconds: int) -> "subprocess.Popen[bytes]":
        self._client = self._logs / f"{self._name}-{len(self.running)}.log"
        return self.start("-c", _CLIENT, str(seconds))

    def submitted(self) -> int:
        """What its client says last."""
        return int(self._client.read_text().split()[-1])

    def stop(self) -> None:
        for process in self.running:
            if process.poll() is None:
                process.terminate()
        for process in self.running:
            process.wait()


async def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.upgrade", description=__doc__.partition("\n")[0])
    parser.add_argument("commit")
    parser.add_argument("--seconds", type=int, default=20)
    arguments = parser.parse_args()
    server = await asyncio.to_thread(ensure, "postgres")
    name = f"upgrade_{uuid.uuid4().hex}"
    connection = await asyncpg.connect(server)
    await connection.execute(f"CREATE DATABASE {name}")
    with tempfile.TemporaryDirectory() as folder:
        old_tree, logs = Path(folder) / "old", Path(folder) / "logs"
        logs.mkdir()
        await asyncio.to_thread(_git, "worktree", "add", "-q", "--detach", str(old_tree), arguments.commit)
        store = f"{server.rpartition('/')[0]}/{name}"
        old, new = Program("old", old_tree, store, logs), Program("new", ROOT, store, logs)
        try:
            ok = await asyncio.to_thread(_go_through, old, new, arguments.seconds)
            ok = await _report(store, old.submitted() + new.submitted()) and ok
        finally:
            old.stop()
            new.stop()
            await asyncio.to_thread(_git, "worktree", "remove", "--force", str(old_tree))
            await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
            await connection.close()
    return 0 if ok else 1


def _git(*arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=ROOT, check=True)


def _go_through(old: Program, new: Program, seconds: int) -> bool:
    old.start("-c", _CRON).wait()
    old.serve()
    first = old.submit(3 * seconds)
    time.sleep(seconds / 2)
    # What it says is seen, also when it fails.
    subprocess.run([sys.executable, "-m", "mainspring", "migrate"], env=new._environment, cwd=ROOT, check=True)
    new.serve()
    second = new.submit(seconds)
    clients = [first.wait(), second.wait()]
    ended = [*old.ended(), *new.ended()]
    print("\n".join([f"clients ended with {clients}; of what served {len(ended)} have ended", *ended]))
    return clients == [0, 0] and not ended


async def _report(store: str, submitted: int) -> bool:
    connection = await asyncpg.connect(store, server_settings={"search_path": "mainspring"})
    try:
        for _ in range(300):
            if not await connection.fetchval("SELECT count(*) FROM run WHERE state IN (3, 4)"):
                break
            await asyncio.sleep(0.1)
        rows = await connection.fetch(
            "SELECT s.name, count(*) AS runs FROM history h JOIN session s ON s.id = h.session "
            "WHERE h.state = 5 GROUP BY 1"
        )
        ended = await connection.fetchval("SELECT count(*) FROM history WHERE state <> 5")
        ticks = [row[0] for row in await connection.fetch("SELECT scheduled_at FROM ledger ORDER BY 1")]
    finally:
        await connection.close()
    gaps = sum(later - earlier != 1_000_000 for earlier, later in itertools.pairwise(ticks))
    print(f"accepted {submitted:,}; succeeded by " + ", ".join(f"{row['name']} {row['runs']:,}" for row in rows))
    print(f"ended otherwise: {ended}; ticks {len(ticks)}, missing or doubled: {gaps}")
    # Each of them has had a part in it.
    return not ended and not gaps and len(rows) == 2 and sum(row["runs"] for row in rows) >= submitted


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
