"""What schedules owe, and whether they keep it."""

from collections.abc import Collection, Sequence
from typing import Protocol

import msgspec

from mainspring.core.model.base.ids import JobId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.schedules.job import Job
from mainspring.core.model.schedules.slo import SloState


class SloDue(msgspec.Struct, frozen=True, kw_only=True):
    """A job whose objectives are to be judged now."""

    job: Job
    state: SloState
    #: Grows with every change of the state: whoever settles must have seen the newest.
    rev: int
    #: The end of a run of it that succeeded, about the newest that is still known.
    last_success: Instant | None = None


class SloSettled(msgspec.Struct, frozen=True, kw_only=True):
    job: JobId
    rev: int
    state: SloState
    #: None: it is judged no more.
    next_check: Instant | None
    events: tuple[str, ...] = ()


class Slos(Protocol):
    async def slos_due(self, limit: int) -> list[SloDue]:
        """Those whose time to be looked at has come, longest ago first. Found by an index, not by a scan.

        A job is judged from the moment it is declared with a ``slo``, or with another one, until it is declared without
        or is over.
        """
        ...

    async def settle_slos(self, settled: Sequence[SloSettled]) -> int:
        """Write down what was judged and tell the events of it, each in one transaction; how many were. Whoever has not
        seen the newest ``rev`` is passed over: of several who judge at once one is heard, so a miss is told once."""
        ...

    async def slo_states(self, jobs: Collection[JobId]) -> dict[JobId, SloState]:
        """How those of these jobs stand that have objectives."""
        ...

    async def slos_missed(self, tenant: str | None, limit: int) -> dict[JobId, SloState]:
        """Those that miss an objective now, of a tenant or of all. Looks at all jobs that have objectives."""
        ...
