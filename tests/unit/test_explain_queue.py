"""Explanations of runs that wait because of the policy of their queue."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import MINUTE, SECOND
from mainspring.core.model.explain.limits import NAMED
from mainspring.core.model.explain.queues import reason_of_full_queue
from mainspring.core.model.explain.runs import RunSituation, explain
from mainspring.core.model.limits.queues import QueuePolicy, RetryBudget
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.model.runs.run import RunState
from tests.unit.test_explain import NOW, a_view

QUEUED = a_view(RunState.QUEUED)


@given(st.integers(1, 20), st.integers(0, 20), st.integers(0, 20))
def test_a_full_queue_is_a_reason_and_names_some_of_its_runs(most: int, running: int, known: int) -> None:
    ids = [RunId(f"{number:032x}") for number in range(min(known, running))]
    reason = reason_of_full_queue(QUEUED, QueuePolicy(concurrency=most), running, ids)
    assert (reason is None) == (running < most)
    if reason is not None:
        assert reason.code == "queue-full"
        assert f"queue 'default' runs {most} at a time" in reason.words
        assert [holder.id for holder in reason.holders] == ids[:NAMED]
        assert ("…" in reason.words) == (0 < len(ids[:NAMED]) < most)


def test_a_queue_without_a_concurrency_limit_is_never_full() -> None:
    assert reason_of_full_queue(QUEUED, QueuePolicy(fair=True), 1_000, []) is None


def test_a_fair_queue_explains_turns_and_estimates_no_start() -> None:
    facts = RunSituation(now=NOW, workers=1, workers_knowing_task=1, ahead=7, rate=1.0)
    assert explain(QUEUED, facts).because[0].code == "behind"
    fair = QueuePolicy(fair=True, shares={"default": 3})
    found = explain(QUEUED, RunSituation(now=NOW, workers=1, workers_knowing_task=1, ahead=7, rate=1.0, policy=fair))
    [reason] = found.because
    assert (reason.code, found.estimated_start) == ("turns", None)
    assert reason.words == (
        "tenants take turns in queue 'default', and 'default' has 3 turns where others have one;"
        " 7 runs of all tenants have a better rank"
    )


def test_a_heavy_run_waits_for_more_than_one_slot() -> None:
    heavy = msgspec.structs.replace(QUEUED, policy=RunPolicy(weight=4))
    [words] = explain(heavy, RunSituation(now=NOW, workers=1, workers_knowing_task=1, ahead=0)).reasons
    assert "4 free slots" in words


def test_a_retry_mentions_the_retry_budget_of_its_queue() -> None:
    policy = QueuePolicy(retries=RetryBudget(most=10, per=SECOND))
    [words] = explain(
        a_view(RunState.SCHEDULED, due=NOW + MINUTE, attempt=1), RunSituation(now=NOW, policy=policy)
    ).reasons
    assert words.endswith("queue 'default' allows 10/1s retries")
