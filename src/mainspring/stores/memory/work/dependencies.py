"""Dependencies between runs in the memory store."""

from collections import defaultdict, deque
from collections.abc import Iterable

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.workflows.dependencies import EndedParent, decide, reason_of_skip
from mainspring.stores.memory.rows import RunRow


class DependencyGraph:
    """The dependencies between runs. They are kept for display until the child is forgotten."""

    def __init__(self) -> None:
        #: How each parent of a child has ended, in the order they were named; None: not ended, or not processed yet.
        self.parents: dict[RunId, dict[RunId, RunState | None]] = {}
        self.children: defaultdict[RunId, dict[RunId, None]] = defaultdict(dict)
        #: Children blocked by their parents.
        self.waiting: dict[RunId, None] = {}
        #: Ended parents, with the children that still have to be decided.
        self.ended: deque[tuple[RunId, RunState, deque[RunId]]] = deque()

    def add(self, child: RunId, parents: Iterable[RunRow]) -> None:
        edges = self.parents[child] = {}
        for parent in parents:
            parent.has_children |= not parent.state.ended
            self.children[parent.id][child] = None
            edges[parent.id] = parent.state if parent.state.ended else None

    def enqueue_children(self, run: RunRow) -> None:
        """Enqueue the children of an ended run for a decision."""
        if run.id in self.children:
            self.ended.append((run.id, run.state, deque(sorted(self.children[run.id]))))

    def pop_children(self, limit: int) -> list[RunId]:
        """Return up to ``limit`` children for which a parent has ended."""
        popped: list[RunId] = []
        while self.ended and len(popped) < limit:
            parent, state, children = self.ended[0]
            while children and len(popped) < limit:
                child = children.popleft()
                # A forgotten child has no edges.
                if child in self.parents and self.parents[child][parent] is None:
                    self.parents[child][parent] = state
                    popped.append(child)
            if not children:
                self.ended.popleft()
        return popped

    def find_undecided(self, runs: dict[RunId, RunRow]) -> list[RunId]:
        """Record parents that ended or vanished without a pending decision; return the children concerned."""
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

    def decide(self, run: RunRow) -> tuple[str, str]:
        """Return ``wait``, ``go`` or ``skip``, and the reason for a skip."""
        assert run.rule is not None
        edges = self.parents[run.id]
        ended = EndedParent(
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
