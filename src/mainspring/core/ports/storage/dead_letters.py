"""Dead letters that are watched, and replays that are under way."""

from collections.abc import Sequence
from typing import Protocol

from mainspring.core.model.runs.replay import Replay


class DeadLetters(Protocol):
    async def watch_dead_letters(self) -> int:
        """Tell of groups that are new or grow quickly (``domain.dead_letters``): an event each, of the kind of its
        alarm, with the newest run; how many. Looks at what died since the last look and more than 15 s ago, so that
        nothing is counted twice or missed. Several processes may ask at once; one of them does it.

        Also forgets replays that ended more than 30 days ago.
        """
        ...

    async def put_replay(self, replay: Replay) -> None:
        """Keep a new one. Idempotent: a known id stays as it is."""
        ...

    async def move_replay(self, replay: Replay) -> bool:
        """Write it down, with the next ``rev``, if the stored one has its ``rev``; otherwise somebody was quicker."""
        ...

    async def open_replays(self) -> Sequence[Replay]:
        """Those that go on, oldest first; at most 100."""
        ...

    async def replays(self, tenant: str | None, limit: int) -> Sequence[Replay]:
        """Newest first, of a tenant or of all."""
        ...

    async def replay(self, identifier: str) -> Replay | None: ...
