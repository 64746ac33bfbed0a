"""Mainspring: runs work now, later or on a schedule, and can show that it did."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mainspring.core.model.base.errors import (
        Conflict,
        Denied,
        Fenced,
        Invalid,
        MainspringError,
        NotFound,
        StoreUnavailable,
    )
    from mainspring.core.model.runs.handler_errors import GiveUp
    from mainspring.core.model.schedules.job import Overlap
    from mainspring.sdk.app import Mainspring
    from mainspring.sdk.context import Context
    from mainspring.sdk.datacenters import prefer
    from mainspring.sdk.fan_out import FanOut
    from mainspring.sdk.handle import RunCancelled, RunFailed, RunHandle, RunSkipped
    from mainspring.sdk.limits import Breaker, Limit, Unique
    from mainspring.sdk.policies import CatchUp, RetryPolicy
    from mainspring.sdk.resources import provided
    from mainspring.sdk.retry import Retry
    from mainspring.sdk.transactions import transaction

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

#: The module of each name: it is imported when the name is first used, so that a command or a child process loads
#: only what it needs.
_MODULES = {
    "Breaker": "mainspring.sdk.limits",
    "CatchUp": "mainspring.sdk.policies",
    "Conflict": "mainspring.core.model.base.errors",
    "Context": "mainspring.sdk.context",
    "Denied": "mainspring.core.model.base.errors",
    "FanOut": "mainspring.sdk.fan_out",
    "Fenced": "mainspring.core.model.base.errors",
    "GiveUp": "mainspring.core.model.runs.handler_errors",
    "Invalid": "mainspring.core.model.base.errors",
    "Limit": "mainspring.sdk.limits",
    "Mainspring": "mainspring.sdk.app",
    "MainspringError": "mainspring.core.model.base.errors",
    "NotFound": "mainspring.core.model.base.errors",
    "Overlap": "mainspring.core.model.schedules.job",
    "Retry": "mainspring.sdk.retry",
    "RetryPolicy": "mainspring.sdk.policies",
    "RunCancelled": "mainspring.sdk.handle",
    "RunFailed": "mainspring.sdk.handle",
    "RunHandle": "mainspring.sdk.handle",
    "RunSkipped": "mainspring.sdk.handle",
    "StoreUnavailable": "mainspring.core.model.base.errors",
    "Unique": "mainspring.sdk.limits",
    "prefer": "mainspring.sdk.datacenters",
    "provided": "mainspring.sdk.resources",
    "transaction": "mainspring.sdk.transactions",
}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(module), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
