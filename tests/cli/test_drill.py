"""``mainspring drill`` on real schedulers of this machine, with the commands of docs/operate/drills.md."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.waiting import wait_until

PAGE = Path(__file__).parents[2] / "docs/operate/drills.md"
COMMANDS = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
PROGRAM = [sys.executable, "-m", "mainspring"]

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("system")]


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
        """Wait until both schedulers own shards."""
        wait_until(
            lambda: all('"message":"shards"' in path.read_text() for path in self.folder.glob("*.log")), self.logs
        )

    def _start(self, number: int) -> "subprocess.Popen[bytes]":
        with (self.folder / f"{number}.log").open("wb") as log:
            return subprocess.Popen(
                [*PROGRAM, "scheduler", "--log-level", "debug"], env=self.environment, stdout=log, stderr=log
            )

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


def test_a_drill_passes_with_a_revoked_lease_and_with_a_killed_process(cluster: Cluster) -> None:
    # Watch as long as the command allows: a busy machine may need more than the seconds of the page.
    lease, kill = (re.sub(r"--watch \w+", "--watch 25s", command) for command in COMMANDS)
    done = cluster.run(lease)
    assert done.returncode == 0, (done, cluster.logs())
    words = [line.split("  ")[0] for line in done.stdout.splitlines()]
    assert words == ["drill", "scheduler", "taken over by", "without an owner", "ticks", "late", "missed", "doubled"]
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
    assert report["secondsWithoutOwner"] > 0
    assert report["ticks"] > 0


@pytest.mark.parametrize(
    ("words", "why"), [("--kill", "no scheduler on this machine"), ("unknown --kill", "no scheduler 'unknown'")]
)
def test_a_drill_kills_nothing_if_the_scheduler_is_unknown(tmp_path: Path, words: str, why: str) -> None:
    environment = {**os.environ, "MAINSPRING_STORE": str(tmp_path / "jobs.db")}
    subprocess.run([*PROGRAM, "migrate"], env=environment, check=True, capture_output=True)
    done = subprocess.run(
        [*PROGRAM, "drill", *words.split()], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert why in done.stderr
