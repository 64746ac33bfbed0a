"""Invariants of order: ranks, ordering keys, slots and punctuality."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import MILLISECOND, MINUTE, SECOND, Instant, Micros
from mainspring.stores.memory.rows import RunRow
from tests.support.simulation.evidence import OVER, B, Evidence, Move, Q, QueueRules, R, S

#: A step of priority is worth this much waiting. Retries and caught-up ticks rank behind live work.
HEAD_START: Micros = 1_000 * SECOND
BEHIND_LIVE_WORK: Micros = MINUTE


def keys_keep_order(evidence: Evidence) -> Iterator[str]:
    holder: dict[tuple[str, str], RunId] = {}
    lines: dict[tuple[str, str], dict[RunId, RunRow]] = defaultdict(dict)
    for step in evidence.history.steps:
        touched = set()
        for change in step.runs:
            run = change.after
            if change.before is not None and change.edited:
                # An edit may free the key, replace it or keep it.
                key = (change.before.tenant, change.before.policy.ordering_key)
                touched.add(key)
                lines[key].pop(run.id, None)
                if holder.get(key) == run.id:
                    del holder[key]
            if not run.policy.ordering_key:
                continue
            key = (run.tenant, run.policy.ordering_key)
            touched.add(key)
            lines[key].pop(run.id, None)
            if run.state in OVER:
                if holder.get(key) == run.id:
                    del holder[key]
            elif run.waits_for_parents:
                continue
            elif run.in_line:
                lines[key][run.id] = run
            elif run.state in (Q, B) and holder.get(key) != run.id:
                if key in holder:
                    yield f"{run.id} got key {key} while {holder[key]} held it"
                ahead = [other.id for other in lines[key].values() if (other.due, other.id) < (run.due, run.id)]
                if ahead:
                    yield f"{run.id} went ahead of {ahead} in key {key}"
                holder[key] = run.id
            elif run.state is S and change.before and change.before.state is R and holder.get(key) != run.id:
                yield f"{run.id} lost its key {key} between two attempts"
        for key in sorted(touched):
            if lines[key] and key not in holder:
                yield f"{sorted(lines[key])} wait for key {key}, which nobody holds"


def calm_is_punctual(evidence: Evidence) -> Iterator[str]:
    for begins, ends in evidence.truth.calm:
        for run, moves in evidence.moves.items():
            for move in moves:
                due = _find_awaited_due_time(move)
                if due is not None and begins <= due < ends:
                    late = move.step.at - due
                    if late > evidence.truth.punctual:
                        yield f"{run} was staged {late / MILLISECOND:.1f} ms late in a calm stretch"
        for step in evidence.history.steps:
            for tick in step.ticks:
                late = step.at - tick.scheduled_at
                if begins <= tick.scheduled_at < ends and late > evidence.truth.punctual:
                    yield f"{tick.job_id}: a tick was {late / MILLISECOND:.1f} ms late in a calm stretch"


def _find_awaited_due_time(move: Move) -> Instant | None:
    """The due time at which a scheduler had to stage the run, if this move ends the wait for it.

    An edit replaces the due time. If the new one has passed, the edit itself stages the run. No scheduler could stage
    it earlier, so the old due time counts: an edit must not find a run that is overdue.
    """
    if move.before is None or move.before.state is not S:
        return None
    if move.edited:
        return move.before.due
    return move.after.due if move.after.state in (Q, B) else None


def slots_are_kept(evidence: Evidence) -> Iterator[str]:
    changes: list[tuple[int, int, str]] = []
    for call in evidence.history.calls:
        worker = f"{call.process.partition('#')[0]}"
        place = f"{call.process} {call.queue}"
        most = evidence.truth.slots[f"{worker} {call.queue}"]
        # A run that weighs more than all slots takes all of them.
        weight = min(evidence.last(call.run).policy.weight, most)
        changes.append((call.order, weight, f"{place} {most}"))
        if call.ended_order is not None:
            changes.append((call.ended_order, -weight, f"{place} {most}"))
    running: Counter[str] = Counter()
    for _, change, place in sorted(changes):
        running[place] += change
        if running[place] > int(place.rpartition(" ")[2]):
            yield f"{place} is the limit, and {running[place]} ran"


def ranks_are_fair(evidence: Evidence) -> Iterator[str]:
    """A run is ranked by its eligible time and its priority, and keeps its rank when it is released."""
    for run, moves in evidence.moves.items():
        for move in moves:
            if move.after.state is not Q or (move.edited and move.from_state is Q):
                continue
            given_back = move.from_state is R and move.after.lost == (move.before or move.after).lost
            if given_back and move.before is not None:
                expected = move.before.rank
            else:
                behind = move.after.late or move.after.attempt > 0
                expected = move.step.at + move.after.priority * HEAD_START + (BEHIND_LIVE_WORK if behind else 0)
            if move.after.rank != expected:
                yield f"{run} has rank {move.after.rank} by {move.step.operation}, expected {expected}"


def the_best_go_first(evidence: Evidence) -> Iterator[str]:
    """Runs start in the order of their ranks, in fair queues within each tenant.

    A claim by hints starts only the named runs, and may pass over better ones. Hints are ignored where a policy decides
    the order.
    """
    queued: dict[str, dict[RunId, RunRow]] = defaultdict(dict)
    rules = QueueRules()
    for step in evidence.history.steps:
        rules.observe(step)
        started: dict[tuple[str, str], list[RunRow]] = defaultdict(list)
        for change in step.runs:
            run = change.after
            queued[run.queue if change.before is None else change.before.queue].pop(run.id, None)
            if run.state is Q:
                queued[run.queue][run.id] = run
            elif run.state is R and change.before is not None and change.before.state is Q:
                started[run.queue, run.tenant if rules.of(run.queue).fair else ""].append(run)
        for (queue, tenant), runs in started.items():
            by_hints = step.named.get(queue, ()) if not rules.of(queue).looks_closely else ()
            if {run.id for run in runs} <= set(by_hints):
                continue
            last = max((run.rank, run.id) for run in runs)
            for run in queued[queue].values():
                if (
                    (run.rank, run.id) < last
                    and tenant in ("", run.tenant)
                    and rules.may_start(run, step.at, evidence.datacenter(step))
                ):
                    yield f"{run.id} stood before {last[1]} in {queue} and was passed over"


def hints_do_not_replace_polls(evidence: Evidence) -> Iterator[str]:
    """A worker that claims by hints has recently polled the queue for its best runs.

    So a run that the broker has lost is overtaken for one poll interval at most while a worker has free slots.
    """
    looked: dict[tuple[str, str], Micros] = {}
    for claim in evidence.history.claims:
        place = claim.process, claim.queue
        if claim.named is None:
            if claim.answered:
                looked[place] = claim.sent
        elif place not in looked or claim.sent - looked[place] > evidence.truth.look_every:
            yield f"{place} claimed by hints at {claim.sent}, and looked at {looked.get(place)}"


CHECKS = (
    keys_keep_order,
    calm_is_punctual,
    slots_are_kept,
    ranks_are_fair,
    the_best_go_first,
    hints_do_not_replace_polls,
)
