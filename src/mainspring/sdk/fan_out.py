"""Fan-outs: one call of a task for each of many items, and the combined result."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET

from mainspring.core.model.base.checks import check_whole, check_word
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.runs.names import MAX_PAYLOAD
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.model.runs.reserved import FAN_OUT
from mainspring.core.model.runs.unique import Unique
from mainspring.core.model.workflows.fan_out import AT_A_TIME, MAX_AT_A_TIME, MAX_MEMBERS, OWN_PRIORITY

if TYPE_CHECKING:
    from mainspring.sdk.calls.options import Options

T = TypeVar("T")
OnFailure: TypeAlias = Literal["fail", "go-on"]


class FanOut(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """The result of a fan-out: how its members ended."""

    members: int
    succeeded: int
    failed: int = 0
    cancelled: int = 0
    skipped: int = 0
    results: list[T | None] | None = None
    """The results in the order of the items, with None for members that did not succeed. Absent if there are more
    than 1,000 members, or if the results are too large.
    """


class _Result(msgspec.Struct):
    """The result as it is stored."""

    members: int
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    skipped: int = 0
    results: list[msgspec.Raw] | None = None


def build_plan(
    task: str,
    items: Iterable[object] | None,
    encode: Callable[[object], bytes],
    argument: str,
    options: "Options",
    *,
    each: str = "",
    at_a_time: int = AT_A_TIME,
    on_failure: OnFailure = "fail",
) -> bytes:
    """Build the payload of a fan-out. A range of numbers is not expanded.

    ``argument``: the name of the parameter that receives the item of a range or of ``each``.
    """
    plan: dict[str, object] = {"task": task}
    if (each or isinstance(items, range)) and not argument:
        raise Invalid("items", f"of task {task!r:.60} must be its named arguments", "a list of dictionaries")
    if each:
        plan |= {"each": each, "argument": argument}
    elif isinstance(items, range) and items.step == 1:
        if len(items) > MAX_MEMBERS:
            raise Invalid("items", f"are {len(items):,}", f"at most {MAX_MEMBERS:,}")
        plan |= {"range": {"from": items.start, "to": items.start + len(items)}, "argument": argument}
        if items:
            encode(items[0])
    elif isinstance(items, Iterable) and not isinstance(items, str | bytes):
        plan["items"] = [msgspec.Raw(encode(item)) for item in items]
    else:
        raise Invalid("items", f"{items!r:.40} is no list", "for example [1, 2, 3], or range(1_000_000)")
    check_whole("at_a_time", at_a_time, 1, MAX_AT_A_TIME, f"1 to {MAX_AT_A_TIME:,}")
    check_word("on_failure", on_failure, ("fail", "go-on"))
    plan |= {"options": _member_options(options), "atATime": at_a_time, "onFailure": on_failure}
    payload = msgspec.json.encode(plan)
    if len(payload) > MAX_PAYLOAD:
        hint = f"at most {MAX_PAYLOAD:,}: keep them where members find them, and map over range(how many)"
        raise Invalid("items", f"are {len(payload):,} bytes", hint)
    return payload


def check_each(payload: bytes) -> None:
    """Refuse a fan-out over the result of a run if it has no dependencies, because it would never get its items."""
    if msgspec.json.decode(payload, type=_Each).each:
        raise Invalid("each", "it waits for no run", "task.options(depends_on=[run]).prepare_map(each=run.id)")


class _Each(msgspec.Struct):
    each: object = None


def build_own_options(options: "Options") -> "Options":
    """Return the options of the fan-out run itself: its time, tenant and dependencies.

    Options of attempts go to the members.
    """
    if isinstance(options.unique, Unique) and "{" in options.unique.key:
        raise Invalid("unique", "of a fan-out names no arguments", "a key for the whole")
    return msgspec.structs.replace(
        options,
        policy=RunPolicy(),
        priority=OWN_PRIORITY,
        preset=None,
        start_within=None,
        deadline=None,
    )


def read_fan_out(result: bytes | None, read: Callable[[bytes | None], Any]) -> FanOut[Any]:
    """Decode the result of a fan-out. ``read`` decodes the result of a member."""
    found = msgspec.json.decode(result or b"{}", type=_Result)
    results = None if found.results is None else [_value(bytes(one), read) for one in found.results]
    return FanOut(
        members=found.members,
        succeeded=found.succeeded,
        failed=found.failed,
        cancelled=found.cancelled,
        skipped=found.skipped,
        results=results,
    )


def _value(result: bytes, read: Callable[[bytes | None], Any]) -> Any:
    return None if result == b"null" else read(result)


def _member_options(options: "Options") -> object:
    """Return the options of every member."""
    # Imported here, because it takes 100 ms and most programs have no fan-outs.
    from mainspring.sdk.backends.remote import build_job_in, choose_open_fields

    run = NewRun(
        id=RunId(""),
        task=FAN_OUT,
        queue=options.queue,
        priority=options.priority,
        policy=options.policy,
        start_within=options.start_within,
        deadline=options.deadline,
    )
    job = choose_open_fields(build_job_in(run), options.given)
    return msgspec.structs.replace(job, task=UNSET, payload=UNSET, tenant=UNSET, idempotency_key=UNSET)
