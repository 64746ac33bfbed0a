"""The demo application."""

from mainspring.demo.application import app, check_orders, export_orders, publish_orders
from mainspring.testing import TestScheduler


async def test_the_workflow_of_the_demo_succeeds_on_every_tick() -> None:
    async with TestScheduler(app, start="2026-01-01T00:00:01Z") as s:
        await s.advance("70s")
        assert s.runs(export_orders).succeeded == 2
        assert s.runs(check_orders).succeeded == 4
        assert s.runs(publish_orders).succeeded == 2
        assert [run.result for run in s.runs(publish_orders)] == [2, 2]
        exported = s.runs(export_orders)[0]
        assert exported.progress is not None
        assert exported.progress.note == "page 10 of 10"
        assert "\x1b[32m" in s.log(exported)
