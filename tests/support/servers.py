"""Servers of a test's own, where they can be had."""

import os
from typing import NoReturn

import pytest

from tools.services import Service, ServiceUnavailable

IN_CI = os.environ.get("CI") == "true"


def not_here(reason: str) -> NoReturn:
    """Something that a test needs is missing: a laptop skips the test by name, CI fails."""
    if IN_CI:
        pytest.fail(reason)
    pytest.skip(reason)


def started(server: Service) -> str:
    """The address of one that runs now. One that cannot be had leaves nothing behind."""
    try:
        return server.ensure()
    except ServiceUnavailable as error:
        # It may be there in a moment all the same.
        server.remove()
        not_here(f"{server.name} is not available: {error}")
