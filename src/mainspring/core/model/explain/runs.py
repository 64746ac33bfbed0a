"""Why a run is in its state: facts in, reasons out. ``reason.py`` describes how a rule adds its own."""

from collections.abc import Iterable

import msgspec

from mainspring.core.model.base.instant import MILLISECOND, MINUTE, SECOND, Instant, Micros, format_duration, isoformat
from mainspring.core.model.cluster.datacenters import find_datacenter, find_preference
from mainspring.core.model.cluster.labels import DATACENTER
from mainspring.core.model.explain.queues import words_of_turns
from mainspring.core.model.explain.reason import Holder, Reason, over_at
from mainspring.core.model.limits.queues import NO_POLICY, QueuePolicy
from mainspring.core.model.runs.completion import WORKER_LEFT
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import RunView

_BUDGET_HELPS = "raise its limit (mainspring budgets update) or delete it (mainspring budgets delete)"


class PausedBy(msgspec.Struct, frozen=True, kw_only=True):
    """A pause that applies to a run, by tenant and queue; None stands for all."""

    tenant: str | None
    queue: str | None
    author: str = ""
    why: str = ""
    until: Instant | None = None
    #: The budget that pauses again after a manual resume; empty: the pause is not due to a budget.
    budget: str = ""

    @property
    def what(self) -> str:
        return self._whose if self.until is None else f"{self._whose} until {isoformat(self.until)}"

    @property
    def _whose(self) -> str:
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
        if self.budget:
            return f"budget {self.budget!r} holds it until its period ends; {_BUDGET_HELPS}"
        return f"resume it: {self._resume}"

    @property
    def _resume(self) -> str:
        if self.queue is None:
            return "POST /v1/resume, by an admin who is bound to no tenant"
        who = "who is bound to no tenant" if self.tenant is None else f"of tenant {self.tenant!r}"
        return f"POST /v1/queues/{self.queue}/resume, by an operator {who}"


class RunSituation(msgspec.Struct, frozen=True, kw_only=True):
    """What the store knows about a run that has not started."""

    now: Instant
    #: The live workers that serve its queue, and how many of those know its task.
    workers: int = 0
    workers_knowing_task: int = 0
    #: Whether workers are alive, on any queue, and none of them knows its task.
    unknown_task: bool = False
    #: The priorities that those workers have slots for, if none of them has slots for the run's priority.
    other_priorities: tuple[int, ...] = ()
    #: The number of those workers that have the required labels.
    workers_with_labels: int = 0
    #: The widest pause that applies.
    paused: PausedBy | None = None
    #: The run that holds its ordering key, or precedes it by the job's overlap rule.
    key_holder: str | None = None
    #: The number of queued runs with a better rank; None: unknown.
    ahead: int | None = None
    #: Runs of its queue that ended per second, over the last minutes.
    rate: float = 0.0
    #: Whether a live scheduler serves its shard.
    scheduled_by_somebody: bool = True
    #: Whether its tenant is at its quota of running runs.
    at_quota: bool = False
    #: The budget that moved the run behind all others.
    lowered_by: str | None = None
    #: The policy of its queue.
    policy: QueuePolicy = NO_POLICY
    #: What would keep a scheduled run from starting if it were due now: no live worker can take it.
    obstacles: tuple[str, ...] = ()
    #: Reasons of other rules against its start; listed first.
    also: tuple[Reason, ...] = ()


class RunExplanation(msgspec.Struct, frozen=True):
    """The reasons, most important first."""

    because: list[Reason]
    estimated_start: Instant | None = None

    @property
    def reasons(self) -> list[str]:
        return [reason.words for reason in self.because]

    @property
    def hints(self) -> list[str]:
        return [reason.hint for reason in self.because if reason.hint]


def explain(run: RunView, facts: RunSituation) -> RunExplanation:
    match run.state:
        case RunState.SCHEDULED:
            ahead = [Reason(code="no-worker", words=words) for words in facts.obstacles]
            return _waits([*facts.also, _scheduled(run, facts), *ahead], facts)
        case RunState.BLOCKED:
            own = [_in_line(run, facts)] if facts.key_holder is not None or not facts.also else []
            return _waits([*facts.also, *own], facts)
        case RunState.QUEUED:
            held_back = [*facts.also, *_held_back(run, facts)]
            return _waits(held_back or [_lowered(_in_queue(run, facts), facts)], facts)
        case RunState.RUNNING:
            return RunExplanation([_running(run, facts)])
        case RunState.CANCELLING:
            return RunExplanation([_cancelling(run)])
        case _:
            return RunExplanation([_ended(run)])


