"""Simulated worlds by seed: schedulers and workers run the production code, while faults of all kinds happen."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.simulation.invariants import violations
from tests.support.simulation.scenario import scenario_of
from tests.support.simulation.world import simulate

# A test needs some seconds of processor time, for which a busy machine may take minutes.
pytestmark = [pytest.mark.simulation, pytest.mark.timeout(400)]

REPOSITORY = Path(__file__).resolve().parents[2]


#: Seeds that failed once, and why.
FAILED_BEFORE = [
    pytest.param(700_050, id="a run that a calendar moved was retried before its tick was judged"),
    pytest.param(1_800_000_379, id="a new pause ended before a tick of the pause that it replaced"),
    pytest.param(1_800_001_308, id="a pause was replaced by one that had ended already"),
    pytest.param(1_800_000_721, id="a lease outlived the recovery while the clock of the store stood still"),
    pytest.param(1_800_000_976, id="a debounce gave a scheduled run a due time in the past"),
    pytest.param(1_800_003_258, id="ticks that a calendar moved were late, but the tick before them was not"),
    pytest.param(1_800_003_595, id="a tick was on time between two late ones"),
    pytest.param(1_830_000_219, id="ticks without any data center were skipped for overlap with each other"),
    pytest.param(1_800_001_139, id="one debounce of a batch delayed a queued run and the next one made it due"),
    pytest.param(1_800_006_037, id="a fire promoted a run whose own job fired later in the same batch"),
    pytest.param(1_800_007_508, id="a fire cancelled a queued run and promoted one of a job of the same batch"),
    pytest.param(1_800_007_655, id="a data center came back while the clock of the store stood still"),
    pytest.param(1_800_006_568, id="caught-up ticks were retried before their objective was judged"),
    pytest.param(1_830_000_168, id="an objective counted from the time of a catch-up, and from the tick after a retry"),
    pytest.param(1_900_000_073, id="a due tick waited for the tick in the last second before a closed period"),
    pytest.param(1_900_000_499, id="a tick that one data center had early came again when the job got another one"),
    pytest.param(701_557, id="one debounce of a batch took a free ordering key and the next one freed it"),
    pytest.param(
        700_398, id="a tick that a calendar had moved before its time came again and took the room of another one"
    ),
]


def test_invariants_hold_for_seeds(seeds: range) -> None:
    for seed in seeds:
        check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", FAILED_BEFORE)
def test_invariants_hold_for_a_seed_that_failed_before(seed: int) -> None:
    check(seed)


def check(seed: int) -> None:
    replay = f"seed {seed}: replay it by `python -m tests.support.simulation {seed} --trace`"
    try:
        found = violations(simulate(scenario_of(seed)))
    except BaseException as error:
        error.add_note(replay)
        raise
    assert not found, "\n".join([replay, *found])


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_seed_gives_the_same_trace_again(seed: int) -> None:
    assert simulate(scenario_of(seed)).fingerprint() == simulate(scenario_of(seed)).fingerprint()


@pytest.mark.slow
def test_a_seed_gives_the_same_trace_in_a_process_with_another_hash_seed() -> None:
    def fingerprints(hash_seed: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.simulation", "--fingerprint", "3", "4", "5", "6"],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    assert fingerprints("1") == fingerprints("2") != ""
