"""A task as its workers declare it. Requests that name the task use these options as defaults."""

from collections.abc import Collection, Mapping
from typing import TypeVar

import msgspec

from mainspring.core.model.base.checks import check_kind, check_words
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import Instant, Micros
from mainspring.core.model.cluster.labels import DATACENTER
from mainspring.core.model.limits.key_template import policy_with_keys
from mainspring.core.model.runs.names import MAX_NAME, check_labels, check_name, check_queue
from mainspring.core.model.runs.new_run import About, NewRun
from mainspring.core.model.runs.policy import DEFAULT_POLICY, PLAIN_FIELDS, RunPolicy
from mainspring.core.model.runs.rank import DEFAULT_PRIORITY, check_priority
from mainspring.core.model.runs.reserved import FAN_OUT, WORKFLOW
from mainspring.core.model.schedules.job import JobSpec
from mainspring.core.model.schedules.presets import preset_timeout
from mainspring.core.model.workflows.fan_out import AT_A_TIME, MAX_AT_A_TIME, OWN_PRIORITY

MAX_DESCRIPTION = 2_000
#: The fields of a policy that a task declares and a request sets one by one.
_PLAIN = tuple(name for name in PLAIN_FIELDS if name != "ordering_key")
#: The options that a task declares, in the names of the fields of a request.
DECLARED = frozenset({*_PLAIN, "queue", "priority", "max_retries", "retry", "timeout", "requires", "tags"})

New = TypeVar("New", NewRun, JobSpec)


class TaskEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The declaration of one task by a worker."""

    name: str
    description: str = ""
    queue: str = "default"
    priority: int = DEFAULT_PRIORITY
    policy: RunPolicy = DEFAULT_POLICY
    #: Sets the timeout by priority, as in ``@app.task(preset="payouts")``.
    preset: str | None = None
    tags: tuple[str, ...] = ()
    #: The JSON Schema of the arguments; empty: any payload.
    arguments: Mapping[str, object] = {}
    #: False: the worker upgrades payloads of older versions, so the schema rejects none.
    checked: bool = True

    def check(self) -> None:
        check_name("task", self.name)
        check_kind("description", self.description, str)
        if len(self.description) > MAX_DESCRIPTION:
            raise Invalid("description", "is too long", f"at most {MAX_DESCRIPTION} characters")
        check_queue("queue", self.queue)
        check_priority(self.priority)
        check_kind("policy", self.policy, RunPolicy)
        self.policy.check()
        if self.preset is not None:
            preset_timeout(self.preset, self.priority)
        check_labels("", self.tags)

    def encode(self) -> bytes:
        """Encode deterministically for comparing versions: equal entries have equal bytes."""
        return msgspec.json.encode(self, order="deterministic")


#: The built-in tasks. Their payloads have separate checks.
WORKFLOW_ENTRY = TaskEntry(
    name=WORKFLOW,
    description="Submit a workflow: jobs by their names, some of which wait for others.",
    arguments={
        "type": "object",
        "properties": {"name": {"type": "string"}, "nodes": {"type": "object"}},
        "required": ["name", "nodes"],
    },
    checked=False,
)
FAN_OUT_ENTRY = TaskEntry(
    name=FAN_OUT,
    description="Submit one run of a task for each item.",
    priority=OWN_PRIORITY,
    arguments={
        "type": "object",
        "properties": {
            "task": {"type": "string"},
            "items": {"type": "array"},
            "range": {"type": "object", "properties": {"from": {"type": "integer"}, "to": {"type": "integer"}}},
            "each": {"type": "string"},
            "argument": {"type": "string"},
            "options": {"type": "object"},
            "atATime": {"type": "integer", "minimum": 1, "maximum": MAX_AT_A_TIME, "default": AT_A_TIME},
            "onFailure": {"enum": ["fail", "go-on"], "default": "fail"},
        },
        "required": ["task"],
    },
    checked=False,
)


class KnownTask(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the catalog: the newest registration of a task."""

    entry: TaskEntry
    #: Incremented by every registration that changed the entry.
    version: int
    #: The catalog's revision at this change, so that a reader can request only newer entries.
    rev: int
    #: The worker that registered this version, and when.
    registered_by: str
    registered_at: Instant


