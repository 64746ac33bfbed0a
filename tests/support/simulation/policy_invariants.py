"""Invariants of limits, breakers, dependencies and unique keys, computed from the moves alone."""

from collections import defaultdict
from collections.abc import Iterator

import msgspec

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.runs.run import Outcome, RunState
from mainspring.core.model.workflows.dependencies import EndedParent, decide
from mainspring.stores.memory.rows import RunRow
from tests.support.simulation.evidence import OVER, B, Evidence, Move, Q, R, S

Key = tuple[str, str]


def nothing_is_left_over(evidence: Evidence) -> Iterator[str]:
    yield from evidence.truth.leftovers


def concurrency_limits_hold(evidence: Evidence) -> Iterator[str]:
    inside: dict[Key, dict[RunId, None]] = defaultdict(dict)
    for step in evidence.history.steps:
        most: dict[Key, int] = {}
        for change in step.runs:
            run = change.after
            for limit in () if change.before is None else change.before.policy.limits:
                # Its limits may have changed.
                inside[run.tenant, limit.key].pop(run.id, None)
            for limit in run.policy.limits:
                if limit.per is None:
                    key = (run.tenant, limit.key)
                    most[key] = limit.most
                    inside[key].pop(run.id, None)
                    if run.state in (Q, R):
                        inside[key][run.id] = None
        for key, number in most.items():
            if len(inside[key]) > number:
                yield f"at {step.at} {list(inside[key])} were inside of {key} at once, and {number} may"


def rate_limits_hold(evidence: Evidence) -> Iterator[str]:
    starts: dict[tuple[str, str, int], list[Instant]] = defaultdict(list)
    for moves in evidence.moves.values():
        for move in moves:
            for limit in move.after.policy.limits if move.starts else ():
                if limit.per is not None:
                    starts[move.after.tenant, limit.key, limit.per].append(move.step.at)
                    starts[move.after.tenant, limit.key, limit.per].sort()
    most = {(limit.key, limit.per): limit.most for run in evidence.truth.runs.values() for limit in run.policy.limits}
    for (tenant, key, per), times in starts.items():
        number = most[key, per]
        for first, last in zip(times, times[number:], strict=False):
            if last - first < per:
                yield f"{number + 1} of {key} of {tenant} started within {last - first} µs, and {number} may in {per}"


class _Breaker(msgspec.Struct):
    failures: list[Instant] = []
    opens_at: Instant | None = None
    ahead: RunId | None = None


def only_one_goes_ahead_of_an_open_breaker(evidence: Evidence) -> Iterator[str]:
    breakers: dict[Key, _Breaker] = defaultdict(_Breaker)
    for step in evidence.history.steps:
        outcomes = {
            (completion.run, completion.fence): completion.outcome
            for completion, decision in step.completions
            if decision == "accepted"
        }
        for change in step.runs:
            run, rule = change.after, change.after.policy.breaker
            if rule is None:
                continue
            state = breakers[run.tenant, run.task]
            move = Move(step, change.before, run)
            if move.starts and state.opens_at is not None:
                if state.ahead is not None or step.at < state.opens_at:
                    yield f"{run.id} started at {step.at} though {run.task} is left alone until {state.opens_at}"
                state.ahead = run.id
            elif move.leaves_running:
                _ended(state, run, outcomes.get((run.id, run.fence)), step.at)


def _ended(state: _Breaker, run: RunRow, outcome: Outcome | None, at: Instant) -> None:
    rule = run.policy.breaker
    assert rule is not None
    failed = outcome in (Outcome.ERROR, Outcome.TIMEOUT)
    if state.opens_at is None:
        if failed:
            state.failures = [*(time for time in state.failures if time > at - rule.within), at]
            if len(state.failures) >= rule.failures:
                state.opens_at = at + rule.pause
    elif state.ahead == run.id:
        state.ahead = None
        if outcome is Outcome.SUCCESS:
            state.opens_at, state.failures = None, []
        elif failed:
            state.opens_at = at + rule.pause


def dependency_rules_hold(evidence: Evidence) -> Iterator[str]:
    ended: dict[RunId, tuple[int, RunState]] = {}
    for run, moves in evidence.moves.items():
        if moves[-1].after.state in OVER:
            ended[run] = moves[-1].step.order, moves[-1].after.state
    for run, moves in evidence.moves.items():
        wanted = evidence.truth.submitted.get(run)
        if wanted is None or wanted.after is None:
            continue
        rule, parents = wanted.after.rule, wanted.after.parents
        went = next((move for move in moves if move.after.state in (S, Q, R) or _waits_elsewhere(move)), None)
        if went is not None:
            known = [ended[parent] for parent in parents if parent in ended]
            before = [state for order, state in known if order <= went.step.order]
            if decide(rule, _count(before, len(parents))) != "go":
                yield f"{run} went while its parents were {before} of {len(parents)}, by rule {rule}"
        last = moves[-1].after
        decision = decide(rule, _count([ended[parent][1] for parent in parents if parent in ended], len(parents)))
        skipped = last.state is RunState.SKIPPED and last.reason.startswith(("parent", "nothing to clean up"))
        if decision == "wait" or (skipped and decision != "skip"):
            yield f"{run} is {last.state} ({last.reason}), and its parents say {decision}"
        if decision == "skip" and not skipped and last.state is not RunState.CANCELLED and last.reason != "replaced":
            yield f"{run} should have been skipped, and is {last.state} ({last.reason})"


def _waits_elsewhere(move: Move) -> bool:
    return move.after.state is B and not move.after.waits_for_parents


def _count(states: list[RunState], parents: int) -> EndedParent:
    succeeded = states.count(RunState.SUCCEEDED)
    return EndedParent(
        parents=parents,
        succeeded=succeeded,
        otherwise=len(states) - succeeded,
        failed=states.count(RunState.FAILED),
    )


def one_run_of_a_unique_key(evidence: Evidence) -> Iterator[str]:
    under_way: dict[Key, dict[RunId, None]] = defaultdict(dict)
    for step in evidence.history.steps:
        touched = set()
        for change in step.runs:
            run = change.after
            if run.unique is not None:
                key = (run.tenant, run.unique.key)
                touched.add(key)
                under_way[key].pop(run.id, None)
                if run.state not in OVER:
                    under_way[key][run.id] = None
        for key in sorted(touched):
            if len(under_way[key]) > 1:
                yield f"at {step.at} {list(under_way[key])} have the unique key {key}"


CHECKS = (
    nothing_is_left_over,
    concurrency_limits_hold,
    rate_limits_hold,
    only_one_goes_ahead_of_an_open_breaker,
    dependency_rules_hold,
    one_run_of_a_unique_key,
)
