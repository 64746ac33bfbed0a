"""Reads the payload of the task ``workflow``."""

from collections.abc import Mapping, Sequence

import msgspec

from mainspring.core.model.base.decode_errors import explain_payload_error
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.runs.reserved import FAN_OUT
from mainspring.core.model.tasks.task_entry import TaskEntry
from mainspring.core.model.workflows.workflow import Node, check_nodes
from mainspring.http.jobs.reading import apply_defaults, build_run
from mainspring.http.plans.fan_out import read_fan_out
from mainspring.http.schemas.workflows import NodeIn, WorkflowPlan, read_rule

_decode = msgspec.json.Decoder(WorkflowPlan).decode


def read_plan(payload: bytes, tenant: str, known: Mapping[str, TaskEntry]) -> tuple[str, list[Node]]:
    """Return the name and the nodes of a payload after validation. ``known``: the task catalog."""
    try:
        plan = _decode(payload)
    except (msgspec.MsgspecError, RecursionError) as error:
        hint = 'for example {"name": "nightly", "nodes": {"extract": {"task": "extract"}}}'
        raise explain_payload_error(error, WorkflowPlan, payload, hint) from None
    check_nodes({name: node.after for name, node in plan.nodes.items()})
    return plan.name, [build_node(name, given, tenant, "", known) for name, given in plan.nodes.items()]


def build_node(name: str, given: NodeIn, tenant: str, author: str, known: Mapping[str, TaskEntry]) -> Node:
    try:
        if given.cron_expression is not msgspec.UNSET or given.every is not msgspec.UNSET:
            raise Invalid("scheduleType", "of a node is not recurring", "make the whole workflow recurring")
        run = build_run(given, RunId(""), tenant, author)
        run = apply_defaults(run, given, known.get(run.task))
        if run.task == FAN_OUT:
            _check_each(read_fan_out(run.payload, tenant).each, given.after)
    except Invalid as error:
        raise name_node(name, error) from None
    return Node(name=name, run=run, after=given.after, rule=read_rule(given.when))


def _check_each(each: str, after: Sequence[str]) -> None:
    if each and each not in after:
        raise Invalid("payload.each", f"it does not wait for a node {each!r:.60}", "name it in after")


def name_node(node: str, error: Invalid) -> Invalid:
    """Return the error with a field path that names the node."""
    return Invalid(f"nodes.{node}.{error.field}", error.reason, error.hint)
