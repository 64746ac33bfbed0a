"""Runs as a test sees them."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import RunView


class Run(RunView, frozen=True, kw_only=True, omit_defaults=True):
    """A run as a test sees it."""

    #: The return value, decoded from JSON; None if the run has not succeeded.
    result: Any = None


def _decode(view: RunView) -> Run:
    fields = {name: getattr(view, name) for name in view.__struct_fields__}
    return Run(**fields | {"result": None if view.result is None else msgspec.json.decode(view.result)})


class Runs:
    """A snapshot of runs, in the order they were created."""

    def __init__(self, views: Sequence[RunView]) -> None:
        self._views = tuple(map(_decode, views))

    def __len__(self) -> int:
        return len(self._views)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._views)

    def __getitem__(self, at: int) -> Run:
        return self._views[at]

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {state}" for state in RunState if (count := self._count(state)))
        return f"Runs({counts or 'none'})"

    @property
    def last(self) -> Run:
        """The newest run; ``LookupError`` if there is none."""
        if not self._views:
            raise LookupError("there are no such runs")
        return self._views[-1]

    @property
    def results(self) -> list[Any]:
        """The results of the runs that have succeeded, in order."""
        return [view.result for view in self._views if view.state is RunState.SUCCEEDED]

    @property
    def scheduled(self) -> int:
        """Number of runs whose due time is ahead, retries included."""
        return self._count(RunState.SCHEDULED)

    @property
    def blocked(self) -> int:
        """Number of runs that wait for another run or for a limit."""
        return self._count(RunState.BLOCKED)

    @property
    def queued(self) -> int:
        return self._count(RunState.QUEUED)

    @property
    def running(self) -> int:
        return self._count(RunState.RUNNING)

    @property
    def cancelling(self) -> int:
        """Number of running runs that were asked to stop."""
        return self._count(RunState.CANCELLING)

    @property
    def succeeded(self) -> int:
        return self._count(RunState.SUCCEEDED)

    @property
    def failed(self) -> int:
        return self._count(RunState.FAILED)

    @property
    def cancelled(self) -> int:
        return self._count(RunState.CANCELLED)

    @property
    def skipped(self) -> int:
        """Number of skipped runs, such as those that did not start in time. Ticks without a run are in the ledger."""
        return self._count(RunState.SKIPPED)

    def _count(self, state: RunState) -> int:
        return sum(view.state is state for view in self._views)
