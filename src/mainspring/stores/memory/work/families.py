"""Runs that wait for others: who waits for whom, and what has become of them."""

from collections import defaultdict, deque
from collections.abc import Iterable

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.workflows.dependencies import Ended, decide, reason_of_skip
from mainspring.stores.memory.rows import RunRow


class Families:
    """The edges between runs. They stay for people to look at until the child is forgotten."""

    def __init__(self) -> None:
        #: How each parent of a child has ended, in the order they were named; None: that is not known here yet.
        self.parents: dict[RunId, dict[RunId, RunState | None]] = {}
        self.children: defaultdict[RunId, dict[RunId, None]] = defaultdict(dict)
        #: Children that wait for their parents.
        self.waiting: dict[RunId, None] = {}
        #: Ended, with the children that are still to be told.
        self.ended: deque[tuple[RunId, RunState, deque[RunId]]] = deque()

    def add(self, child: RunId, parents: Iterable[RunRow]) -> None:
        edges = self.parents[child] = {}
        for parent in parents:
            parent.has_children |= not parent.state.ended
            self.children[parent.id][child] = None
            edges[parent.id] = parent.state if parent.state.ended else None

    def has_ended(self, run: RunRow) -> None:
        """Whoever waits for it is to be told."""
        if run.id in self.children:
            self.ended.append((run.id, run.state, deque(sorted(self.children[run.id]))))

    def tell(self, limit: int) -> list[RunId]:
        """The next children that a parent of theirs has ended for; at most so many."""
        told: list[RunId] = []
        while self.ended and len(told) < limit:
            parent, state, children = self.ended[0]
            while children and len(told) < limit:
                child = children.popleft()
                # Forgotten ones have no edges.
                if child in self.parents and self.parents[child][parent] is None:
                    self.parents[child][parent] = state
                    told.append(child)
            if not children:
                self.ended.popleft()
        return told

    def untold(self, runs: dict[RunId, RunRow]) -> list[RunId]:
        """Children whose parents have ended, or are gone, though nobody is about to tell them. Tells them."""
        pending = {parent for parent, _, _ in self.ended}
        found = []
        for child in self.waiting:
            edges = self.parents[child]
            for parent, known in edges.items():
                row = runs.get(parent)
                if known is None and parent not in pending and (row is None or row.state.ended):
                    edges[parent] = RunState.SKIPPED if row is None else row.state
                    found.append(child)
        return list(dict.fromkeys(found))

    def verdict(self, run: RunRow) -> tuple[str, str]:
        """wait, go or skip; and why it is skipped."""
        assert run.rule is not None
        edges = self.parents[run.id]
        ended = Ended(
            parents=len(edges),
            succeeded=sum(state is RunState.SUCCEEDED for state in edges.values()),
            otherwise=sum(state not in (None, RunState.SUCCEEDED) for state in edges.values()),
            failed=sum(state is RunState.FAILED for state in edges.values()),
        )
        what = decide(run.rule, ended)
        if what != "skip":
            return what, ""
        otherwise = [(parent, state) for parent, state in edges.items() if state not in (None, RunState.SUCCEEDED)]
        parent, state = otherwise[0] if otherwise else next(iter(edges.items()))
        return what, reason_of_skip(run.rule, parent, str(state))

    def forget(self, child: RunId) -> None:
        for parent in self.parents.pop(child, {}):
            self.children[parent].pop(child, None)
            if not self.children[parent]:
                del self.children[parent]
