"""What the CPU of handlers is measured as, in real threads and processes."""

import asyncio

import msgspec
import pytest

from mainspring.bootstrap.node import Node, Role
from mainspring.domain.ids import RunId
from mainspring.domain.instant import LATEST, MILLISECOND, SECOND
from mainspring.domain.run import RunState
from mainspring.domain.usage import by_line
from mainspring.settings import load
from tests.support import spending_tasks
from tests.support.builders import a_run

pytestmark = pytest.mark.system


async def state(node: Node, run: RunId) -> RunState:
    [view] = await node.engine.store.runs([run])
    assert view is not None
    return view.state


async def test_cpu_is_measured_on_threads_and_in_processes() -> None:
    settings = load({"store": "memory:", "worker.children": "1", "tasks.commands": "true"})
    node = Node(settings, {Role.WORKER, Role.SCHEDULER}, spending_tasks.app, "tests.support.spending_tasks:app")
    await node.engine.open()
    spending_tasks.app.use(node.engine)
    try:
        await node.start()
        tasks = (spending_tasks.on_thread, spending_tasks.in_child, spending_tasks.in_process)
        handles = [await task.submit() for task in tasks]
        loop = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"
        script = a_run(task="shell", payload=msgspec.json.encode({"command": ["sh", "-c", loop]}))
        await node.engine.jobs.submit(script)
        for handle in handles:
            await asyncio.wait_for(handle.result(), 40)
        while await state(node, script.id) is not RunState.SUCCEEDED:
            await asyncio.sleep(0.01)
        usage = await node.engine.store.usage(None, 0, LATEST, "task")
        found = {line.key: line for line in by_line(usage)}
    finally:
        await node.stop()
        await spending_tasks.app.close()
        await node.engine.close()
    for task in tasks:
        line = found[task.name]
        assert 50 * MILLISECOND <= line.cpu <= line.wall + SECOND, task.name
        assert line.units == {"tokens": 3}
    assert found["shell"].cpu > 10 * MILLISECOND
    # What a child shares with others is its own thread's; alone, whatever it started counts, too.
    assert found["in_process"].cpu >= 90 * MILLISECOND
