"""The port of the status cache: a copy of run and worker states outside the store, for other programs.

Entries expire. Mainspring itself reads only cancel flags from it, and losing the cache costs nothing.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import HOUR, MINUTE, Micros
from mainspring.core.model.runs.view import RunView

#: How long each entry is kept after its last write.
RUNS_SHOWN: Micros = HOUR
WORKERS_SHOWN: Micros = 5 * MINUTE
FLAGS_SHOWN: Micros = 5 * MINUTE


class StatusCache(Protocol):
    """The status cache. ``BrokerUnavailable``: no answer; the next call may work. ``open`` needs no answer."""

    async def open(self, namespace: str) -> None:
        """Open the cache. ``namespace``: the identity of the store. Flags of other stores are ignored."""
        ...

    async def close(self) -> None: ...

    async def show_runs(self, runs: Sequence[RunView]) -> None: ...

    async def show_worker(self, name: str, status: Mapping[str, object]) -> None: ...

    async def hide_worker(self, name: str) -> None: ...

    async def flag(self, runs: Collection[RunId]) -> None:
        """Flag runs that were asked to stop, after the store has recorded it."""
        ...

    async def flagged(self, wait: Micros) -> bool:
        """Wait for a flag, at most ``wait``. True: check the store. Also True if a flag may have been missed."""
        ...
