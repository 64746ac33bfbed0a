"""Logs of runs that have ended are taken out of the store."""

import pytest

from mainspring.domain.ids import RunId
from mainspring.ports.catalog import LogReport
from tests.support.builders import a_run
from tests.support.store_harness import Harness

pytestmark = pytest.mark.api


async def printed(harness: Harness, count: int, lines: int = 3) -> list[RunId]:
    """Runs that have printed something and run, by id."""
    held = await harness.start(*(a_run() for _ in range(count)))
    reports = [LogReport(run=one.id, fence=one.fence, text=f"{n}") for one in held for n in range(lines)]
    assert all(await harness.store.append_log(reports))
    return sorted(one.id for one in held)


async def test_runs_with_lines_come_by_id(harness: Harness) -> None:
    runs = await printed(harness, 5)
    await harness.start(a_run())
    assert await harness.store.logged_runs(None, 100) == runs
    assert await harness.store.logged_runs(None, 2) == runs[:2]
    assert await harness.store.logged_runs(runs[1], 2) == runs[2:4]
    assert await harness.store.logged_runs(runs[-1], 2) == []


async def test_without_lines_there_are_none(harness: Harness) -> None:
    await harness.start(a_run())
    assert await harness.store.logged_runs(None, 10) == []


async def test_what_is_forgotten_is_gone_and_the_rest_stays(harness: Harness) -> None:
    one, other, third = await printed(harness, 3)
    await harness.store.forget_logs([one, third])
    assert await harness.store.log(one, 0, 10) == []
    assert [line.text for line in await harness.store.log(other, 0, 10)] == ["0", "1", "2"]
    assert await harness.store.logged_runs(None, 10) == [other]
    # Whoever does it a second time does no harm.
    await harness.store.forget_logs([one, third])
    await harness.store.forget_logs([])
