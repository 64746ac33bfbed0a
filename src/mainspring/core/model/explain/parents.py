"""Why a run waits for its dependencies, as a reason: which ones, and their states."""

from collections import Counter
from collections.abc import Sequence

from mainspring.core.model.explain.reason import Holder, Reason
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.model.workflows.dependencies import DependencyRule, EndedParent, decide

#: The maximum number of open dependencies named.
NAMED = 5

_WAITS = {
    DependencyRule.ALL_SUCCEEDED: "{} to succeed",
    DependencyRule.ALL_DONE: "{} to end",
    DependencyRule.ANY_SUCCEEDED: "one of {} to succeed",
    DependencyRule.ANY_FAILED: "one of {} to fail",
}


def reason_of_parents(run: RunView, parents: Sequence[RunView]) -> Reason | None:
    """Return the reason for a blocked run. None: its dependencies no longer block it, and something else does."""
    rule = run.rule or DependencyRule.ALL_SUCCEEDED
    states = Counter(parent.state for parent in parents)
    ended = sum(count for state, count in states.items() if state.ended)
    succeeded = states[RunState.SUCCEEDED]
    # Dependencies that are no longer stored have ended.
    gone = run.parents - len(parents)
    so_far = EndedParent(
        parents=run.parents, succeeded=succeeded + gone, otherwise=ended - succeeded, failed=states[RunState.FAILED]
    )
    if decide(rule, so_far) != "wait":
        return None
    count = "1 dependency" if run.parents == 1 else f"{run.parents} dependencies"
    words = f"waiting for {_WAITS[rule].format(count)}"
    open_ = [parent for parent in parents if not parent.state.ended]
    said = ", ".join(f"{_name(parent)} is {parent.state.value}" for parent in open_[:NAMED])
    more = " …" if len(open_) > NAMED else ""
    return Reason(
        code="parents",
        words=f"{words}: {ended + gone} of {run.parents} completed, {said}{more}",
        hint=f"explain it: mainspring runs explain {open_[0].id}" if open_ else "",
        holders=tuple(Holder("run", parent.id) for parent in open_[:NAMED]),
    )


def _name(parent: RunView) -> str:
    return f"{parent.about.node!r}" if parent.about is not None and parent.about.node else parent.id