def _waits(because: list[Reason], facts: RunSituation) -> RunExplanation:
    can_start = over_at(because)
    return RunExplanation(because, None if can_start is None else max(can_start, facts.now))


def _scheduled(run: RunView, facts: RunSituation) -> Reason:
    if run.due > facts.now:
        wait = _roughly(run.due - facts.now)
        if run.attempt:
            why = f"attempt {run.attempt} did not succeed ({run.reason or 'error'}); the next is due in {wait}"
            if facts.policy.retries is not None:
                why += f"; queue {run.queue!r} allows {facts.policy.retries} retries"
            return Reason(code="retry", words=why, until=run.due)
        if run.reason:
            return Reason(code="put-off", words=f"delayed ({run.reason}); due again in {wait}", until=run.due)
        return Reason(code="not-due", words=f"due at {isoformat(run.due)}, in {wait}", until=run.due)
    late = _roughly(facts.now - run.due)
    if not facts.scheduled_by_somebody:
        return Reason(
            code="no-scheduler",
            words=f"due {late} ago, and no scheduler is alive",
            hint="start one: mainspring scheduler, or mainspring up",
        )
    return Reason(code="staging", words=f"due {late} ago, and about to be queued", until=facts.now)


def _in_line(run: RunView, facts: RunSituation) -> Reason:
    holder = f", held by run {facts.key_holder}" if facts.key_holder else ""
    holders = (Holder("run", facts.key_holder),) if facts.key_holder else ()
    if run.policy.ordering_key:
        code, key = "ordering-key", f"ordering key {run.policy.ordering_key!r}"
    else:
        code, key = "overlap", "its job's overlap rule"
    return Reason(code=code, words=f"blocked by {key}{holder}", holders=holders)


def _held_back(run: RunView, facts: RunSituation) -> list[Reason]:
    """Return the reasons that a free slot would not remove."""
    found = []
    paused = facts.paused
    if paused is not None:
        words = f"{paused.what}{f': {paused.why}' if paused.why else ''}"
        holders = (Holder("budget", paused.budget),) if paused.budget else ()
        found.append(Reason(code="paused", words=words, hint=paused.remedy, holders=holders))
    if facts.workers == 0:
        found.append(
            Reason(
                code="no-worker",
                words=f"no live worker serves queue {run.queue!r}",
                hint=f"start one: mainspring worker MODULE:APP --queue {run.queue}",
            )
        )
        if facts.unknown_task:
            words = f"no live worker of any queue knows task {run.task!r}"
            hint = "start one whose application has the task; mainspring tasks list shows those that are known"
            found.append(Reason(code="unknown-task", words=words, hint=hint))
    elif facts.other_priorities:
        found.append(_lowered(_other_priorities(run, facts), facts))
    elif run.policy.requires and run.target is None and facts.workers_with_labels == 0:
        found.append(
            Reason(
                code="no-label",
                words=f"no live worker has {', '.join(run.policy.requires)}",
                hint=f"start one: mainspring worker MODULE:APP --queue {run.queue} {_options(run.policy.requires)}",
            )
        )
    elif facts.workers_knowing_task == 0:
        words = f"no live worker of its queue knows task {run.task!r}"
        hint = f"start one whose application has the task: mainspring worker MODULE:APP --queue {run.queue}"
        found.append(Reason(code="unknown-task", words=words, hint=hint))
    if facts.at_quota:
        words = f"tenant {run.tenant!r} has as many running runs as its quota allows"
        found.append(Reason(code="quota", words=words, holders=(Holder("tenant", run.tenant),)))
    return found


def _other_priorities(run: RunView, facts: RunSituation) -> Reason:
    taken = ", ".join(map(str, facts.other_priorities))
    return Reason(
        code="no-worker",
        words=f"no live worker of queue {run.queue!r} takes priority {run.priority}: they have slots for {taken} only",
        hint=f"start one: mainspring worker MODULE:APP --queue {run.queue} --priority {run.priority}:1",
    )


