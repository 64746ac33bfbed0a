"""Moving the logs of runs out of the store."""

import pytest

from mainspring.core.model.base.ids import RunId
from mainspring.core.ports.storage.catalog import LogReport
from tests.support.builders import a_run
from tests.support.store_harness import Harness

pytestmark = pytest.mark.api


async def start_with_logs(harness: Harness, count: int, lines: int = 3) -> list[RunId]:
    """Start runs that log some lines; return them by id."""
    held = await harness.start(*(a_run() for _ in range(count)))
    reports = [LogReport(run=one.id, fence=one.fence, text=f"{n}") for one in held for n in range(lines)]
    assert all(await harness.store.append_log(reports))
    return sorted(one.id for one in held)


async def test_runs_with_logs_are_listed_by_id(harness: Harness) -> None:
    runs = await start_with_logs(harness, 5)
    await harness.start(a_run())
    assert await harness.store.logged_runs(None, 100) == runs
    assert await harness.store.logged_runs(None, 2) == runs[:2]
    assert await harness.store.logged_runs(runs[1], 2) == runs[2:4]
    assert await harness.store.logged_runs(runs[-1], 2) == []


async def test_runs_without_logs_are_not_listed(harness: Harness) -> None:
    await harness.start(a_run())
    assert await harness.store.logged_runs(None, 10) == []


async def test_dropping_logs_keeps_those_of_other_runs(harness: Harness) -> None:
    one, other, third = await start_with_logs(harness, 3)
    await harness.store.forget_logs([one, third])
    assert await harness.store.log(one, 0, 10) == []
    assert [line.text for line in await harness.store.log(other, 0, 10)] == ["0", "1", "2"]
    assert await harness.store.logged_runs(None, 10) == [other]
    # A repetition does no harm.
    await harness.store.forget_logs([one, third])
    await harness.store.forget_logs([])
