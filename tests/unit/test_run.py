"""Run states, their transitions, and the outcomes of attempts."""

from collections.abc import Callable
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import RunId, SessionId
from mainspring.core.model.base.instant import DAY, LATEST, MINUTE, SECOND
from mainspring.core.model.limits.limits import Breaker, Limit
from mainspring.core.model.runs.cause import UNKNOWN, Cause, build_cause
from mainspring.core.model.runs.completion import (
    LOST_AFTER,
    POISON_AFTER,
    Completion,
    complete_cancel,
    complete_failure,
    complete_loss,
    complete_release,
    complete_success,
    tries_again,
)
from mainspring.core.model.runs.handler_errors import GiveUp, RetryLater
from mainspring.core.model.runs.names import (
    MAX_ERROR,
    MAX_NAME,
    MAX_PAYLOAD,
    MAX_TAGS,
    MAX_WEIGHT,
    check_name,
    clean_error,
)
from mainspring.core.model.runs.new_run import About, Idempotency, NewRun, fingerprint_of_request
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.model.runs.retry import LONGEST_DELAY, RetryPolicy
from mainspring.core.model.runs.run import ALONE_AFTER, ENDED, MOVES, HeldRun, Outcome, RunState
from mainspring.core.model.runs.unique import Unique
from tests.support.builders import a_held_run, a_policy, a_run, an_id

NOW = 100 * DAY


# States and transitions


def test_every_state_lists_its_transitions() -> None:
    assert set(MOVES) == set(RunState)


def test_final_states_have_no_transitions() -> None:
    for state in RunState:
        assert state.ended == (not MOVES[state])
        assert state.ended == (state in ENDED)


def test_a_run_can_be_cancelled_until_it_has_ended() -> None:
    for state in set(RunState) - ENDED:
        assert RunState.CANCELLED in MOVES[state]


def test_a_running_run_is_never_skipped() -> None:
    assert RunState.SKIPPED not in MOVES[RunState.RUNNING] | MOVES[RunState.CANCELLING]


def test_a_cancelling_run_moves_only_to_a_final_state() -> None:
    assert MOVES[RunState.CANCELLING] <= ENDED


def test_only_queued_runs_start() -> None:
    assert [state for state in RunState if RunState.RUNNING in MOVES[state]] == [RunState.QUEUED]


def test_every_state_is_reachable_and_leads_to_a_final_state() -> None:
    def reach(start: RunState) -> set[RunState]:
        seen = {start}
        while more := {after for state in seen for after in MOVES[state]} - seen:
            seen |= more
        return seen

    assert reach(RunState.SCHEDULED) == set(RunState)
    assert all(reach(state) & ENDED for state in RunState)


# Outcomes of attempts


held_runs = st.builds(
    lambda lost, more, policy, deadline, unblocks_others, cancel: a_held_run(
        attempt=lost + more,
        lost=lost,
        policy=policy,
        deadline=deadline,
        unblocks_others=unblocks_others,
        cancel_requested=cancel,
    ),
    st.integers(0, 10),
    st.integers(1, 10),
    st.builds(a_policy, retries=st.integers(0, 10), at_most_once=st.booleans()),
    st.none() | st.integers(0, 2 * NOW),
    st.booleans(),
    st.booleans(),
)
ways_to_complete: list[Callable[[HeldRun], Completion]] = [
    lambda held: complete_success(held, b"1"),
    lambda held: complete_failure(held, "boom", Random(0), now=NOW),
    lambda held: complete_failure(held, "slow", Random(0), now=NOW, timed_out=True),
    lambda held: complete_loss(held, blamed=False),
    lambda held: complete_loss(held, blamed=True),
    complete_release,
    lambda held: complete_release(held, "unknown task", MINUTE),
    complete_cancel,
]


@given(held_runs, st.sampled_from(ways_to_complete))
def test_every_completion_is_a_legal_transition_under_the_fence_of_the_run(
    held: HeldRun, end: Callable[[HeldRun], Completion]
) -> None:
    completion = end(held)
    assert completion.state in MOVES[RunState.RUNNING]
    assert (completion.run, completion.fence, completion.unblocks_others) == (held.id, held.fence, held.unblocks_others)
    assert completion.delay == 0 or completion.state is RunState.SCHEDULED
    assert (completion.outcome is Outcome.SUCCESS) == (completion.state is RunState.SUCCEEDED)
    assert completion.state is RunState.SUCCEEDED or completion.reason


@given(held_runs, st.booleans())
def test_an_at_most_once_run_that_may_have_started_is_never_repeated(held: HeldRun, blamed: bool) -> None:
    held.policy = a_policy(at_most_once=True)
    assert complete_loss(held, blamed=blamed).state.ended
    assert complete_failure(held, "boom", Random(0), now=NOW).state is RunState.FAILED


