"""The tests of order on PostgreSQL with plans that read rows in the order of insertion."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from mainspring.core.model.base.instant import SECOND
from mainspring.stores.postgres import rank_floors
from tests.contracts.test_boundaries_order import (
    test_a_batch_takes_its_key_in_the_order_of_due_time_and_id,
    test_a_claim_takes_the_smaller_id_of_two_equal_runs,
    test_an_older_run_goes_first_after_one_head_start,
    test_due_jobs_and_upcoming_runs_are_cut_after_the_earliest,
    test_expiry_ends_the_run_whose_time_passed_first,
    test_staging_takes_the_oldest_blocked_run_of_all_shards_first,
    test_staging_takes_the_oldest_run_of_a_shard_first,
    test_the_run_that_is_due_first_goes_first,
)
from tests.support.builders import a_run
from tests.support.kept_connections import KeptConnections
from tests.support.plans import read_rows_as_they_lie
from tests.support.rival import open_frozen_store
from tests.support.store_harness import PostgresHarness, ids

__all__ = [
    "test_a_batch_takes_its_key_in_the_order_of_due_time_and_id",
    "test_a_claim_takes_the_smaller_id_of_two_equal_runs",
    "test_an_older_run_goes_first_after_one_head_start",
    "test_due_jobs_and_upcoming_runs_are_cut_after_the_earliest",
    "test_expiry_ends_the_run_whose_time_passed_first",
    "test_staging_takes_the_oldest_blocked_run_of_all_shards_first",
    "test_staging_takes_the_oldest_run_of_a_shard_first",
    "test_the_run_that_is_due_first_goes_first",
]

pytestmark = pytest.mark.postgres


@pytest.fixture
async def harness(
    contract_database: str, monkeypatch: pytest.MonkeyPatch, kept_connections: KeptConnections
) -> AsyncIterator[PostgresHarness]:
    read_rows_as_they_lie(monkeypatch)
    async with open_frozen_store(contract_database, kept_connections) as harness:
        yield harness


async def test_claims_that_start_behind_dead_rows_leave_no_run_out(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("_MANY_DEAD", "_SLOW", "_PAUSE"):
        monkeypatch.setattr(rank_floors, limit, 0)
    runs = [a_run() for _ in range(4)]
    for run in runs:
        await harness.submit(run)
        await harness.move_clock(SECOND)
    worker, claimed = await harness.worker(), []
    for _ in runs:
        claimed += ids(await harness.claim(worker, 1))
        # After each claim, a task looks up where the next one may start.
        await asyncio.gather(*(task for task in asyncio.all_tasks() if task.get_name() == "look-from-front"))
    assert claimed == ids(runs)
