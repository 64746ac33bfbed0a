"""Reads the payload of the task ``fan_out``, and builds its members."""

from collections.abc import Callable, Iterator, Sequence

import msgspec
from msgspec import UNSET

from mainspring.core.model.base.decode_errors import explain_payload_error
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import RunId, is_id
from mainspring.core.model.cluster.placement import shard_beside
from mainspring.core.model.limits.key_template import with_keys
from mainspring.core.model.runs.names import check_payload
from mainspring.core.model.runs.new_run import About, NewRun
from mainspring.core.model.runs.reserved import FAN_IN, RESERVED
from mainspring.core.model.tasks.task_entry import TaskEntry, fill_in_defaults
from mainspring.core.model.workflows.fan_out import (
    MAX_MEMBERS,
    FanOutNames,
    OnFailure,
    build_fan_out_tag,
    member_priority,
)
from mainspring.http.jobs.reading import build_run, list_given_names
from mainspring.http.schemas.fan_out import FanOutPlan
from mainspring.http.schemas.jobs import JobFields
from mainspring.http.schemas.limits import read_limits

_decode = msgspec.json.Decoder(FanOutPlan).decode
_decode_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_EXAMPLE = 'for example {"task": "encode", "items": [{"frame": 1}, {"frame": 2}]}'
#: A placeholder id for validation; each run gets its own.
_SOME_ID = RunId("0" * 12 + "7" + "0" * 19)


class FanOut(msgspec.Struct, frozen=True, kw_only=True):
    """A validated fan-out payload."""

    #: A member without its id and payload. The keys of its limits are filled in later.
    template: NewRun
    #: None: the items are the result of ``each``.
    items: "Items | None"
    each: str
    argument: str
    at_a_time: int
    on_failure: OnFailure
    #: The names of the options in the plan, and its preset.
    given: frozenset[str] = frozenset()
    preset: str | None = None

    def queue(self, entry: TaskEntry | None) -> str:
        return self.template.queue if entry is None or "queue" in self.given else entry.queue

    def filled_in(self, members: Sequence[NewRun], entry: TaskEntry | None) -> Sequence[NewRun]:
        """Fill in the options that the task declares and the plan does not set."""
        if entry is None:
            return members
        filled = [fill_in_defaults(one, entry, self.given, one.payload, self.preset) for one in members]
        return [msgspec.structs.replace(one, priority=member_priority(one.priority)) for one in filled]

    def items_in(self, result: bytes | None) -> "Items":
        """Return the items from the result of a run."""
        try:
            found = _decode_items(result or b"null")
        except msgspec.MsgspecError:
            raise Invalid("payload.each", f"the result of {self.each!r:.60} is no list") from None
        return _read_list(found, self.argument)

    def check_each(self, parents: Sequence[str]) -> None:
        """Refuse items from the result of a run that is not a parent, as far as this is known.

        A parent may be named by its node in a workflow, or by its number in a batch.
        """
        if not self.each:
            return
        if not parents:
            hint = "name the run in dependsOn, or make it a node of a workflow"
            raise Invalid("payload.each", "it waits for no run", hint)
        if is_id(self.each) and self.each not in parents and not any(one.startswith("#") for one in parents):
            raise Invalid("payload.each", f"it does not wait for run {self.each}", "name it in dependsOn")

    def members(
        self, names: FanOutNames, items: "Items", part: int, numbers: range, shards: int, groups: int = 0
    ) -> list[NewRun]:
        """Build the runs of one part. ``groups``: the number of placement groups of a sharded store."""
        said = self.template.about or About()
        about = msgspec.structs.replace(said, tags=(*said.tags, build_fan_out_tag(names.root)), parent=names.root)
        key = self.template.policy.ordering_key
        shard = shard_beside(names.root, key, shards, groups)
        return [
            with_keys(
                msgspec.structs.replace(
                    self.template, id=names.member(number, part, shard), payload=items.payload(number), about=about
                )
            )
            for number in numbers
        ]

    def samples(self) -> Iterator[tuple[str, bytes]]:
        """Yield fields and payloads that represent all members.

        Members that submit runs themselves are all included.
        """
        if self.items is None:
            return
        for number in range(self.items.count if self.template.task in RESERVED else min(self.items.count, 1)):
            yield self.items.field(number), self.items.payload(number)


