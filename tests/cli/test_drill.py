"""``mainspring drill`` on real schedulers of this machine, as docs/operations/drill.md has it."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs/operations/drill.md"
COMMANDS = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
PROGRAM = [sys.executable, "-m", "mainspring"]

pytestmark = [pytest.mark.timeout(300), pytest.mark.system, pytest.mark.xdist_group("system")]


class Cluster:
    """Two schedulers on one file, and a recurring job."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("MAINSPRING_")},
            "MAINSPRING_STORE": str(folder / "jobs.db"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "COLUMNS": "160",
        }
        self.run("mainspring migrate")
        made = self.run("mainspring jobs submit nothing --name ticker --cron '* * * * * *'")
        assert made.returncode == 0, made
        self.schedulers = [self._start(number) for number in range(2)]

    def wait(self) -> None:
        """Until both have a share."""
        deadline = time.monotonic() + 150
        while not all('"message":"shards"' in path.read_text() for path in self.folder.glob("*.log")):
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.2)

    def _start(self, number: int) -> "subprocess.Popen[bytes]":
        with (self.folder / f"{number}.log").open("wb") as log:
            return subprocess.Popen([*PROGRAM, "scheduler"], env=self.environment, stdout=log, stderr=log)

    def run(self, command: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["/bin/sh", "-ec", command],
            env=self.environment | environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in self.folder.glob("*.log"))

    def stop(self) -> None:
        for process in self.schedulers:
            process.kill()
            process.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    try:
        cluster.wait()
        yield cluster
    finally:
        cluster.stop()


def test_a_drill_passes_and_one_with_a_kill_too(cluster: Cluster) -> None:
    lease, kill = COMMANDS
    done = cluster.run(lease)
    assert done.returncode == 0, (done, cluster.logs())
    words = [line.split("  ")[0] for line in done.stdout.splitlines()]
    assert words == ["drill", "scheduler", "without an owner", "ticks", "late", "missed", "doubled"]
    assert all(process.poll() is None for process in cluster.schedulers)

    refused = cluster.run(kill, MAINSPRING_PRODUCTION="true")
    assert refused.returncode != 0
    assert "production" in refused.stderr
    assert all(process.poll() is None for process in cluster.schedulers)

    done = cluster.run(kill)
    assert done.returncode == 0, (done, cluster.logs())
    report = json.loads(done.stdout)
    assert sorted(str(process.poll()) for process in cluster.schedulers) == ["-9", "None"]
    assert report["passed"]
    assert (report["missed"], report["doubled"]) == (0, 0)
    assert report["secondsWithoutOwner"] >= 1.4
    assert report["ticks"] > 0


@pytest.mark.parametrize(
    ("words", "why"), [("--kill", "no scheduler on this machine"), ("nobody --kill", "no scheduler 'nobody'")]
)
def test_nothing_is_killed_by_mistake(tmp_path: Path, words: str, why: str) -> None:
    environment = {**os.environ, "MAINSPRING_STORE": str(tmp_path / "jobs.db")}
    subprocess.run([*PROGRAM, "migrate"], env=environment, check=True, capture_output=True)
    done = subprocess.run(
        [*PROGRAM, "drill", *words.split()], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert why in done.stderr
