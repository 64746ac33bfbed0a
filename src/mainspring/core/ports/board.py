"""A place outside the store where other programs read how runs and workers are, and where a cancel is heard at once.

It is a copy with an end to its life: nobody here reads it, and losing it costs nothing that is ours.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import HOUR, MINUTE, Micros
from mainspring.core.model.runs.view import RunView

#: How long each is shown after it was last written.
RUNS_SHOWN: Micros = HOUR
WORKERS_SHOWN: Micros = 5 * MINUTE
FLAGS_SHOWN: Micros = 5 * MINUTE


class Board(Protocol):
    """``EngineUnavailable`` means that it did not answer; the next call may work. ``open`` needs no answer."""

    async def open(self, namespace: str) -> None:
        """``namespace``: which store this is about. Flags of others are not heard."""
        ...

    async def close(self) -> None: ...

    async def show_runs(self, runs: Sequence[RunView]) -> None: ...

    async def show_worker(self, name: str, status: Mapping[str, object]) -> None: ...

    async def hide_worker(self, name: str) -> None: ...

    async def flag(self, runs: Collection[RunId]) -> None:
        """Somebody has asked these to stop, and the store knows."""
        ...

    async def flagged(self, wait: Micros) -> bool:
        """Wait for a flag, so long at most; True: look at the store. Also when it may have missed one."""
        ...