class Items(msgspec.Struct, frozen=True):
    """The payloads of the members, by number."""

    count: int
    payload: Callable[[int], bytes]
    #: The path of an item in the payload of the fan-out.
    field: Callable[[int], str]


def read_fan_out(payload: bytes, tenant: str) -> FanOut:
    try:
        plan = _decode(payload)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise explain_payload_error(error, FanOutPlan, payload, _EXAMPLE) from None
    try:
        return _check(plan, tenant)
    except Invalid as error:
        raise Invalid(f"payload.{error.field}", error.reason, error.hint) from None


def _check(plan: FanOutPlan, tenant: str) -> FanOut:
    given = [name for name in ("items", "range", "each") if getattr(plan, name) is not UNSET]
    if len(given) != 1:
        reason = "is missing" if not given else f"does not go with {given[1]}"
        raise Invalid(given[0] if given else "items", reason, "one of items, range and each")
    if plan.task == FAN_IN:
        raise Invalid("task", f"{FAN_IN!r} is made by fan-outs", "another task")
    if plan.task in RESERVED and given != ["items"]:
        raise Invalid(given[0], f"does not go with task {plan.task!r}", "items")
    argument = "" if plan.argument is UNSET else plan.argument
    return FanOut(
        template=_build_template(plan, tenant),
        items=_read_items(plan, argument),
        each="" if plan.each is UNSET else plan.each,
        argument=argument,
        at_a_time=plan.at_a_time,
        on_failure=plan.on_failure,
        given=frozenset() if plan.options is UNSET else frozenset(list_given_names(plan.options)),
        preset=None if plan.options is UNSET or plan.options.preset is UNSET else plan.options.preset,
    )


def _build_template(plan: FanOutPlan, tenant: str) -> NewRun:
    fields = JobFields() if plan.options is UNSET else plan.options
    for name in ("task", "payload"):
        if getattr(fields, name) is not UNSET:
            raise Invalid(f"options.{name}", "is not for options", "task and items stand beside them")
    if fields.cron_expression is not UNSET or fields.every is not UNSET:
        raise Invalid("options.scheduleType", "of a member is not recurring", "make the whole fan-out recurring")
    # The keys of limits are filled in with the payload of each member.
    limits = read_limits(fields.limits)
    plain = msgspec.structs.replace(fields, task=plan.task, payload=msgspec.Raw(b"null"), limits=UNSET)
    try:
        run = build_run(plain, _SOME_ID, tenant, "")
        policy = msgspec.structs.replace(run.policy, limits=limits)
        run = msgspec.structs.replace(run, policy=policy, priority=member_priority(run.priority))
        about = run.about or About()
        msgspec.structs.replace(run, about=msgspec.structs.replace(about, tags=(*about.tags, "one more"))).check()
    except Invalid as error:
        field = error.field if error.field == "task" else f"options.{error.field}"
        raise Invalid(field, error.reason, error.hint) from None
    return run


def _read_items(plan: FanOutPlan, argument: str) -> Items | None:
    if plan.items is not UNSET:
        return _read_list(plan.items, argument)
    if plan.range is UNSET:
        return None
    start, count = plan.range.start, plan.range.to - plan.range.start
    if not 0 <= count <= MAX_MEMBERS:
        raise Invalid("range.to", f"{plan.range.to} makes {count:,} members", f"0 to {MAX_MEMBERS:,}")
    return Items(count, lambda number: _build_payload(b"%d" % (start + number), argument), lambda _: "payload.range")


def _read_list(items: Sequence[msgspec.Raw], argument: str) -> Items:
    for item in items:
        check_payload(bytes(item))
    return Items(
        len(items),
        lambda number: _build_payload(bytes(items[number]), argument),
        lambda number: f"payload.items[{number}]",
    )


def _build_payload(item: bytes, argument: str) -> bytes:
    return b"{%s:%s}" % (msgspec.json.encode(argument), item) if argument else item
