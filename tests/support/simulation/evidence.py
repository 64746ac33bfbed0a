"""A history, sorted by what is asked of it."""

from collections import defaultdict
from typing import NamedTuple

from mainspring.adapters.store.memory.rows import RunRow
from mainspring.domain.ids import RunId
from mainspring.domain.run import RunState, Settlement, Verdict
from tests.support.simulation.history import HandlerCall, History, Step

S, B, Q, R = RunState.SCHEDULED, RunState.BLOCKED, RunState.QUEUED, RunState.RUNNING
OVER = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED, RunState.SKIPPED})


class Move(NamedTuple):
    step: Step
    before: RunRow | None
    after: RunRow

    @property
    def from_state(self) -> RunState | None:
        return None if self.before is None else self.before.state

    @property
    def starts(self) -> bool:
        return self.from_state is Q and self.after.state is R

    @property
    def leaves_running(self) -> bool:
        return self.from_state is R and self.after.state is not R


class Evidence:
    """Moves and handlers by run, in the order they happened."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.truth = history.truth
        self.moves: dict[RunId, list[Move]] = defaultdict(list)
        self.calls: dict[RunId, list[HandlerCall]] = defaultdict(list)
        #: Settlements that had effect, by run and fence.
        self.settled: dict[RunId, list[tuple[Step, Settlement]]] = defaultdict(list)
        for step in history.steps:
            for change in step.runs:
                self.moves[change.after.id].append(Move(step, change.before, change.after))
            for settlement, verdict in step.settlements:
                if verdict is Verdict.APPLIED:
                    self.settled[settlement.run].append((step, settlement))
        for call in history.calls:
            self.calls[call.run].append(call)

    def last(self, run: RunId) -> RunRow:
        return self.moves[run][-1].after
