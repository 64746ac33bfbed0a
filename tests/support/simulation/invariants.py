"""Invariants of every history, with any faults. They follow from the guarantees, not from the implementation.

Each check takes the evidence and yields violations; none means that it holds. Invariants of order and of the ledger
have files of their own.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import MILLISECOND, Micros
from mainspring.core.model.runs.run import Outcome, RunState
from tests.support.simulation import (
    datacenter_invariants,
    ledger_invariants,
    objective_invariants,
    order_invariants,
    policy_invariants,
    queue_invariants,
)
from tests.support.simulation.acts import act_of
from tests.support.simulation.evidence import OVER, B, Evidence, Move, Q, R, S
from tests.support.simulation.history import History

NOT_STARTED_ENDS = OVER - {RunState.SUCCEEDED}
#: All legal moves. A running run that is cancelled stays in its state.
LEGAL: dict[RunState | None, frozenset[RunState]] = {
    None: frozenset({S, B, Q}),
    S: frozenset({B, Q}) | NOT_STARTED_ENDS,
    # One reason after the other may block it.
    B: frozenset({B, S, Q}) | NOT_STARTED_ENDS,
    Q: frozenset({B, R}) | NOT_STARTED_ENDS,
    R: frozenset({R, S, B, Q}) | (OVER - {RunState.SKIPPED}),
}
#: A run fails as poison after it killed this many processes alone, or was present at this many deaths.
POISON = 3
TOO_MANY_DEATHS = 6
#: The largest drift between two clocks within a minute.
DRIFT: Micros = 10 * MILLISECOND


def violations(history: History) -> list[str]:
    """All violations in a history."""
    evidence = Evidence(history)
    found = [f"{check.__name__}: {sentence}" for check in CHECKS for sentence in check(evidence)]
    return found + [f"ledger: {sentence}" for sentence in ledger_invariants.violations(history)]


def nothing_is_lost(evidence: Evidence) -> Iterator[str]:
    for run in dict.fromkeys(evidence.truth.accepted):
        if run not in evidence.moves:
            yield f"{run} was accepted and is not there"
    for run, moves in evidence.moves.items():
        last = moves[-1].after
        if last.state not in OVER:
            yield f"{run} is stuck: {last.state} since {moves[-1].step.at}, attempt {last.attempt}"
        elif last.state is RunState.SUCCEEDED:
            returned = {call.fence for call in evidence.calls[run] if call.how == "returned"}
            if last.ended_by not in returned:
                yield f"{run} succeeded under fence {last.ended_by}, but no such handler returned"
        elif not last.reason:
            yield f"{run} ended as {last.state} without a reason"
        stored = evidence.truth.runs.get(run)
        if stored is None or stored != last:
            yield f"{run} was changed without anybody noticing: {last} became {stored}"
    for run in evidence.truth.runs:
        if run not in evidence.moves:
            yield f"{run} came from nowhere"


def nothing_was_logged_as_an_error(evidence: Evidence) -> Iterator[str]:
    yield from evidence.history.errors


def only_legal_moves(evidence: Evidence) -> Iterator[str]:
    for run, moves in evidence.moves.items():
        ends = [move for move in moves if move.after.state in OVER]
        if len(ends) > 1:
            yield f"{run} ended {len(ends)} times: {[move.after.state for move in ends]}"
        for earlier, later in zip([None, *moves], moves, strict=False):
            known = None if earlier is None else earlier.after
            if known != later.before:
                yield f"{run} changed between two of its moves"
            if not later.edited and later.after.state not in LEGAL.get(later.from_state, frozenset()):
                yield f"{run} went from {later.from_state} to {later.after.state} by {later.step.operation}"


def fences_hold(evidence: Evidence) -> Iterator[str]:
    holders: dict[int, tuple[object, int]] = {}
    for run, moves in evidence.moves.items():
        fence = 0
        for move in moves:
            if move.starts:
                if move.after.fence <= fence:
                    yield f"{run}: fence {move.after.fence} came after {fence}"
                fence = move.after.fence
                claim = (move.after.session, move.after.claim)
                if holders.setdefault(fence, claim) != claim:
                    yield f"{run}: fence {fence} was given to {holders[fence]} and to {claim}"
            elif move.after.fence != fence:
                yield f"{run}: its fence changed to {move.after.fence} without a claim"
    for run, completed in evidence.completed.items():
        fences = [completion.fence for _, completion in completed]
        if len(set(fences)) < len(fences):
            yield f"{run}: a fence had effect twice, among {fences}"
        for step, completion in completed:
            left = [move for move in evidence.moves[run] if move.step is step and move.leaves_running]
            if [move.after.fence for move in left] != [completion.fence]:
                yield f"{run}: a settlement under fence {completion.fence} had effect on {left}"
    for run, calls in evidence.calls.items():
        given = {move.after.fence for move in evidence.moves[run] if move.starts}
        places: dict[int, str] = {}
        for call in calls:
            if call.fence not in given:
                yield f"{run}: {call.process} ran it under fence {call.fence}, which nobody gave"
            if places.setdefault(call.fence, call.process) != call.process:
                yield f"{run}: {places[call.fence]} and {call.process} ran it under fence {call.fence}"
        starts = Counter(call.fence for call in calls)
        for fence, times in starts.items():
            if times > 1:
                yield f"{run}: fence {fence} started {times} handlers"
    # The store completes a running run only under its current fence.
    for run, moves in evidence.moves.items():
        applied = {(id(step), completion.fence) for step, completion in evidence.completed[run]}
        for move in moves:
            if move.leaves_running and move.step.operation == "complete":
                assert move.before is not None
                if (id(move.step), move.before.fence) not in applied:
                    yield f"{run} was completed by {move.step.process} under another fence than {move.before.fence}"


def nothing_is_early(evidence: Evidence) -> Iterator[str]:
    # The invariants of the ledger check these.
    ticks = (tick for step in evidence.history.steps for tick in step.ticks)
    moved = {tick.run_id for tick in ticks if tick.reason.startswith("moved before")}
    for run, moves in evidence.moves.items():
        first = moves[0].after
        wanted = evidence.truth.submitted.get(run)
        if wanted is not None:
            due = wanted.at if wanted.at is not None else first.created_at + wanted.delay
            # A run whose parents had ended already is due at its submit, and a unique one may be delayed.
            late = wanted.after is not None and first.due == max(due, first.created_at)
            if first.due != due and not late and first.unique is None:
                yield f"{run} was to be due at {due}, and is at {first.due}"
        elif first.scheduled_at is None or (first.due < first.scheduled_at and run not in moved):
            yield f"{run} is due at {first.due}, before its tick at {first.scheduled_at}"
        for move in moves:
            ready = move.after.state in (Q, B, R) and move.from_state in (None, S, B, Q)
            if ready and move.step.at < move.after.due and not move.after.waits_for_parents:
                yield f"{run} was {move.after.state} {move.after.due - move.step.at} µs early"
        for call in evidence.calls[run]:
            if call.started < first.due and first.unique is None:
                yield f"{run}: its handler started {first.due - call.started} µs early"


def limits_are_kept(evidence: Evidence) -> Iterator[str]:
    """No run starts after its limit, and none expires, fails for a deadline or times out too early."""
    for run, moves in evidence.moves.items():
        timeouts = {
            completion.fence for _, completion in evidence.completed[run] if completion.outcome is Outcome.TIMEOUT
        }
        for move in moves:
            at, row = move.step.at, move.after
            in_time = row.start_by is None or row.start_by >= at
            if move.starts and (
                (row.attempt == 1 and not in_time) or (row.deadline is not None and row.deadline <= at)
            ):
                yield f"{run} was started after its limit"
            if row.reason == "expired" and row.state in OVER and (in_time or row.attempt > 0):
                yield f"{run} expired at {at} after {row.attempt} attempts, and may start by {row.start_by}"
            # A worker measures by its own clock, which may be a little fast.
            latest = at + evidence.truth.clock_steps + DRIFT
            if row.reason == "deadline" and row.state in OVER and (row.deadline is None or row.deadline > latest):
                yield f"{run} failed for its deadline at {at}, which is {row.deadline}"
            if move.leaves_running and row.fence in timeouts and row.attempt_until > latest:
                yield f"{run} timed out {row.attempt_until - at} µs too soon"


def attempts_add_up(evidence: Evidence) -> Iterator[str]:
    for run, moves in evidence.moves.items():
        outcomes = Counter(completion.outcome for _, completion in evidence.completed[run])
        starts = sum(move.starts for move in moves)
        returned = sum(move.leaves_running and move.step.operation == "heartbeat" for move in moves)
        last = moves[-1].after
        charged = starts - returned - outcomes[Outcome.RELEASED]
        if last.attempt != charged:
            yield f"{run} has {last.attempt} attempts, but {charged} of {starts} claims are to be charged"
        if last.lost != outcomes[Outcome.LOST]:
            yield f"{run} was lost {outcomes[Outcome.LOST]} times, not {last.lost}"
        failures = outcomes[Outcome.ERROR] + outcomes[Outcome.TIMEOUT]
        allowed = 1 if last.policy.guarantee == "at-most-once" else last.policy.retry.max_retries + 1
        if failures > allowed:
            yield f"{run} failed {failures} times and may {allowed} times"
        if last.state is RunState.FAILED and last.reason in ("error", "timeout") and failures != allowed:
            yield f"{run} was given up after {failures} of {allowed} failures"
        numbers = {move.after.fence: move.after.attempt for move in moves if move.starts}
        for call in evidence.calls[run]:
            if call.attempt != numbers.get(call.fence):
                yield f"{run}: its handler got attempt {call.attempt}, the store says {numbers.get(call.fence)}"


def only_the_guilty_are_parked(evidence: Evidence) -> Iterator[str]:
    for run, moves in evidence.moves.items():
        last = moves[-1].after
        if last.reason != "poison":
            continue
        guilty = act_of(last.payload).kind == "kill" and last.lost >= POISON
        if not guilty and last.lost < TOO_MANY_DEATHS:
            yield f"{run} was parked as poison after {last.lost} deaths, and is innocent"


def at_most_once_is_kept(evidence: Evidence) -> Iterator[str]:
    for run, calls in evidence.calls.items():
        if len(calls) > 1 and evidence.last(run).policy.guarantee == "at-most-once":
            yield f"{run} is at most once, and was started {len(calls)} times"


def cancels_hold(evidence: Evidence) -> Iterator[str]:
    for run, moves in evidence.moves.items():
        asked = False
        for move in moves:
            if asked and move.after.state in (S, B, Q, R) and move.after.state is not move.from_state:
                yield f"{run} went to {move.after.state} after it was cancelled"
            if asked and move.after.cancel_at is None:
                yield f"{run}: its cancel was forgotten"
            asked = asked or move.after.cancel_at is not None
            if move.after.state is RunState.CANCELLED and move.from_state is R:
                yield from _has_stopped(evidence, move)
        if moves[-1].after.state is RunState.CANCELLED and not asked:
            yield f"{run} was cancelled, and nobody asked for it"


def _has_stopped(evidence: Evidence, move: Move) -> Iterator[str]:
    """``cancelled`` means that the handler has ended, unless its worker is lost or the handler ignored its timeout."""
    run, fence = move.after.id, move.after.fence
    completed = [completion for step, completion in evidence.completed[run] if completion.fence == fence]
    if any(one.outcome is Outcome.LOST or "did not stop it" in (one.error or "") for one in completed):
        return
    for call in evidence.calls[run]:
        if call.fence == fence and (call.ended_order is None or call.ended_order > move.step.order):
            yield f"{run} was cancelled by {move.step.process} while {call.process} still ran it under fence {fence}"


def the_sweeper_finds_nothing(evidence: Evidence) -> Iterator[str]:
    for step in evidence.history.steps:
        if step.found:
            yield f"at {step.at} a sweep found {step.found}: {[change.after.id for change in step.runs]}"


def nothing_runs_twice_at_once(evidence: Evidence) -> Iterator[str]:
    """A worker stops its handlers before its lease expires, unless it is frozen or a handler ignores the stop."""
    if evidence.truth.clock_steps:
        return
    for run, calls in evidence.calls.items():
        if act_of(evidence.last(run).payload).kind == "stubborn":
            continue
        for earlier, later in pairwise(calls):
            if earlier.ended_order is not None and earlier.ended_order < later.order:
                continue
            frozen = any(
                process == earlier.process
                and since <= later.started
                and (earlier.ended is None or since <= earlier.ended)
                for process, since, _ in evidence.truth.freezes
            )
            if not frozen:
                yield f"{run}: {later.process} began while {earlier.process} still ran it"


def every_change_is_published(evidence: Evidence) -> Iterator[str]:
    published = Counter((run, batch.kind) for batch in evidence.truth.events for run in batch.runs)
    made = {(run, batch.at) for batch in evidence.truth.events if batch.kind == "run.submitted" for run in batch.runs}
    # A run that was blocked and promoted within one transaction may be published as queued, too.
    needless = Counter(
        (run, batch.kind)
        for batch in evidence.truth.events
        if batch.kind == "run.queued"
        for run in batch.runs
        if (run, batch.at) in made
    )
    happened: Counter[tuple[RunId, str]] = Counter()
    for run, moves in evidence.moves.items():
        outcomes = {(id(step), completion.fence): completion.outcome for step, completion in evidence.completed[run]}
        for move in moves:
            event = _event(move, outcomes.get((id(move.step), move.after.fence), Outcome.RELEASED))
            if event:
                happened[run, event] += 1
    for run, event in sorted(pair for pair in set(published) | set(happened) if pair[1].startswith("run.")):
        if not published[run, event] - needless[run, event] <= happened[run, event] <= published[run, event]:
            times = published[run, event]
            yield f"{run}: {event} happened {happened[run, event]} times and was published {times} times"


def _event(move: Move, outcome: Outcome) -> str:
    before, after = move.from_state, move.after.state
    if before is None:
        return "run.submitted"
    if after in OVER:
        return f"run.{after}"
    if before is R and after is R:
        return "run.cancel_requested"
    if before is after:
        return ""
    if before is R:
        return {Outcome.RELEASED: "run.released", Outcome.LOST: "run.lost"}.get(outcome, "run.retried")
    return {Q: "run.queued", R: "run.started"}.get(after, "")


CHECKS = (
    nothing_was_logged_as_an_error,
    nothing_is_lost,
    only_legal_moves,
    fences_hold,
    nothing_is_early,
    limits_are_kept,
    attempts_add_up,
    only_the_guilty_are_parked,
    at_most_once_is_kept,
    cancels_hold,
    the_sweeper_finds_nothing,
    nothing_runs_twice_at_once,
    every_change_is_published,
    *order_invariants.CHECKS,
    *policy_invariants.CHECKS,
    *queue_invariants.CHECKS,
    *objective_invariants.CHECKS,
    *datacenter_invariants.CHECKS,
)
