"""Runs with dependencies, in virtual time."""

from mainspring import Mainspring
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.workflows.dependencies import DependencyRule
from mainspring.testing import TestScheduler
from tests.support.builders import a_run, an_id


async def test_children_in_other_queues_start_when_their_parents_have_ended() -> None:
    app = Mainspring()
    order: list[str] = []

    @app.task(queue="first")
    async def extract() -> None:
        order.append("extract")

    @app.task(queue="second")
    async def load(part: int) -> None:
        order.append(f"load {part}")

    @app.task(queue="third", retries=0)
    async def report() -> None:
        order.append("report")

    def a_call(task: str, queue: str, payload: bytes = b"{}", after: tuple[RunId, ...] = ()) -> NewRun:
        parents = [a_run(id=parent) for parent in after]
        return a_run(id=an_id(), task=task, queue=queue, payload=payload, after=parents)

    async with TestScheduler(app) as s:
        jobs = (await app.runtime()).jobs
        top = a_call(extract.name, "first")
        parts = [a_call(load.name, "second", b'{"part":%d}' % part, (top.id,)) for part in range(250)]
        last = a_call(report.name, "third", after=tuple(part.id for part in parts))
        start = s.now
        await jobs.submit_many([last, *parts, top])
        await s.run_until_idle()
        assert len(order) == 252
        assert (order[0], order[-1]) == ("extract", "report")
        # Completing a run promotes a hundred of its children. The reaper promotes the others.
        assert (s.now - start).total_seconds() < 2


async def test_a_run_whose_dependency_rule_can_no_longer_hold_is_skipped_at_once() -> None:
    app = Mainspring()

    @app.task
    async def work() -> None: ...

    async with TestScheduler(app) as s:
        jobs = (await app.runtime()).jobs
        parent = a_run(task=work.name, payload=b"{}", delay=3_600_000_000)
        child = a_run(task=work.name, payload=b"{}", after=[parent])
        done = a_run(task=work.name, payload=b"{}", after=[parent, child], rule=DependencyRule.ALL_DONE)
        await jobs.submit_many([parent, child, done])
        await jobs.cancel_runs([parent.id])
        await s.run_until_idle()
        states = {run.id: str(run.state) for run in s.runs(work)}
        assert [states[run.id] for run in (parent, child, done)] == ["cancelled", "skipped", "succeeded"]
