"""The task ``workflow``, by which a workflow recurs: its payload is a workflow, and each run creates an instance."""

from collections.abc import Awaitable, Callable

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import RunId, derived_id, made_at
from mainspring.core.model.cluster.placement import shard_beside
from mainspring.core.model.runs.handler_errors import GiveUp
from mainspring.core.model.runs.new_run import About, JobRef, NewRun
from mainspring.core.model.runs.reserved import WORKFLOW
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.model.workflows.workflow import Node, wired
from mainspring.core.store import Store
from mainspring.core.submit.jobs import Jobs
from mainspring.core.worker.handler import AsyncHandler
from mainspring.http.plans.workflow import read_plan


def build_workflow_handler(connect: Callable[[], Awaitable[tuple[Jobs, Store]]]) -> AsyncHandler:
    """Return the handler of the task. ``connect`` returns where to submit the nodes."""

    async def invoke(held: HeldRun) -> bytes:
        jobs, store = await connect()
        known = {task.entry.name: task.entry for task in await store.list_tasks()}
        try:
            name, nodes = read_plan(held.payload, held.tenant, known)
        except Invalid as error:
            raise GiveUp(str(error)) from None
        made = await jobs.submit_whole(await build_instance(held, name, nodes, store))
        return msgspec.json.encode({"workflowId": held.id, "nodes": len(made)})

    return AsyncHandler(WORKFLOW, invoke, harmless=True)


async def build_instance(held: HeldRun, name: str, nodes: list[Node], store: Store) -> list[NewRun]:
    """Build the runs of an instance.

    1. The run that creates the instance identifies it, and node ids are derived from it, so another attempt creates no
       duplicates.
    2. Nodes of a recurring job are runs of that job: its overlap rule waits for all of them.
    """
    placement_groups = getattr(store, "place_count", 0)
    shards = [shard_beside(held.id, node.run.policy.ordering_key, store.shards, placement_groups) for node in nodes]
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
