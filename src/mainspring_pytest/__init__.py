"""Fixtures for tests in virtual time. pytest loads this at every start, so it imports nothing before it is used."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol, TypeVar

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from mainspring import Mainspring
    from mainspring.testing import BlockingTestScheduler, TestScheduler

S = TypeVar("S", covariant=True)

START = "2026-01-01T00:00:00Z"


class Open(Protocol[S]):
    """Starts an engine in virtual time for an application. It is stopped when the test has ended."""

    def __call__(self, app: Mainspring, *, start: datetime | str = START) -> S: ...


@pytest.fixture
def mainspring_scheduler() -> Iterator[Open[TestScheduler]]:
    """For async tests: ``s = mainspring_scheduler(app)``, then ``await s.advance("1 day")``."""
    with ExitStack() as stack:

        def start_one(app: Mainspring, *, start: datetime | str = START) -> TestScheduler:
            from mainspring.testing import TestScheduler

            scheduler = TestScheduler(app, start=start)
            stack.enter_context(scheduler)
            return scheduler

        yield start_one


@pytest.fixture
def mainspring_blocking_scheduler() -> Iterator[Open[BlockingTestScheduler]]:
    """For tests without a loop: ``s = mainspring_blocking_scheduler(app)``, then ``s.advance("1 day")``."""
    with ExitStack() as stack:

        def start_one(app: Mainspring, *, start: datetime | str = START) -> BlockingTestScheduler:
            from mainspring.testing import TestScheduler

            return stack.enter_context(TestScheduler(app, start=start))

        yield start_one
