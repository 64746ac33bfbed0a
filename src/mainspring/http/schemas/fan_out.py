"""What a fan-out is given, and what it answers."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from mainspring.core.model.workflows.fan_out import AT_A_TIME, MAX_AT_A_TIME
from mainspring.http.schemas.common import Name, Request
from mainspring.http.schemas.jobs import JobFields

Whole = Annotated[int, Meta(ge=-(2**53), le=2**53)]


class RangeIn(Request):
    """Whole numbers from `from` up to, but not, `to`."""

    to: Whole
    start: Whole = msgspec.field(name="from", default=0)


class FanOutPlan(Request, omit_defaults=True):
    """The payload of the task `fan_out`: one run of a task for each item."""

    task: Name
    items: list[msgspec.Raw] | UnsetType = UNSET
    """The payloads of the members."""
    range: RangeIn | UnsetType = UNSET
    """Instead of items: numbers."""
    each: Name | UnsetType = UNSET
    """Instead of items: the node of the same workflow, or the id of the run, whose result is the list of them."""
    argument: Name | UnsetType = UNSET
    """The name under which a member gets its item, as `{"<argument>": item}`; without it the item is its payload."""
    options: JobFields | UnsetType = UNSET
    """What is said of every member, as of any job: queue, priority, retries …"""
    at_a_time: Annotated[int, Meta(ge=1, le=MAX_AT_A_TIME)] = AT_A_TIME
    """No more members than this are on their way."""
    on_failure: Literal["fail", "go-on"] = "fail"
    """What becomes of the whole when not all members have succeeded, once all have ended."""


class FanOutResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Members, how they ended, and, if there are few and small enough, what they returned, in order."""

    members: int
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    skipped: int = 0
    results: list[msgspec.Raw] | UnsetType = UNSET


class PartOf(Request, omit_defaults=True):
    """The payload of the task `fan_in`: the part of a fan-out that it gathers; without one, it cleans up behind it."""

    root: str
    part: int | UnsetType = UNSET
