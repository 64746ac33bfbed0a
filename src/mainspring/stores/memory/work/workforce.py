"""Memory store: operations of workers, which open sessions, claim runs and report outcomes."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from heapq import merge
from typing import assert_never

import msgspec

from mainspring.core.model.base.ids import RunId, SessionId
from mainspring.core.model.base.instant import Instant, Micros
from mainspring.core.model.limits.limits import Ending
from mainspring.core.model.limits.queues import Candidate, Choice, SlotRequest, TurnOrder, choose, made
from mainspring.core.model.runs.completion import Completion, CompletionAnswer
from mainspring.core.model.runs.run import HeldRun, Outcome, RunState
from mainspring.core.model.runs.view import AttemptView
from mainspring.core.ports.storage.answers import HeartbeatAnswer
from mainspring.core.store import Demand, NewSession
from mainspring.stores.memory.rows import RunRow, SessionRow
from mainspring.stores.memory.tables import Tables

#: Maximum number of children decided right after a completion; ``resolve`` decides the others.
FEW_CHILDREN = 100


class MemoryWorkers:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def open_session(self, session: NewSession) -> SessionId:
        with self._tables.transaction() as now:
            row = SessionRow(
                id=SessionId(len(self._tables.sessions) + 1),
                name=session.name,
                kind=session.kind,
                started_at=now,
                lease_until=now + session.ttl,
                version=session.version,
                datacenter=session.datacenter,
                queues=session.queues,
                tasks=session.tasks,
                labels=session.labels,
                priorities=session.priorities,
                slots=session.slots,
                lease=session.ttl,
                owner=session.owner,
                serves=session.serves,
            )
            self._tables.sessions[row.id] = row
            self._tables.record_worker_event("worker.joined", row)
            return row.id

    async def heartbeat(
        self, session: SessionId, ttl: Micros, held: Collection[RunId], pending: Collection[int], last_claim: int
    ) -> HeartbeatAnswer:
        tables = self._tables
        with tables.transaction() as now:
            row = tables.sessions.get(session)
            if row is None or not row.live:
                return HeartbeatAnswer(now=now, alive=False)
            row.lease_until = now + ttl
            known, unanswered = set(held), set(pending)
            running = [tables.runs[run] for run in tables.running_by_session[session]]
            unknown = [
                run
                for run in running
                if run.id not in known and run.claim not in unanswered and run.claim <= last_claim
            ]
            for run in unknown:
                # The worker never received this attempt, so it does not count.
                run.attempt -= 1
                self._continue(run, RunState.QUEUED, run.rank, Outcome.RELEASED)
            cancels = tuple(run.id for run in running if run.id in known and run.cancel_at is not None)
            return HeartbeatAnswer(now=now, alive=True, cancels=cancels, returned=len(unknown), draining=row.draining)

    async def renew_leases(self, leases: Sequence[tuple[SessionId, Micros]]) -> list[HeartbeatAnswer]:
        return [await self.heartbeat(session, ttl, (), (), -1) for session, ttl in leases]

    async def claim(self, session: SessionId, number: int, demands: Sequence[Demand]) -> list[HeldRun]:
        tables = self._tables
        with tables.transaction() as now:
            claimant = tables.find_live_session(session)
            if claimant is None or claimant.draining:
                return []
            chosen: list[RunRow] = []
            for demand in demands:
                found = self._choose_best(claimant, demand, now)
                if found:
                    fence = chosen[0].fence if chosen else tables.next_fence()
                    for run in found:
                        tables.start(run, session, number, fence)
                    chosen += found
            held = [run.held() for run in chosen]
            for run, one in zip(chosen, held, strict=True) if tables.pauses else ():
                one.ready_at = max(run.ready_at, tables.find_resume_time(run, now))
            for one in held if tables.queue_policies else ():
                one.limited = tables.get_queue_policy(one.queue).concurrency is not None
            return held

    def _choose_best(self, claimant: SessionRow, demand: Demand, now: Instant) -> list[RunRow]:
        tables = self._tables
        if demand.queue in tables.weighted or tables.get_queue_policy(demand.queue).looks_closely:
            return self._choose_by_policy(claimant, msgspec.structs.replace(demand, runs=None), now)
        best: list[RunRow] = []
        room: dict[str, int] = {}
        for run in self._find_candidates(claimant, demand, now):
            if len(best) >= demand.limit:
                break
            left = room.setdefault(run.tenant, tables.compute_room(run.tenant))
            if left > 0:
                room[run.tenant] = left - 1
                best.append(run)
        return best

    def _find_candidates(self, claimant: SessionRow, demand: Demand, now: Instant) -> Iterator[RunRow]:
        """Yield the runs that the worker may claim, best first."""
        tables = self._tables
        lines = (
            index.entries
            for label_set, index in tables.ready[demand.queue].items()
            if claimant.may_take(label_set, tables.preferences)
        )
        for _, row in self._find_hinted(demand) if demand.runs is not None else merge(*lines):
            run = tables.runs[RunId(row)]
            if demand.tenant not in (None, run.tenant) or demand.priority not in (None, run.priority):
                continue
            if not (run.start_missed(now) or run.deadline_missed(now) or tables.is_paused(run, now)):
                yield run

    def _find_hinted(self, demand: Demand) -> list[tuple[int, str]]:
        found = (self._tables.runs.get(run) for run in dict.fromkeys(demand.runs or ()))
        return sorted(
            (run.rank, run.id)
            for run in found
            if run is not None and run.state is RunState.QUEUED and run.queue == demand.queue and run.label_set == ()
        )

    def _choose_by_policy(self, claimant: SessionRow, demand: Demand, now: Instant) -> list[RunRow]:
        tables, queue = self._tables, demand.queue
        policy = tables.get_queue_policy(queue)
        most = demand.limit if policy.concurrency is None else policy.concurrency - tables.count_running(queue)
        groups: dict[str, list[Candidate]] = {}
        own: list[Candidate] = []
        for run in self._find_candidates(claimant, demand, now):
            candidate = Candidate(run.id, run.tenant, run.rank, run.policy.weight)
            if policy.fair and run.target is not None:
                own.append(candidate)
            else:
                groups.setdefault(run.tenant if policy.fair else "", []).append(candidate)
        room = {tenant: tables.compute_room(tenant) for tenant in tables.tenants}
        limit = demand.limit
        chosen: list[Candidate] = []
        if own:
            # Runs for this worker alone do not take part in fair turns.
            chosen = _choose_from(choose(limit, demand.slots, most, None, room), {"": own})
            limit -= sum(min(candidate.weight, demand.slots or limit) for candidate in chosen)
        turns = None
        if policy.fair:
            turns = TurnOrder(tables.queue_clocks[queue], tables.queue_turns[queue], policy.shares, groups)
        chosen += _choose_from(choose(limit, demand.slots, most - len(chosen), turns, room), groups)
        if turns is not None:
            tables.queue_clocks[queue], tables.queue_turns[queue] = turns.clock, turns.kept()
        return [tables.runs[candidate.id] for candidate in chosen]

    async def complete(self, completions: Sequence[Completion]) -> list[CompletionAnswer]:
        with self._tables.transaction() as now:
            answers = [self._complete(completion, now) for completion in completions]
            self._tables.decide_children(FEW_CHILDREN)
            return answers

    def _complete(self, completion: Completion, now: Instant) -> CompletionAnswer:
        tables = self._tables
        run = tables.runs.get(completion.run)
        if run is None:
            return CompletionAnswer.STALE
        if run.state is not RunState.RUNNING or run.fence != completion.fence:
            return CompletionAnswer.DUPLICATE if self._completed_before(run, completion) else CompletionAnswer.STALE
        if completion.outcome is not Outcome.SUCCESS:
            tables.attempts[run.id].append(_build_attempt(run, completion, now))
        if completion.outcome in (Outcome.ERROR, Outcome.TIMEOUT, Outcome.LOST):
            tables.get_minute_counts(run)["retried"] += 1
        tables.count_cost(run, completion)
        if completion.outcome is Outcome.RELEASED:
            run.attempt -= 1
        elif completion.outcome is Outcome.LOST:
            run.lost += 1
        match completion.state:
            case RunState.SCHEDULED:
                due = now + completion.delay
                if run.cancel_at is None:
                    due = tables.compute_retry_due(run, due)
                self._continue(run, completion.state, due, completion.outcome)
            case RunState.QUEUED:
                released = completion.outcome is Outcome.RELEASED
                self._continue(
                    run, completion.state, run.rank if released else tables.compute_rank(run), completion.outcome
                )
            case RunState.SUCCEEDED | RunState.FAILED | RunState.CANCELLED:
                tables.end(
                    run,
                    completion.state,
                    completion.reason,
                    ended_by=completion.fence,
                    result=completion.result,
                    error=completion.error,
                    fingerprint=completion.fingerprint,
                    ending=_classify_for_breaker(completion.outcome),
                )
            case _:
                raise AssertionError(f"an attempt cannot end in {completion.state}")
        return CompletionAnswer.ACCEPTED

    def _completed_before(self, run: RunRow, completion: Completion) -> bool:
        """Report whether this outcome was applied before, under the same fence.

        A success is not stored as an attempt, so the run itself is compared.
        """
        if completion.outcome is Outcome.SUCCESS:
            return run.state is RunState.SUCCEEDED and run.ended_by == completion.fence
        return any(
            (attempt.fence, attempt.outcome) == (completion.fence, completion.outcome)
            for attempt in self._tables.attempts.get(run.id, ())
        )

    def _continue(self, run: RunRow, state: RunState, position: int, outcome: Outcome) -> None:
        """Continue with another attempt, at a due time or a rank. End the run instead if cancellation was requested."""
        if run.cancel_at is not None:
            self._tables.end(run, RunState.CANCELLED, "cancelled", ending=_classify_for_breaker(outcome))
        elif state is RunState.SCHEDULED:
            self._tables.schedule_retry(run, position, _name_event(outcome), _classify_for_breaker(outcome))
        else:
            self._tables.requeue(run, position, _name_event(outcome), _classify_for_breaker(outcome))

    async def close_session(self, session: SessionId) -> None:
        with self._tables.transaction():
            row = self._tables.sessions.get(session)
            if row is not None and row.live:
                row.live = False
                row.lease_until = min(row.lease_until, self._tables.now)
                self._tables.record_worker_event("worker.left", row)


def _choose_from(choice: Choice, groups: Mapping[str, list[Candidate]]) -> list[Candidate]:
    """Make a choice among the candidates of each group."""

    def find(wanted: SlotRequest) -> dict[str, list[Candidate]]:
        return {
            group: [
                candidate
                for candidate in groups.get(group, ())
                if candidate.id not in wanted.seen and candidate.tenant not in wanted.full
            ][:count]
            for group, count in wanted.most.items()
        }

    return made(choice, find)


def _build_attempt(run: RunRow, completion: Completion, now: Instant) -> AttemptView:
    assert run.started_at is not None
    return AttemptView(
        run_id=run.id,
        fence=run.fence,
        number=run.attempt,
        outcome=completion.outcome,
        reason=completion.reason,
        error=completion.error,
        started_at=run.started_at,
        ended_at=now,
    )


def _classify_for_breaker(outcome: Outcome) -> Ending:
    """Return what the outcome of an attempt means for the breaker of its task."""
    match outcome:
        case Outcome.SUCCESS:
            return "succeeded"
        case Outcome.ERROR | Outcome.TIMEOUT:
            return "failed"
        case Outcome.LOST | Outcome.CANCELLED | Outcome.RELEASED:
            return "other"
        case _:
            assert_never(outcome)


def _name_event(outcome: Outcome) -> str:
    match outcome:
        case Outcome.RELEASED:
            return "run.released"
        case Outcome.LOST:
            return "run.lost"
        case Outcome.ERROR | Outcome.TIMEOUT | Outcome.SUCCESS | Outcome.CANCELLED:
            return "run.retried"
        case _:
            assert_never(outcome)
