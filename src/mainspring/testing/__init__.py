"""Test schedules, retries and cancellations in virtual time: a day passes in milliseconds."""

from mainspring.testing.runs import Runs
from mainspring.testing.scheduler import BlockingTestScheduler, TestScheduler

__all__ = ["BlockingTestScheduler", "Runs", "TestScheduler"]
