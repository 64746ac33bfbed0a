"""Dependencies of calls, and the results of parent runs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import RunId, check_id
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.model.workflows.dependencies import MAX_PARENTS, Dependencies, DependencyRule

if TYPE_CHECKING:
    from mainspring.sdk.calls.options import PreparedCall
    from mainspring.sdk.handle import RunHandle, SyncHandle

When: TypeAlias = Literal["all-succeeded", "all-done", "any-succeeded", "any-failed"]
#: A dependency: a run by its handle or id, or a call of the same batch.
Parent: TypeAlias = "RunHandle[Any] | SyncHandle[Any] | PreparedCall[Any] | str"


def check_parents(parents: "Sequence[Parent]") -> tuple[Any, ...]:
    """Validate parents. Handles become ids, calls stay as they are."""
    if isinstance(parents, str) or not isinstance(parents, Sequence):
        raise Invalid("depends_on", f"{parents!r:.40} is no list", "for example depends_on=[handle]")
    return tuple(_check_parent(parent) for parent in parents)


def _check_parent(parent: object) -> object:
    if hasattr(parent, "payload") and hasattr(parent, "options"):
        return parent
    found = parent if isinstance(parent, str) else getattr(parent, "id", None)
    if not isinstance(found, str):
        raise Invalid("depends_on", f"{parent!r:.40} is no run", "a handle, an id, or a call of the same batch")
    check_id("depends_on", found)
    return RunId(found)


def check_rule(when: str) -> DependencyRule:
    try:
        return DependencyRule(when)
    except ValueError:
        raise Invalid("when", f"{when!r:.40} is not one of its words", ", ".join(DependencyRule)) from None


def build_dependencies(parents: Sequence[Any], rule: DependencyRule, here: Mapping[int, RunId]) -> Dependencies | None:
    """Build the dependencies of a call. ``here``: the ids of the calls of this batch."""
    if not parents:
        return None
    found = []
    for parent in parents:
        run = parent if isinstance(parent, str) else here.get(id(parent))
        if run is None:
            raise Invalid("depends_on", "names a call that is not of this batch", "submit them together")
        found.append(RunId(run))
    if len(found) > MAX_PARENTS:
        raise Invalid("depends_on", "are too many", f"at most {MAX_PARENTS:,}; wider joins are made of several layers")
    return Dependencies(parents=tuple(dict.fromkeys(found)), rule=rule)


class ParentRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that this run depended on."""

    run_id: RunId
    task: str
    state: RunState
    node: str = ""
    """Its name in the workflow."""
    result: Any = None
    """Its result as a JSON value; None if it did not succeed."""
    reason: str = ""
    error: str | None = None


class Parents(Sequence[ParentRun]):
    """Parents in the order in which they were named.

    Workflow nodes are also found by name: ``parents["extract"].result``.
    """

    def __init__(self, runs: Sequence[RunView]) -> None:
        self._runs = [_parent(run) for run in runs]
        self._named = {run.node: run for run in self._runs if run.node}

    @property
    def results(self) -> list[Any]:
        """The results of the parents that succeeded."""
        return [run.result for run in self._runs if run.state is RunState.SUCCEEDED]

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[ParentRun]:
        return iter(self._runs)

    @overload
    def __getitem__(self, which: int | str, /) -> ParentRun: ...

    @overload
    def __getitem__(self, which: slice, /) -> Sequence[ParentRun]: ...

    def __getitem__(self, which: int | str | slice, /) -> ParentRun | Sequence[ParentRun]:
        return self._named[which] if isinstance(which, str) else self._runs[which]

    def __repr__(self) -> str:
        return f"Parents({[run.node or run.run_id for run in self._runs]})"


def _parent(run: RunView) -> ParentRun:
    return ParentRun(
        run_id=run.id,
        task=run.task,
        state=run.state,
        node="" if run.about is None else run.about.node,
        result=None if run.result is None else msgspec.json.decode(run.result),
        reason=run.reason,
        error=run.error,
    )
