"""The number of seeds: 200, or set by ``--seeds N`` (with ``pytest tests/simulation``) or MAINSPRING_SEEDS."""

import os

import pytest

SEEDS = 200
#: The seeds that ``make test`` runs.
QUICK = 5
#: Seeds per test, so that the processes of a parallel run share them evenly.
CHUNK = 5


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seeds", type=int, default=None, help=f"how many seeds are simulated ({SEEDS})")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seeds" in metafunc.fixturenames:
        # Unless the folder is on the command line, pytest loads this file too late to know the option.
        asked = metafunc.config.getoption("--seeds", default=None)
        number = int(asked if asked is not None else os.environ.get("MAINSPRING_SEEDS", SEEDS))
        chunks = [range(first, min(first + CHUNK, number)) for first in range(0, number, CHUNK)]
        metafunc.parametrize(
            "seeds",
            [pytest.param(chunk, marks=pytest.mark.slow if chunk[0] >= QUICK else ()) for chunk in chunks],
            ids=[f"{chunk[0]}-{chunk[-1]}" for chunk in chunks],
        )
