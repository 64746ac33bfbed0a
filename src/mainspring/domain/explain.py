"""Why a run is where it is: facts in, sentences out."""

import msgspec

from mainspring.domain.instant import Instant, format_duration, isoformat
from mainspring.domain.run import RunState, RunView


class PausedBy(msgspec.Struct, frozen=True, kw_only=True):
    """A pause that a run falls under: of this tenant and queue; None is every one."""

    tenant: str | None
    queue: str | None
    why: str = ""

    @property
    def what(self) -> str:
        match self.tenant, self.queue:
            case None, None:
                return "everything is paused"
            case None, queue:
                return f"queue {queue!r} is paused for every tenant"
            case tenant, None:
                return f"tenant {tenant!r} is paused"
            case tenant, queue:
                return f"queue {queue!r} is paused for tenant {tenant!r}"

    @property
    def remedy(self) -> str:
        if self.queue is None:
            return "POST /v1/resume, by an admin who is bound to no tenant"
        who = "who is bound to no tenant" if self.tenant is None else f"of tenant {self.tenant!r}"
        return f"POST /v1/queues/{self.queue}/resume, by an operator {who}"


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What the store knows around a run that has not started."""

    now: Instant
    #: Live workers that take its queue, how many of those know its task, and whether any is asked to leave.
    workers: int = 0
    workers_knowing_task: int = 0
    #: How many of them have the labels that it requires.
    workers_with_labels: int = 0
    #: The widest pause that holds it back.
    paused: PausedBy | None = None
    #: Who holds its ordering key.
    key_holder: str | None = None
    #: Queued runs before it, by rank; None: not known.
    ahead: int | None = None
    #: Runs of its queue that ended within the last minutes, a second.
    rate: float = 0.0
    #: A live scheduler serves its shard.
    scheduled_by_somebody: bool = True
    #: Its tenant runs as many as its quota allows.
    at_quota: bool = False


class Explained(msgspec.Struct, frozen=True):
    reasons: list[str]
    hints: list[str]
    estimated_start: Instant | None = None


def explain(run: RunView, facts: Facts) -> Explained:
    """The most important reason first."""
    match run.state:
        case RunState.SCHEDULED:
            return _scheduled(run, facts)
        case RunState.BLOCKED:
            holder = f" of run {facts.key_holder}" if facts.key_holder else ""
            key = f"ordering key {run.policy.ordering_key!r}" if run.policy.ordering_key else "its job's overlap rule"
            return Explained([f"it waits for {key}: it is the turn{holder}"], [])
        case RunState.QUEUED:
            return _queued(run, facts)
        case RunState.RUNNING:
            since = format_duration(max(facts.now - (run.started_at or facts.now), 0) // 1_000 * 1_000)
            return Explained([f"it runs on {run.executor or 'a worker'} since {since}, attempt {run.attempt}"], [])
        case RunState.CANCELLING:
            return Explained(["it was asked to stop and has not stopped yet"], [])
        case _:
            reason = f": {run.reason}" if run.reason and run.reason != run.state.value else ""
            return Explained([f"it has ended: {run.state.value}{reason}"], [])


def _scheduled(run: RunView, facts: Facts) -> Explained:
    if run.due > facts.now:
        wait = format_duration((run.due - facts.now) // 1_000 * 1_000)
        if run.attempt:
            why = f"attempt {run.attempt} did not succeed ({run.reason or 'error'}); the next is due in {wait}"
        else:
            why = f"it is not due: {isoformat(run.due)}, in {wait}"
        return Explained([why], [], run.due)
    late = format_duration((facts.now - run.due) // 1_000 * 1_000)
    if not facts.scheduled_by_somebody:
        return Explained(
            [f"it is due since {late}, and no scheduler is alive"],
            ["start one: mainspring scheduler, or mainspring up"],
        )
    return Explained([f"it is due since {late} and about to be queued"], [])


def _queued(run: RunView, facts: Facts) -> Explained:
    reasons = []
    hints = []
    if facts.paused is not None:
        reasons.append(f"{facts.paused.what}{f': {facts.paused.why}' if facts.paused.why else ''}")
        hints.append(f"resume it: {facts.paused.remedy}")
    if facts.workers == 0:
        reasons.append(f"no live worker takes queue {run.queue!r}")
        hints.append(f"start one: mainspring worker MODULE:APP --queue {run.queue}")
    elif run.policy.requires and run.target is None and facts.workers_with_labels == 0:
        required = ", ".join(run.policy.requires)
        reasons.append(f"no live worker has {required}")
        labels = " ".join(f"--label {label}" for label in run.policy.requires)
        hints.append(f"start one: mainspring worker MODULE:APP --queue {run.queue} {labels}")
    elif facts.workers_knowing_task == 0:
        reasons.append(f"no live worker of its queue knows task {run.task!r}")
    if facts.at_quota:
        reasons.append(f"tenant {run.tenant!r} runs as many as its quota allows")
    if reasons:
        return Explained(reasons, hints)
    if facts.ahead:
        reasons.append(f"{facts.ahead} runs of its queue come before it")
        estimate = facts.now + round(facts.ahead / facts.rate * 1_000_000) if facts.rate > 0 else None
        return Explained(reasons, hints, estimate)
    if run.target is not None:
        return Explained([f"it is for worker {run.target} alone, and next there"], [], facts.now)
    return Explained(["it is next in its queue: a worker takes it as soon as it has a free slot"], [], facts.now)
