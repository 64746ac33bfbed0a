"""How many seeds: 200, or as many as ``--seeds N`` (with ``pytest tests/simulation``) or MAINSPRING_SEEDS says."""

import os

import pytest

SEEDS = 200
#: So many of them by ``make test``.
QUICK = 20
#: So many in one test, so that the processes of a parallel run share them evenly.
CHUNK = 5


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seeds", type=int, default=None, help=f"how many seeds are simulated ({SEEDS})")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seeds" in metafunc.fixturenames:
        # Without the folder on the command line this file is read too late for its option to be known.
        asked = metafunc.config.getoption("--seeds", default=None)
        number = int(asked if asked is not None else os.environ.get("MAINSPRING_SEEDS", SEEDS))
        chunks = [range(first, min(first + CHUNK, number)) for first in range(0, number, CHUNK)]
        metafunc.parametrize(
            "seeds",
            [pytest.param(chunk, marks=pytest.mark.slow if chunk[0] >= QUICK else ()) for chunk in chunks],
            ids=[f"{chunk[0]}-{chunk[-1]}" for chunk in chunks],
        )
