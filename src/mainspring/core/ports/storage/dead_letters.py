"""The port for alarms about dead letters, and for replays in progress."""

from collections.abc import Sequence
from typing import Protocol

from mainspring.core.model.runs.replay import Replay


class DeadLetters(Protocol):
    async def watch_dead_letters(self) -> int:
        """Emit an event for each group of dead letters that is new or grows quickly (``model.runs.dead_letters``).

        1. The event kind is that of the alarm, with the newest run. Returns the number of events.
        2. Covers runs that failed since the last call and more than 15 s ago, so that none is counted twice or missed.
        3. Several processes may call it at once; one of them does the work.
        4. Also deletes replays that ended more than 30 days ago.
        """
        ...

    async def put_replay(self, replay: Replay) -> None:
        """Store a new replay. Idempotent: a known id is left unchanged."""
        ...

    async def move_replay(self, replay: Replay) -> bool:
        """Store a replay with the next ``rev``. False: the stored ``rev`` differs, because of a concurrent change."""
        ...

    async def open_replays(self) -> Sequence[Replay]:
        """Return replays in progress, oldest first; at most 100."""
        ...

    async def replays(self, tenant: str | None, limit: int) -> Sequence[Replay]:
        """Return replays, newest first, of one tenant or of all."""
        ...

    async def replay(self, identifier: str) -> Replay | None: ...
