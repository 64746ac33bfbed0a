"""The warnings of ``mainspring up`` about schedules that its own worker cannot run."""

import pytest

from mainspring import Mainspring
from mainspring.config.node import Node, Role
from mainspring.core.model.schedules.job import Job, JobState
from tests.support.builders import a_job, a_spec

WORKER = {"worker.queues": {"default": 1}, "worker.priorities": {"1": 2, "3": 1}}


@pytest.mark.parametrize(("priority", "warnings"), [(1, 0), (3, 0), (5, 1)])
async def test_a_priority_without_slots_is_warned_about(priority: int, warnings: int) -> None:
    app = Mainspring("memory:")

    @app.task
    async def greet() -> None: ...

    node = Node(app.settings(WORKER), {Role.SCHEDULER, Role.WORKER}, app)
    await node.runtime.open()
    try:
        new = a_job(a_spec(task="greet", priority=priority))
        job = Job(
            id=new.id,
            tenant=new.tenant,
            spec=new.spec,
            version=1,
            state=JobState.SCHEDULED,
            next_fire=None,
            rev=1,
        )
        found = await node.find_obstacles([job])
    finally:
        await node.runtime.close()
    assert len(found) == warnings
    assert all("takes priority 5; they have slots for priorities 1, 3 alone" in words for words in found)
