"""The processor time of handlers, measured in real threads and processes."""

import sys

import msgspec
import pytest

from mainspring.config.loading import load
from mainspring.config.node import Node, Role
from mainspring.core.model.base.instant import LATEST, MILLISECOND, SECOND
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.usage import by_line
from tests.support import spending_tasks
from tests.support.builders import a_run
from tests.support.waiting import eventually

pytestmark = pytest.mark.system


async def test_usage_has_the_processor_time_of_threads_and_processes() -> None:
    settings = load({"store": "memory:", "worker.children": "1", "tasks.commands": "true"})
    node = Node(settings, {Role.WORKER, Role.SCHEDULER}, spending_tasks.app, "tests.support.spending_tasks:app")
    await node.runtime.open()
    spending_tasks.app.use(node.runtime)
    try:
        await node.start()
        tasks = (spending_tasks.on_thread, spending_tasks.in_child, spending_tasks.in_process)
        handles = [await task.submit() for task in tasks]
        burn = "import time\nwhile time.process_time() < 0.02: pass"
        script = a_run(task="shell", payload=msgspec.json.encode({"command": [sys.executable, "-c", burn]}))
        await node.runtime.jobs.submit(script)
        for handle in handles:
            await handle.result("2m")

        async def succeeded() -> bool:
            [view] = await node.runtime.store.runs([script.id])
            return view is not None and view.state is RunState.SUCCEEDED

        await eventually(succeeded)
        usage = await node.runtime.store.usage(None, 0, LATEST, "task")
        found = {line.key: line for line in by_line(usage)}
    finally:
        await node.stop()
        await spending_tasks.app.close()
        await node.runtime.close()
    for task in tasks:
        line = found[task.name]
        assert 50 * MILLISECOND <= line.cpu <= line.wall + SECOND, task.name
        assert line.units == {"tokens": 3}
    assert found["shell"].cpu >= 20 * MILLISECOND
    # In a shared child only the thread of the run counts. Alone in a process, its other threads count, too.
    assert found["in_process"].cpu >= 90 * MILLISECOND
