"""Runs that the engine itself makes have the options that their task declares."""

import json

from mainspring import Mainspring
from mainspring.config.node import Node, Role
from mainspring.core.model.base.instant import MINUTE
from mainspring.core.model.runs.view import RunView
from mainspring.core.ports.storage.catalog import RunFilter
from tests.support.waiting import eventually


async def made(task: str, payload: object) -> RunView:
    """The one run of the task ``stamp`` that a run of another task makes."""
    app = Mainspring("memory:")

    @app.task(queue="stamps", priority=4, timeout="5m", limit=2)
    async def stamp(number: int) -> int:
        return number

    node = Node(app.settings(), {Role.SCHEDULER, Role.WORKER}, app, None)
    await node.runtime.open()
    app.use(node.runtime)
    await node.start()
    try:
        await app.named(task).options(queue="stamps").submit(**json.loads(json.dumps(payload)))

        async def find() -> list[RunView]:
            page = await node.runtime.store.list_runs(RunFilter(tenant=None, task="stamp"), None, 10)
            return list(page.items)

        [run] = await eventually(find)
        return run
    finally:
        await node.stop()
        await node.runtime.close()


async def test_a_member_of_a_fan_out() -> None:
    run = await made("fan_out", {"task": "stamp", "items": [{"number": 1}]})
    assert (run.queue, run.priority, run.policy.timeout) == ("stamps", 4, 5 * MINUTE)
    assert [limit.key for limit in run.policy.limits] == ["task:stamp"]
    run = await made("fan_out", {"task": "stamp", "items": [{"number": 1}], "options": {"timeout": "7m"}})
    assert (run.priority, run.policy.timeout) == (4, 7 * MINUTE)


async def test_a_node_of_a_workflow() -> None:
    run = await made("workflow", {"name": "w", "nodes": {"one": {"task": "stamp", "payload": {"number": 1}}}})
    assert (run.queue, run.priority, run.policy.timeout) == ("stamps", 4, 5 * MINUTE)
