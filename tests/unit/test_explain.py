"""Explanations of a run's state."""

from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import HOUR, MINUTE, SECOND, Instant
from mainspring.core.model.explain.reason import Holder, Reason, over_at
from mainspring.core.model.explain.runs import PausedBy, RunSituation, explain
from mainspring.core.model.limits.queues import NO_POLICY, QueuePolicy, RetryBudget
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.model.runs.run import ENDED, RunState
from mainspring.core.model.runs.view import RunView
from tests.support.views import a_run_view

NOW: Instant = 1_800_000_000 * SECOND
WAITING = (RunState.SCHEDULED, RunState.BLOCKED, RunState.QUEUED)


def a_view(
    state: RunState, *, due: Instant = NOW, attempt: int = 0, reason: str = "", key: str = "", **more: object
) -> RunView:
    policy = RunPolicy(ordering_key=key)
    return a_run_view(state, due=due, created_at=NOW, attempt=attempt, reason=reason, policy=policy, **more)


reasons = st.builds(
    Reason, code=st.just("limit"), words=st.just("w"), until=st.none() | st.integers(NOW - HOUR, NOW + HOUR)
)
facts = st.builds(
    RunSituation,
    now=st.just(NOW),
    workers=st.integers(0, 2),
    workers_knowing_task=st.integers(0, 2),
    paused=st.none() | st.just(PausedBy(tenant=None, queue=None)),
    ahead=st.none() | st.integers(0, 5),
    rate=st.sampled_from([0.0, 2.0]),
    scheduled_by_somebody=st.booleans(),
    at_quota=st.booleans(),
    key_holder=st.none() | st.just("r"),
    policy=st.sampled_from([NO_POLICY, QueuePolicy(fair=True), QueuePolicy(retries=RetryBudget(most=1, per=SECOND))]),
    also=st.lists(reasons, max_size=2).map(tuple),
)


@given(st.sampled_from(list(RunState)), facts, st.integers(-HOUR, HOUR), st.integers(0, 3))
def test_every_state_has_a_reason_and_only_waiting_runs_an_estimated_start(
    state: RunState, known: RunSituation, later: int, attempt: int
) -> None:
    found = explain(a_view(state, due=NOW + later, attempt=attempt), known)
    assert found.because
    assert all(reason.code and reason.words for reason in found.because)
    assert len({reason.code for reason in found.because if reason.code != "limit"}) >= 1 or known.also
    if state in WAITING:
        assert found.because[: len(known.also)] == list(known.also), "reasons of other rules come first"
        ends = [reason.until for reason in found.because]
        assert (found.estimated_start is None) == (None in ends)
        assert found.estimated_start is None or found.estimated_start >= NOW
    else:
        assert found.estimated_start is None


def test_a_start_is_estimated_only_if_every_reason_has_an_end() -> None:
    one, two = (Reason(code="a", words="a", until=until) for until in (1, 3))
    assert over_at([one, two]) == 3
    assert over_at([one, Reason(code="b", words="b")]) is None
    assert over_at([]) is None


def test_a_blocked_run_names_the_run_that_holds_its_key() -> None:
    [reason] = explain(a_view(RunState.BLOCKED, key="k"), RunSituation(now=NOW, key_holder="abc")).because
    assert (reason.code, reason.holders) == ("ordering-key", (Holder("run", "abc"),))
    [reason] = explain(a_view(RunState.BLOCKED), RunSituation(now=NOW)).because
    assert reason.code == "overlap"


def test_a_run_blocked_by_a_limit_is_explained_by_the_limit() -> None:
    limit = Reason(code="limit", words="3 of customer:7 run", holders=(Holder("key", "customer:7"),))
    assert explain(a_view(RunState.BLOCKED), RunSituation(now=NOW, also=(limit,))).because == [limit]


def test_a_retry_a_release_and_a_future_run_have_different_reasons() -> None:
    for attempt, reason, code in ((0, "", "not-due"), (2, "timeout", "retry"), (0, "released", "put-off")):
        view = a_view(RunState.SCHEDULED, due=NOW + MINUTE, attempt=attempt, reason=reason)
        found = explain(view, RunSituation(now=NOW))
        assert (found.because[0].code, found.estimated_start) == (code, NOW + MINUTE)


def test_a_running_run_names_its_worker_and_its_time_limit() -> None:
    view = a_view(RunState.RUNNING, attempt=1, started_at=NOW - SECOND, session=SessionId(7), executor="w")
    [reason] = explain(view, RunSituation(now=NOW)).because
    assert (reason.holders, reason.until) == ((Holder("worker", "7"),), NOW - SECOND + HOUR)
    [asked] = explain(a_view(RunState.CANCELLING, session=SessionId(7)), RunSituation(now=NOW)).because
    assert (asked.code, asked.holders) == ("cancelling", (Holder("worker", "7"),))


def test_every_final_state_is_explained() -> None:
    for state in ENDED:
        assert explain(a_view(state), RunSituation(now=NOW)).because[0].code == state.value
    expired = explain(a_view(RunState.SKIPPED, reason="expired"), RunSituation(now=NOW))
    assert "startWithin" in expired.reasons[0]
    failed = explain(a_view(RunState.FAILED, reason="error"), RunSituation(now=NOW))
    assert "runs retry" in failed.hints[0]
