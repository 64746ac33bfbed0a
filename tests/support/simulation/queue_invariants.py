"""Invariants of queues with a policy, computed from the moves alone."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from fractions import Fraction

import msgspec

from mainspring.core.model.base.ids import RunId
from mainspring.stores.memory.rows import RunRow
from tests.support.simulation.evidence import Evidence, Q, QueueRules, R, S
from tests.support.simulation.history import RunChange, Step


def queue_concurrency_holds(evidence: Evidence) -> Iterator[str]:
    """A run starts only below the concurrency limit. Lowering the limit stops no running run."""
    rules, running = QueueRules(), Counter[str]()
    for step in evidence.history.steps:
        rules.observe(step)
        started = dict[str, None]()
        for change in step.runs:
            if change.before is not None and change.before.state is R:
                running[change.before.queue] -= 1
            if change.after.state is R:
                running[change.after.queue] += 1
                if _starts(change):
                    started[change.after.queue] = None
        for queue in started:
            most = rules.of(queue).concurrency
            if most is not None and running[queue] > most:
                yield f"at {step.at} {running[queue]} of {queue} ran at once, and {most} may"


def retries_keep_to_their_budget(evidence: Evidence) -> Iterator[str]:
    """Retries are counted from when the budget was set."""
    rules, counts = QueueRules(), defaultdict[str, Counter[int]](Counter)
    for step in evidence.history.steps:
        if step.queue_policy is not None:
            queue, policy = step.queue_policy
            if policy.retries != rules.of(queue).retries:
                counts[queue].clear()
        rules.observe(step)
        for change in step.runs:
            run = change.after
            budget = rules.of(run.queue).retries
            again = change.before is not None and change.before.state is R and run.state is S
            # A released attempt is no retry.
            if budget is None or not again or run.attempt == 0:
                continue
            period = run.due // budget.per
            counts[run.queue][period] += 1
            if counts[run.queue][period] > budget.most:
                yield f"{run.id}: {counts[run.queue][period]} retries of {run.queue} in a period, and {budget} may"


def nothing_starts_that_is_paused(evidence: Evidence) -> Iterator[str]:
    rules = QueueRules()
    for step in evidence.history.steps:
        rules.observe(step)
        for change in step.runs:
            before, here = change.before, evidence.datacenter(step)
            if _starts(change) and before is not None and not rules.may_start(before, step.at, here):
                yield f"{change.after.id} of {change.after.tenant} in {change.after.queue} started at {step.at}"


class _Line(msgspec.Struct):
    """The account of a tenant in a fair queue since its last start."""

    #: The cost of its last run, by which it may be behind.
    debt: Fraction = Fraction(0)
    #: The cost of runs of others while it had one ready.
    served: dict[str, Fraction] = {}


def tenants_take_turns(evidence: Evidence) -> Iterator[str]:
    """While a tenant waits, another one catches up with it by cost, plus one run at most.

    So a single run waits for at most one run of each other tenant.
    """
    rules, lines = QueueRules(), defaultdict[str, defaultdict[str, _Line]](lambda: defaultdict(_Line))
    queued: dict[str, dict[RunId, RunRow]] = defaultdict(dict)
    for step in evidence.history.steps:
        rules.observe(step)
        started: dict[str, list[RunRow]] = defaultdict(list)
        for change in step.runs:
            if _starts(change) and rules.of(change.after.queue).fair:
                started[change.after.queue].append(change.after)
        for queue, runs in started.items():
            shares, waiting = rules.of(queue).shares, lines[queue]
            ready = [run for run in queued[queue].values() if rules.may_start(run, step.at, evidence.datacenter(step))]
            left = Counter(run.tenant for run in ready)
            for tenant in waiting:
                if not left[tenant]:
                    waiting[tenant] = _Line(waiting[tenant].debt)
            for run in runs:
                left[run.tenant] -= 1
                price = Fraction(_weight(evidence, step, run), shares.get(run.tenant, 1))
                for tenant in left:
                    line = waiting[tenant]
                    if tenant == run.tenant or not left[tenant]:
                        continue
                    line.served[run.tenant] = line.served.get(run.tenant, Fraction(0)) + price
                    if line.served[run.tenant] - price > line.debt:
                        yield f"{tenant} waits in {queue} while {run.tenant} was served {line.served[run.tenant]}"
                waiting[run.tenant] = _Line(price)
        for change in step.runs:
            queued[change.after.queue if change.before is None else change.before.queue].pop(change.after.id, None)
            if change.after.state is Q:
                queued[change.after.queue][change.after.id] = change.after


def _weight(evidence: Evidence, step: Step, run: RunRow) -> int:
    """The slots that a run takes of its worker."""
    return min(run.policy.weight, evidence.truth.slots[f"{step.process.partition('#')[0]} {run.queue}"])


def _starts(change: RunChange) -> bool:
    return change.before is not None and change.before.state is Q and change.after.state is R


CHECKS = (
    queue_concurrency_holds,
    retries_keep_to_their_budget,
    nothing_starts_that_is_paused,
    tenants_take_turns,
)
