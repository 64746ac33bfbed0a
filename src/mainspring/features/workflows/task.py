"""The task ``workflow``: its payload is a workflow, and a run of it makes an instance. How a workflow recurs."""

from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import RunId, derived_id, made_at
from mainspring.core.model.base.misread import misread_payload
from mainspring.core.model.cluster.placement import shard_beside
from mainspring.core.model.runs.reserved import FAN_OUT, WORKFLOW
from mainspring.core.model.runs.run import About, HeldRun, JobRef, NewRun
from mainspring.core.model.runs.verdicts import GiveUp
from mainspring.core.model.tasks.task_entry import TaskEntry
from mainspring.core.model.workflows.workflow import Node, check_nodes, wired
from mainspring.core.store import Store
from mainspring.core.submit.jobs import Jobs
from mainspring.core.worker.handler import AsyncHandler
from mainspring.features.fan_out.plan import read_fan_out
from mainspring.features.workflows.schemas import NodeIn, WorkflowPlan, rule_of
from mainspring.http.schemas.jobs import apply_defaults, run_of

_decode = msgspec.json.Decoder(WorkflowPlan).decode


def read_plan(payload: bytes, tenant: str, known: Mapping[str, TaskEntry]) -> tuple[str, list[Node]]:
    """The name and the nodes of a payload, checked as far as that goes. ``known``: the task catalog."""
    try:
        plan = _decode(payload)
    except (msgspec.MsgspecError, RecursionError) as error:
        hint = 'for example {"name": "nightly", "nodes": {"extract": {"task": "extract"}}}'
        raise misread_payload(error, WorkflowPlan, payload, hint) from None
    check_nodes({name: node.after for name, node in plan.nodes.items()})
    return plan.name, [node_of(name, given, tenant, "", known) for name, given in plan.nodes.items()]


def node_of(name: str, given: NodeIn, tenant: str, author: str, known: Mapping[str, TaskEntry]) -> Node:
    try:
        if given.cron_expression is not msgspec.UNSET or given.every is not msgspec.UNSET:
            raise Invalid("scheduleType", "of a node is not recurring", "make the whole workflow recurring")
        run = run_of(given, RunId(""), tenant, author)
        run = apply_defaults(run, given, known.get(run.task))
        if run.task == FAN_OUT:
            _check_each(read_fan_out(run.payload, tenant).each, given.after)
    except Invalid as error:
        raise inside(name, error) from None
    return Node(name=name, run=run, after=given.after, rule=rule_of(given.when))


def _check_each(each: str, after: Sequence[str]) -> None:
    if each and each not in after:
        raise Invalid("payload.each", f"it does not wait for a node {each!r:.60}", "name it in after")


def inside(node: str, error: Invalid) -> Invalid:
    """Where it was said."""
    return Invalid(f"nodes.{node}.{error.field}", error.reason, error.hint)


def workflow_handler(engine: Callable[[], Awaitable[tuple[Jobs, Store]]]) -> AsyncHandler:
    """``engine``: where the nodes are submitted to."""

    async def invoke(held: HeldRun) -> bytes:
        jobs, store = await engine()
        known = {task.entry.name: task.entry for task in await store.list_tasks()}
        try:
            name, nodes = read_plan(held.payload, held.tenant, known)
        except Invalid as error:
            raise GiveUp(str(error)) from None
        made = await jobs.submit_whole(await instance_of(held, name, nodes, store))
        return msgspec.json.encode({"workflowId": held.id, "nodes": len(made)})

    return AsyncHandler(WORKFLOW, invoke, harmless=True)


async def instance_of(held: HeldRun, name: str, nodes: list[Node], store: Store) -> list[NewRun]:
    """The instance is known by the run that makes it, and the ids follow from that: another attempt makes none twice.

    Of a recurring job its nodes are runs of the job, too: its overlap rule waits for all of them.
    """
    places = getattr(store, "place_count", 0)
    shards = [shard_beside(held.id, node.run.policy.ordering_key, store.shards, places) for node in nodes]
    ids = [
        RunId(derived_id(made_at(held.id), shard, held.id, "node", node.name))
        for shard, node in zip(shards, nodes, strict=True)
    ]
    job = None
    if held.job_id is not None:
        view = (await store.runs([held.id]))[0]
        version = None if view is None else view.job_version
        job = JobRef(id=held.job_id, version=version or 1)
    return [
        msgspec.structs.replace(run, job=job, about=msgspec.structs.replace(run.about or About(), parent=held.id))
        for run in wired(held.id, name, nodes, ids)
    ]
