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
from mainspring.sdk.app import Mainspring
from mainspring.sdk.context import Context
from mainspring.sdk.handle import RunCancelled, RunFailed, RunHandle, RunSkipped
from mainspring.sdk.resources import provided
from mainspring.sdk.transactions import transaction

__version__ = "0.1.0"

__all__ = [
    "CatchUp",
    "Conflict",
    "Context",
    "Denied",
    "Fenced",
    "Invalid",
    "Mainspring",
    "MainspringError",
    "NotFound",
    "Overlap",
    "RetryPolicy",
    "RunCancelled",
    "RunFailed",
    "RunHandle",
    "RunSkipped",
    "StoreUnavailable",
    "provided",
    "transaction",
]
