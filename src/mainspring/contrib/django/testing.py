"""Run tasks in the tests of a Django project, in virtual time and on the connections of the test."""

import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from mainspring.contrib.django import app
from mainspring.contrib.django.connections import lend_connections
from mainspring.testing import BlockingTestScheduler, TestScheduler

_START = "2026-01-01T00:00:00Z"


@contextmanager
def virtual_scheduler(*, start: datetime | str = _START) -> Iterator[BlockingTestScheduler]:
    """Start a scheduler and a worker in virtual time.

    Handlers see what the test has written, also within its transaction.
    """
    with lend_connections(), TestScheduler(app, start=start) as scheduler:
        yield scheduler


class MainspringTestMixin(unittest.TestCase):
    """Mixin for a Django ``TestCase``: ``class OrderTest(MainspringTestMixin, TestCase)``.

    A job that is due has run when ``submit`` returns. ``self.scheduler.advance("1 day")`` lets time pass for the other
    jobs.
    """

    #: The start of virtual time.
    scheduler_start: datetime | str = _START
    scheduler: BlockingTestScheduler

    def setUp(self) -> None:
        super().setUp()
        self.scheduler = self.enterContext(virtual_scheduler(start=self.scheduler_start))
