"""The port for the service-level objectives of schedules."""

from collections.abc import Collection, Sequence
from typing import Protocol

import msgspec

from mainspring.core.model.base.ids import JobId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.schedules.job import Job
from mainspring.core.model.schedules.slo import SloState


class SloDue(msgspec.Struct, frozen=True, kw_only=True):
    """A job whose objectives are due for evaluation."""

    job: Job
    state: SloState
    #: Grows with every change of the state: an update requires the newest value.
    rev: int
    #: When a run of the job last succeeded, as far as still known.
    last_success: Instant | None = None


class SloResult(msgspec.Struct, frozen=True, kw_only=True):
    job: JobId
    rev: int
    state: SloState
    #: None: it is not evaluated again.
    next_check: Instant | None
    events: tuple[str, ...] = ()


class Slos(Protocol):
    async def slos_due(self, limit: int) -> list[SloDue]:
        """Return jobs that are due for evaluation, the longest overdue first. Uses an index, not a scan.

        A job is evaluated from the moment it is declared with an ``slo`` or a different one. Evaluation ends when it is
        declared without one or is over.
        """
        ...

    async def save_slos(self, results: Sequence[SloResult]) -> int:
        """Store evaluations and emit their events, each in one transaction; returns how many were stored.

        An evaluation without the newest ``rev`` is skipped: of several concurrent ones a single one counts, so a miss
        is reported once.
        """
        ...

    async def slo_states(self, jobs: Collection[JobId]) -> dict[JobId, SloState]:
        """Return the states of those jobs that have objectives."""
        ...

    async def slos_missed(self, tenant: str | None, limit: int) -> dict[JobId, SloState]:
        """Return jobs that miss an objective now, of one tenant or all. Scans all jobs that have objectives."""
        ...