def _lowered(reason: Reason, facts: RunSituation) -> Reason:
    """Add the budget to a reason. It does not keep the run from starting, so it is not a reason of its own."""
    if facts.lowered_by is None:
        return reason
    words = f"{reason.words}; budget {facts.lowered_by!r} is used up and puts queued runs behind all others"
    hint = f"{f'{reason.hint}; or' if reason.hint else 'for runs that come later,'} {_BUDGET_HELPS}"
    holders = (*reason.holders, Holder("budget", facts.lowered_by))
    return msgspec.structs.replace(reason, words=words, hint=hint, holders=holders)


def _in_queue(run: RunView, facts: RunSituation) -> Reason:
    if facts.ahead and facts.policy.fair:
        # Runs of other tenants may start after it despite a better rank, so the start cannot be estimated.
        words = f"{words_of_turns(run, facts.policy)}; {facts.ahead} runs of all tenants have a better rank"
        return Reason(code="turns", words=words, holders=(Holder("queue", run.queue),))
    if facts.ahead:
        estimate = facts.now + round(facts.ahead / facts.rate * 1_000_000) if facts.rate > 0 else None
        words = f"{facts.ahead} runs of its queue come before it"
        return Reason(code="behind", words=words, holders=(Holder("queue", run.queue),), until=estimate)
    if run.target is not None:
        words = f"next in line for worker {run.target}, the only one that may run it"
        return Reason(code="next", words=words, holders=(Holder("worker", str(run.target)),), until=facts.now)
    slots = "a free slot" if run.policy.weight == 1 else f"{run.policy.weight} free slots, or all of its own free"
    words = f"next in its queue: a worker claims it as soon as it has {slots}"
    return Reason(code="next", words=words, until=facts.now)


def _running(run: RunView, facts: RunSituation) -> Reason:
    started = run.started_at or facts.now
    ends = started + run.policy.timeout
    return Reason(
        code="running",
        words=f"running on {run.executor or 'a worker'} for {_roughly(facts.now - started)} (attempt {run.attempt})",
        holders=_list_holders(run),
        until=ends if run.deadline is None else min(ends, run.deadline),
    )


def _cancelling(run: RunView) -> Reason:
    return Reason(
        code="cancelling",
        words="asked to stop, but still running",
        hint="the run is cancelled when its worker reports that it stopped, or when the lease of the worker expires",
        holders=_list_holders(run),
    )


#: What happened and what helps, for runs that ended for a reason other than that of their last attempt.
_ENDS = {
    "expired": ("it did not start in time (startWithin)", "give it more time, or more workers"),
    "deadline": ("it did not complete in time (deadline)", "give it more time, or more workers"),
    "poison": (
        "its workers or their child processes crashed repeatedly while they ran it",
        "check the memory and the native code that it uses",
    ),
    "lost": ("its worker crashed, and an at-most-once run is never repeated", ""),
    WORKER_LEFT: ("the only worker that could have run it has left", ""),
    "unreadable": ("the worker could not read its stored form", "run workers of the same version"),
}


def _ended(run: RunView) -> Reason:
    state = run.state.value
    reason = f" ({run.reason})" if run.reason and run.reason != state else ""
    what, hint = _ENDS.get(run.reason, ("", ""))
    words = f"{state}{reason}{f': {what}' if what else ''}"
    if run.state is RunState.FAILED and not hint:
        hint = f"retry it: mainspring runs retry {run.id}"
    return Reason(code=state, words=words, hint=hint, holders=_list_holders(run))


def _list_holders(run: RunView) -> tuple[Holder, ...]:
    return () if run.session is None else (Holder("worker", str(run.session)),)


def _roughly(time: Micros) -> str:
    unit = SECOND if time >= MINUTE else MILLISECOND
    return format_duration(max(time, 0) // unit * unit)


def _options(requires: Iterable[str]) -> str:
    """Return the command-line options that start a worker with these labels."""
    preference = find_preference(requires)
    own = [word for word in requires if preference is None or word != preference.word]
    datacenter = find_datacenter(own) if preference is None else preference.order[0]
    options = [] if datacenter is None else [f"--datacenter {datacenter}"]
    return " ".join(options + [f"--label {word}" for word in own if word != f"{DATACENTER}={datacenter}"])