@given(held_runs, st.booleans())
def test_a_lost_run_ends_or_is_requeued_at_once(held: HeldRun, blamed: bool) -> None:
    completion = complete_loss(held, blamed=blamed)
    assert completion.outcome is Outcome.LOST
    assert completion.state.ended or completion.state is RunState.QUEUED


def test_a_run_fails_after_its_last_retry() -> None:
    policy = a_policy(retries=2)
    completions = [
        complete_failure(a_held_run(attempt=attempt, policy=policy), "boom", Random(0), now=NOW)
        for attempt in (1, 2, 3)
    ]
    assert [completion.state for completion in completions] == [RunState.SCHEDULED, RunState.SCHEDULED, RunState.FAILED]
    assert [completion.delay for completion in completions] == [policy.retry.first_delay] * 2 + [0]
    assert {completion.reason for completion in completions} == {"error"}
    assert {completion.error for completion in completions} == {"boom"}


def test_losses_do_not_count_against_the_retries() -> None:
    policy = a_policy(retries=1)
    held = a_held_run(attempt=4, lost=3, policy=policy)
    assert complete_failure(held, "boom", Random(0), now=NOW).state is RunState.SCHEDULED
    held = a_held_run(attempt=5, lost=3, policy=policy)
    assert complete_failure(held, "boom", Random(0), now=NOW).state is RunState.FAILED


causes = st.builds(
    Cause,
    kinds=st.sampled_from([(), ("builtins.ValueError", "builtins.Exception"), ("app.Busy",)]),
    gives_up=st.booleans(),
    after=st.none() | st.integers(-SECOND, 2 * LONGEST_DELAY),
)


@given(held_runs, causes, st.booleans())
def test_a_failure_is_retried_exactly_if_tries_again_is_true(held: HeldRun, cause: Cause, picky: bool) -> None:
    held.deadline = None
    if picky:
        retry = msgspec.structs.replace(held.policy.retry, never_on=("ValueError",))
        held.policy = msgspec.structs.replace(held.policy, retry=retry)
    completion = complete_failure(held, "boom", Random(0), now=NOW, cause=cause)
    assert (completion.state is RunState.SCHEDULED) == tries_again(held, cause)
    assert not (cause.gives_up and tries_again(held, cause))
    assert tries_again(held) or not tries_again(held, cause)
    if completion.state is RunState.SCHEDULED and cause.after is not None:
        assert completion.delay == max(0, min(cause.after, LONGEST_DELAY))


def test_a_handler_can_set_the_retry_delay_or_prevent_a_retry() -> None:
    later = complete_failure(a_held_run(), "busy", Random(0), now=NOW, cause=build_cause(RetryLater(5 * MINUTE)))
    assert (later.state, later.delay, later.reason) == (RunState.SCHEDULED, 5 * MINUTE, "error")
    never = complete_failure(a_held_run(), "bad", Random(0), now=NOW, cause=build_cause(GiveUp("bad address")))
    assert (never.state, never.reason) == (RunState.FAILED, "gave up")
    last = complete_failure(
        a_held_run(attempt=4), "busy", Random(0), now=NOW, cause=build_cause(RetryLater(5 * MINUTE, "still"))
    )
    assert (last.state, last.reason) == (RunState.FAILED, "error")


@pytest.mark.parametrize(("after", "delay"), [(-1, 0), (0, 0), (1, 1), (LONGEST_DELAY + 1, LONGEST_DELAY)])
def test_a_delay_that_a_handler_sets_stays_within_its_bounds(after: int, delay: int) -> None:
    completion = complete_failure(a_held_run(), "busy", Random(0), now=NOW, cause=Cause(after=after))
    assert (completion.state, completion.delay) == (RunState.SCHEDULED, delay)


def test_the_retry_delay_follows_the_number_of_failures_without_losses() -> None:
    retry = RetryPolicy(backoff="list", delays=(SECOND, MINUTE, 2 * MINUTE, 3 * MINUTE))
    held = a_held_run(attempt=3, lost=1, policy=RunPolicy(retry=retry))
    assert complete_failure(held, "boom", Random(0), now=NOW).delay == MINUTE


def test_an_error_of_a_type_that_is_not_retried_fails_at_once() -> None:
    policy = RunPolicy(retry=RetryPolicy(retry_on=("OSError",)))
    held = a_held_run(policy=policy)
    assert complete_failure(held, "x", Random(0), now=NOW, cause=build_cause(KeyError("x"))).reason == "not retried"
    for cause in (build_cause(ConnectionResetError()), UNKNOWN, build_cause(RetryLater(1))):
        assert complete_failure(held, "x", Random(0), now=NOW, cause=cause).state is RunState.SCHEDULED
    # A timeout counts as a timeout, even if the handler raises something else when it is stopped.
    assert complete_failure(held, "x", Random(0), now=NOW, timed_out=True, cause=build_cause(KeyError())).delay > 0


