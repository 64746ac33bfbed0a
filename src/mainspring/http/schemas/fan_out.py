"""The payload and the result of a fan-out."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from mainspring.core.model.workflows.fan_out import AT_A_TIME, MAX_AT_A_TIME
from mainspring.http.schemas.common import Name, Request
from mainspring.http.schemas.jobs import JobFields

Whole = Annotated[int, Meta(ge=-(2**53), le=2**53)]


class RangeIn(Request):
    """Integers from `from` up to, but not including, `to`."""

    to: Whole
    start: Whole = msgspec.field(name="from", default=0)


class FanOutPlan(Request, omit_defaults=True):
    """The payload of the task `fan_out`: one run of a task for each item."""

    task: Name
    items: list[msgspec.Raw] | UnsetType = UNSET
    """The payloads of the members."""
    range: RangeIn | UnsetType = UNSET
    """A range of numbers instead of `items`."""
    each: Name | UnsetType = UNSET
    """Instead of `items`: a node of the same workflow, or the id of a run, whose result is the list of items."""
    argument: Name | UnsetType = UNSET
    """The member's payload becomes `{"<argument>": item}`; without it the item is the payload."""
    options: JobFields | UnsetType = UNSET
    """Options of every member, the same as for any job: queue, priority, retries …"""
    at_a_time: Annotated[int, Meta(ge=1, le=MAX_AT_A_TIME)] = AT_A_TIME
    """The largest number of members that are active at the same time."""
    on_failure: Literal["fail", "go-on"] = "fail"
    """What happens to the fan-out once all members have ended and some of them did not succeed."""


class FanOutResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The counts of members by outcome. `results` has their results in order, if they are few and small enough."""

    members: int
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    skipped: int = 0
    results: list[msgspec.Raw] | UnsetType = UNSET


class PartOf(Request, omit_defaults=True):
    """The payload of the task `fan_in`: the part of a fan-out that it collects. Without `part` it cleans up the
    fan-out.
    """

    root: str
    part: int | UnsetType = UNSET
