"""Declared tasks in the wire format."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from mainspring.http.schemas.common import Wire
from mainspring.http.schemas.jobs import Retry
from mainspring.http.schemas.limits import BreakerIn, LimitIn


class TaskOut(Wire, omit_defaults=False, kw_only=True):
    """A task as the newest registration declares it."""

    name: str
    description: str
    queue: str
    priority: int
    max_retries: int
    retry: Retry
    timeout: str
    """How long one attempt may take."""
    preset: str | None
    """Sets the timeout by the priority of the job."""
    guarantee: str
    requires: dict[str, str]
    limits: tuple[LimitIn, ...]
    breaker: BreakerIn | None
    weight: int
    retention: str | None
    tags: tuple[str, ...]
    arguments: Annotated[msgspec.Raw, Meta(description="The JSON Schema of the payload. Not in lists.")] | UnsetType = (
        UNSET
    )
    version: int
    """Increases with every registration that changed the task."""
    registered_by: str
    """The worker that registered this version."""
    registered_at: str
    workers: int
    """Live workers that run it."""