def check_registration(entries: Collection[TaskEntry], worker: str) -> None:
    check_words("worker", worker, MAX_NAME)
    for entry in entries:
        entry.check()
    if len({entry.name for entry in entries}) < len(entries):
        raise Invalid("tasks", "has a task twice")


def fill_in_defaults(
    new: New, entry: TaskEntry, given: Collection[str], payload: bytes, preset: str | None = None
) -> New:
    """Fill the options that a request omits with those that the task declares. An explicit value wins.

    ``given``: the fields that the request sets, by their names in ``JobFields``. ``preset``: the preset of the request.
    """
    priority = new.priority if "priority" in given else entry.priority
    changes: dict[str, object] = {}
    if "queue" not in given and new.queue != entry.queue:
        changes["queue"] = entry.queue
    if priority != new.priority:
        changes["priority"] = priority
    policy = _policy(new.policy, entry, given, priority, preset)
    if policy is not new.policy:
        changes["policy"] = policy if "limits" in given else _filled_in(policy, entry, payload)
    if entry.tags and "tags" not in given:
        if isinstance(new, NewRun):
            about = new.about or About()
            changes["about"] = msgspec.structs.replace(about, tags=_join(entry.tags, about.tags))
        else:
            changes["tags"] = _join(entry.tags, new.tags)
    return msgspec.structs.replace(new, **changes) if changes else new


def _join(own: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    return (*own, *(tag for tag in others if tag not in own))


def _policy(
    policy: RunPolicy, entry: TaskEntry, given: Collection[str], priority: int, preset: str | None
) -> RunPolicy:
    own = entry.policy
    # Without changes it returns the identical object, whose check is cached.
    changes: dict[str, object] = {name: getattr(policy, name) for name in _PLAIN if name in given}
    if policy.ordering_key:
        changes["ordering_key"] = policy.ordering_key
    if "retry" in given:
        # The request replaces the whole back-off. The number of retries is a separate field.
        retry = policy.retry
        if "max_retries" not in given:
            retry = msgspec.structs.replace(retry, max_retries=own.retry.max_retries)
        changes["retry"] = retry
    elif "max_retries" in given:
        changes["retry"] = msgspec.structs.replace(own.retry, max_retries=policy.retry.max_retries)
    if "requires" in given:
        changes["requires"] = policy.requires
    elif "datacenters" in given:
        labels = [word for word in own.requires if word.partition("=")[0] != DATACENTER]
        changes["requires"] = tuple(sorted({*labels, *policy.requires}))
    timeout = _timeout(policy, entry, given, priority, preset)
    if timeout != own.timeout:
        changes["timeout"] = timeout
    return msgspec.structs.replace(own, **changes) if changes else own


def _timeout(policy: RunPolicy, entry: TaskEntry, given: Collection[str], priority: int, preset: str | None) -> Micros:
    if "timeout" in given:
        return policy.timeout
    chosen = preset or entry.preset
    return entry.policy.timeout if chosen is None else preset_timeout(chosen, priority)


def _filled_in(policy: RunPolicy, entry: TaskEntry, payload: bytes) -> RunPolicy:
    """Render limit keys that refer to arguments, with the values of this payload or the defaults of the arguments."""
    if not any("{" in limit.key or "}" in limit.key for limit in policy.limits):
        return policy
    return policy_with_keys(policy, in_full(entry, payload))


def in_full(entry: TaskEntry, payload: bytes) -> bytes:
    """Return the payload with the defaults of the arguments that it omits."""
    properties = entry.arguments.get("properties")
    if not isinstance(properties, dict):
        return payload
    try:
        values = msgspec.json.decode(payload)
    except (msgspec.DecodeError, RecursionError):
        return payload
    defaults = {
        name: schema["default"]
        for name, schema in properties.items()
        if isinstance(schema, dict) and "default" in schema
    }
    if not isinstance(values, dict):
        return payload if values is not None else msgspec.json.encode(defaults)
    return msgspec.json.encode(defaults | values)