def test_a_timeout_has_its_own_outcome_and_reason() -> None:
    completion = complete_failure(a_held_run(), "stopped", Random(0), now=NOW, timed_out=True)
    assert (completion.outcome, completion.reason) == (Outcome.TIMEOUT, "timeout")


def test_a_failure_past_the_deadline_is_not_retried() -> None:
    held = a_held_run(deadline=NOW)
    completion = complete_failure(held, "boom", Random(0), now=NOW)
    assert (completion.state, completion.reason) == (RunState.FAILED, "deadline")
    assert complete_failure(held, "boom", Random(0), now=NOW - 1).state is RunState.SCHEDULED


@pytest.mark.parametrize(
    ("lost", "blamed", "state"),
    [
        (POISON_AFTER - 2, True, RunState.QUEUED),
        (POISON_AFTER - 1, True, RunState.FAILED),
        (POISON_AFTER - 1, False, RunState.QUEUED),
        (LOST_AFTER - 2, False, RunState.QUEUED),
        (LOST_AFTER - 1, False, RunState.FAILED),
    ],
)
def test_a_run_fails_as_poison_after_losses_that_it_caused_or_after_too_many(
    lost: int, blamed: bool, state: RunState
) -> None:
    completion = complete_loss(a_held_run(attempt=lost + 1, lost=lost), blamed=blamed)
    assert completion.state is state
    assert completion.reason == ("poison" if state is RunState.FAILED else "lost")


def test_a_run_that_was_lost_repeatedly_runs_alone() -> None:
    assert [a_held_run(lost=lost).alone for lost in range(ALONE_AFTER + 2)] == [False, False, True, True]


def test_a_lost_run_with_a_cancel_request_is_cancelled() -> None:
    assert complete_loss(a_held_run(cancel_requested=True), blamed=False).state is RunState.CANCELLED


def test_a_released_run_is_requeued_at_once_or_after_a_delay() -> None:
    assert complete_release(a_held_run()).state is RunState.QUEUED
    completion = complete_release(a_held_run(), "unknown task", MINUTE)
    assert (completion.state, completion.delay, completion.reason) == (RunState.SCHEDULED, MINUTE, "unknown task")


def test_a_success_carries_its_result() -> None:
    assert complete_success(a_held_run(), b"1").result == b"1"
    assert complete_success(a_held_run(), None).result is None


# Validation


@given(st.text(max_size=MAX_ERROR * 2))
def test_a_cleaned_error_is_short_and_valid_text(error: str) -> None:
    cleaned = clean_error(error)
    assert "\x00" not in cleaned
    assert cleaned.encode().decode() == cleaned
    assert len(cleaned) <= MAX_ERROR + 2


def test_only_an_error_beyond_the_limit_is_cut() -> None:
    assert clean_error("x" * MAX_ERROR) == "x" * MAX_ERROR
    assert clean_error("y" + "x" * MAX_ERROR) == "… " + "x" * MAX_ERROR


def test_a_long_error_keeps_its_end() -> None:
    cleaned = clean_error("x" * MAX_ERROR * 2 + "the cause")
    assert cleaned.startswith("… ")
    assert cleaned.endswith("the cause")


def test_a_short_and_valid_error_is_not_changed() -> None:
    assert clean_error("größer 🕰\n  line 2") == "größer 🕰\n  line 2"


@pytest.mark.parametrize("name", ["", " a", "a ", "a\n", "a\x00b", "\ud800", "x" * (MAX_NAME + 1)])
def test_an_invalid_name_is_rejected_by_field(name: str) -> None:
    with pytest.raises(Invalid) as refused:
        check_name("task", name)
    assert refused.value.field == "task"


@pytest.mark.parametrize("name", ["a", "größe", "客户/1", "two words", "x" * MAX_NAME])
def test_printable_names_are_accepted(name: str) -> None:
    assert check_name("task", name) == name


CENTURY = 100 * 366 * DAY


@pytest.mark.parametrize(
    "run",
    [
        a_run(payload=b"x" * MAX_PAYLOAD, key="video 1", at=LATEST, start_within=1, deadline=CENTURY),
        a_run(key="x" * MAX_NAME, at=0, start_within=CENTURY, deadline=1, delay=CENTURY, author="x" * MAX_NAME),
        a_run(target=SessionId(1)),
        a_run(target=SessionId(2**31 - 1)),
        a_run(policy=a_policy(timeout=1, weight=1)),
        a_run(policy=a_policy(timeout=30 * DAY, weight=MAX_WEIGHT)),
        a_run(policy=RunPolicy(trace=f"00-{'a' * 32}-{'b' * 16}-01")),
        a_run(queue="..."),
        a_run(about=About(tags=tuple(map(str, range(MAX_TAGS))), parent=an_id())),
        a_run(about=About(workflow=an_id(), workflow_name="nightly", node="load")),
    ],
)
def test_a_run_at_its_limits_is_accepted(run: NewRun) -> None:
    run.check()


