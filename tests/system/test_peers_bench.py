"""Every peer of the benchmark runs its jobs. Peers whose tools are missing are skipped by name."""

import json
import subprocess
import sys

import pytest

from bench.peers.__main__ import PEERS
from tests.support.servers import not_here
from tools.services.service import ServiceUnavailable


@pytest.mark.postgres
@pytest.mark.slow
@pytest.mark.xdist_group("peers")
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("name", PEERS)
def test_every_job_of_a_peer_runs_once_in_every_measurement(name: str) -> None:
    try:
        PEERS[name].install()
    except ServiceUnavailable as error:
        not_here(f"{name}: {error}")
    done = subprocess.run(
        [sys.executable, "-m", "bench.peers", "--quick", "--scale", "0.05", "--peers", name, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    result = json.loads(done.stdout)
    if name in result["skipped"]:
        pytest.skip(f"{name}: {result['skipped'][name]}")
    assert result["failed"] == {}
    [figures] = result["rounds"][name]
    assert {"full_cycle_jobs_per_s", "drain_jobs_per_s", "submit_batch_jobs_per_s", "herd_lateness_p99_ms"} <= {
        *figures
    }
    assert result["representative"] is False
