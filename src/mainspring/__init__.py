"""Mainspring: runs work now, later or on a schedule, and can show that it did."""

from mainspring.domain.catch_up import CatchUp
from mainspring.domain.errors import (
    Conflict,
    Denied,
    Fenced,
    Invalid,
    MainspringError,
    NotFound,
    StoreUnavailable,
)
from mainspring.domain.job import Overlap
from mainspring.domain.retry import RetryPolicy
from mainspring.domain.verdicts import GiveUp
from mainspring.sdk.app import Mainspring
from mainspring.sdk.context import Context
from mainspring.sdk.datacenters import prefer
from mainspring.sdk.fan_out import FanOut
from mainspring.sdk.handle import RunCancelled, RunFailed, RunHandle, RunSkipped
from mainspring.sdk.limits import Breaker, Limit, Unique
from mainspring.sdk.resources import provided
from mainspring.sdk.transactions import transaction
from mainspring.sdk.verdicts import Retry

__version__ = "0.1.0"

__all__ = [
    "Breaker",
    "CatchUp",
    "Conflict",
    "Context",
    "Denied",
    "FanOut",
    "Fenced",
    "GiveUp",
    "Invalid",
    "Limit",
    "Mainspring",
    "MainspringError",
    "NotFound",
    "Overlap",
    "Retry",
    "RetryPolicy",
    "RunCancelled",
    "RunFailed",
    "RunHandle",
    "RunSkipped",
    "StoreUnavailable",
    "Unique",
    "prefer",
    "provided",
    "transaction",
]