@pytest.mark.parametrize(
    ("run", "field"),
    [
        (a_run(task=""), "task"),
        (a_run(queue="a\n"), "queue"),
        (a_run(tenant="\x00"), "tenant"),
        (a_run(priority=11), "priority"),
        (a_run(payload=b"x" * (MAX_PAYLOAD + 1)), "payload"),
        (a_run(delay=-1), "delay"),
        (a_run(delay=CENTURY + 1), "delay"),
        (a_run(at=-1), "at"),
        (a_run(start_within=0), "startWithin"),
        (a_run(start_within=CENTURY + 1), "startWithin"),
        (a_run(deadline=0), "deadline"),
        (a_run(deadline=CENTURY + 1), "deadline"),
        (a_run(author="x" * (MAX_NAME + 1)), "author"),
        (a_run(target=SessionId(0)), "target"),
        (a_run(target=SessionId(2**31)), "target"),
        (a_run(replay_of=RunId("x")), "replayOf"),
        (a_run(queue="a/b"), "queue"),
        (a_run(queue="."), "queue"),
        (a_run(queue=".."), "queue"),
        (a_run(tenant="*"), "tenant"),
        (a_run(unique=Unique(key="")), "unique.key"),
        (a_run(idempotency=Idempotency("", b"")), "idempotencyKey"),
        (a_run(breaker=Breaker(failures=0)), "breaker.failures"),
        (a_run(limits=(Limit(key="", most=1),)), "limits.key"),
        (a_run(about=About(name=" a")), "name"),
        (a_run(about=About(owner=" a")), "owner"),
        (a_run(about=About(tags=tuple(map(str, range(MAX_TAGS + 1))))), "tags"),
        (a_run(about=About(tags=("a", "a"))), "tags"),
        (a_run(about=About(parent=RunId("x"))), "parent"),
        (a_run(about=About(workflow=RunId("x"), workflow_name="nightly", node="load")), "workflow"),
        (a_run(about=About(workflow=an_id(), workflow_name="", node="load")), "name"),
        (a_run(about=About(workflow=an_id(), workflow_name="nightly", node="")), "nodes"),
        (msgspec.structs.replace(a_run(), placement=" a"), "placement"),
        (a_run(key="x" * (MAX_NAME + 1)), "orderingKey"),
        (a_run(key="\ud800"), "orderingKey"),
        (a_run(policy=a_policy(timeout=0)), "timeout"),
        (a_run(policy=a_policy(timeout=30 * DAY + 1)), "timeout"),
        (a_run(policy=a_policy(weight=0)), "weight"),
        (a_run(policy=a_policy(weight=MAX_WEIGHT + 1)), "weight"),
        (a_run(policy=RunPolicy(trace="00-1-2-01")), "trace"),
        (a_run(policy=a_policy(retries=-1)), "maxRetries"),
    ],
)
def test_an_invalid_run_is_rejected_by_field(run: NewRun, field: str) -> None:
    with pytest.raises(Invalid) as refused:
        run.check()
    assert refused.value.field == field


def test_the_default_policy_is_valid() -> None:
    RunPolicy().check()


def test_a_policy_has_a_limiter_for_each_limit_and_its_breaker() -> None:
    limits = (Limit(key="a", most=1), Limit(key="b", most=1))
    policies = (RunPolicy(), RunPolicy(limits=limits), RunPolicy(breaker=Breaker()))
    assert [len(policy.limiters("default", "greet")) for policy in policies] == [0, 2, 1]
    assert len(RunPolicy(limits=limits, breaker=Breaker()).limiters("default", "greet")) == 3


def test_the_fingerprint_of_a_request_covers_only_fields_that_are_not_defaults() -> None:
    """It is stored, so that a later version must compute the same one."""
    assert fingerprint_of_request("greet", RunPolicy(weight=2)).hex() == "6c60fe2bdc4f55d9ae8fde642251e3e1"
    assert fingerprint_of_request(RunPolicy()) == fingerprint_of_request(RunPolicy(weight=1))
    assert fingerprint_of_request(RunPolicy()) != fingerprint_of_request(RunPolicy(weight=2))
    assert fingerprint_of_request(RunPolicy()) != fingerprint_of_request(RetryPolicy())
