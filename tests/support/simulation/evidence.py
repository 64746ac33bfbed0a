"""A history, indexed for the checks."""

from collections import defaultdict
from typing import NamedTuple

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.cluster.datacenters import find_datacenter, find_preference
from mainspring.core.model.limits.queues import NO_POLICY, QueuePolicy
from mainspring.core.model.runs.completion import Completion, CompletionAnswer
from mainspring.core.model.runs.run import RunState
from mainspring.stores.memory.rows import RunRow
from tests.support.simulation.history import HandlerCall, History, Step

S, B, Q, R = RunState.SCHEDULED, RunState.BLOCKED, RunState.QUEUED, RunState.RUNNING
OVER = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED, RunState.SKIPPED})


class Move(NamedTuple):
    step: Step
    before: RunRow | None
    after: RunRow
    edited: bool = False

    @property
    def from_state(self) -> RunState | None:
        return None if self.before is None else self.before.state

    @property
    def starts(self) -> bool:
        return self.from_state is Q and self.after.state is R

    @property
    def leaves_running(self) -> bool:
        return self.from_state is R and self.after.state is not R


class QueueRules:
    """Queue settings and serving data centers, as of the last step."""

    def __init__(self) -> None:
        self._serving: dict[str, str] = {}
        self._policies: dict[str, QueuePolicy] = {}
        self._pauses: dict[tuple[str | None, str | None], Instant] = {}

    def observe(self, step: Step) -> None:
        self._serving |= step.serving
        if step.queue_policy is not None:
            queue, policy = step.queue_policy
            self._policies[queue] = policy
        if step.queue_pause is not None:
            pause = step.queue_pause
            self._pauses[pause.tenant, pause.queue] = pause.until or 1 << 62

    def of(self, queue: str) -> QueuePolicy:
        return self._policies.get(queue, NO_POLICY)

    def find_datacenter(self, run: RunRow) -> str | None:
        """The data center whose workers may claim the run. A new preference is served by its first one."""
        preference = find_preference(run.policy.requires)
        if preference is None:
            return find_datacenter(run.policy.requires)
        return self._serving.get(preference.word, preference.order[0])

    def may_start(self, run: RunRow, at: Instant, here: str) -> bool:
        """Whether a worker there may claim a queued run: it is neither paused nor past its limit."""
        paused = any(
            at < self._pauses.get((tenant, queue), 0) for tenant in (run.tenant, None) for queue in (run.queue, None)
        )
        expired = run.start_by is not None and run.attempt == 0 and run.start_by < at
        in_time = not expired and (run.deadline is None or run.deadline > at)
        return in_time and not paused and self.find_datacenter(run) in (None, here)


class Evidence:
    """Moves and handlers by run, in the order they happened."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.truth = history.truth
        self.moves: dict[RunId, list[Move]] = defaultdict(list)
        self.calls: dict[RunId, list[HandlerCall]] = defaultdict(list)
        #: Accepted completions, by run and fence.
        self.completed: dict[RunId, list[tuple[Step, Completion]]] = defaultdict(list)
        for step in history.steps:
            for change in step.runs:
                self.moves[change.after.id].append(Move(step, change.before, change.after, change.edited))
            for completion, answer in step.completions:
                if answer is CompletionAnswer.ACCEPTED:
                    self.completed[completion.run].append((step, completion))
        for call in history.calls:
            self.calls[call.run].append(call)

    def datacenter(self, step: Step) -> str:
        """The data center of the process that took the step."""
        return self.truth.datacenters.get(step.process.partition("#")[0], "")

    def last(self, run: RunId) -> RunRow:
        return self.moves[run][-1].after
