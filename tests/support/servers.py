"""Servers that a test needs: used where they can be had, and left out by name where not."""

import os
from typing import NoReturn

import pytest

from tools.services import Service, ServiceUnavailable

IN_CI = os.environ.get("CI") == "true"
#: The servers that this run may use, separated by commas; all of them if it is not set. ``make test`` sets it.
ALLOWED = os.environ.get("TEST_SERVERS")


def require(name: str) -> None:
    """Skip the test if this run leaves the server out."""
    if ALLOWED is not None and name not in ALLOWED.split(","):
        pytest.skip(f"{name} is left to make test-all")


def not_here(reason: str) -> NoReturn:
    """Something that a test needs is missing: a laptop skips the test by name, CI fails."""
    if IN_CI:
        pytest.fail(reason)
    pytest.skip(reason)


def started(server: Service) -> str:
    """The address of a running server. If it cannot be had, nothing is left behind."""
    require(server.name)
    try:
        return server.ensure()
    except ServiceUnavailable as error:
        # It may start later all the same.
        server.remove()
        not_here(f"{server.name} is not available: {error}")
