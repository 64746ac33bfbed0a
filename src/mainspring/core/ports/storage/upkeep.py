"""The port for upkeep: what schedulers and the retention service do with expired, stuck and ended work."""

from collections.abc import Mapping
from typing import Protocol

import msgspec

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import DAY, Instant, Micros
from mainspring.core.model.runs.run import HeldRun, RunState


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How long ended runs are kept.

    ``succeeded`` and ``unsuccessful`` apply to the class ``standard``; ``short``, ``long`` and ``audit`` to the class
    of that name.
    """

    succeeded: Micros = 7 * DAY
    #: Failed, cancelled and skipped runs.
    unsuccessful: Micros = 30 * DAY
    #: The minimum for the ledger: a tick whose run is kept longer stays as long as its run.
    ledger: Micros = 90 * DAY
    short: Micros = DAY
    long: Micros = 90 * DAY
    audit: Micros = 2_557 * DAY
    #: Runs that ended at or after this time are kept, however old they are. Keyed by the name of a field above.
    kept_since: Mapping[str, Instant] = {}

    def cut(self, name: str, now: Instant) -> Instant:
        """Return the time before which ended runs may be deleted; ``name`` is a field above."""
        span: Micros = getattr(self, name)
        return min(now - span, self.kept_since.get(name, now))

    def of(self, name: str) -> Micros:
        """Return the retention of a class other than ``standard``."""
        return {"short": self.short, "long": self.long, "audit": self.audit}[name]


class UnattemptedRuns(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of a task that ended in this state without an attempt: cancelled, skipped, or failed past their deadline."""

    task: str
    state: RunState
    runs: int


class Upkeep(Protocol):
    async def lost_runs(self, limit: int) -> list[HeldRun]:
        """Reap sessions whose lease has expired, then return the running runs of reaped and closed sessions.

        A run is returned on every call until its attempt is completed. Needs no leader; several processes may call it
        at once.
        """
        ...

    async def overdue_runs(self, grace: Micros, limit: int) -> list[HeldRun]:
        """Return running runs of sessions that were not reaped, whose attempt is overdue by more than ``grace``."""
        ...

    async def expire(self, limit: int) -> int:
        """End runs that missed a limit on waiting.

        1. Waiting or queued past ``start_by``: skipped (expired). A run that has started once, and was not released,
           has met its ``start_by``.
        2. Waiting or queued past ``deadline``: failed (deadline), with the fingerprint of that reason and no error.
        3. Past both: skipped (expired).
        4. The ``target`` session is gone: skipped (its worker left), even if the run has missed another limit.
        """
        ...

    async def resolve(self, limit: int) -> int:
        """Decide the children of ended runs, and finish what a breaker or a large set of children left over.

        Handles about ``limit`` runs and returns how many changed: call again while it is more than 0. Several processes
        may call it at once.
        """
        ...

    async def sweep(self, limit: int) -> int:
        """Repair stuck state, computed from scratch.

        1. Releases runs that nothing blocks: their key is free, their limits have room, or their parents have ended.
        2. Recounts limiters whose holders are gone.
        3. Finds fixed-delay jobs whose run is gone.

        Finds nothing as long as every other method keeps its contract. Work that ``stage`` or ``resolve`` has still to
        do does not count as a finding.
        """
        ...

    async def tidy(self) -> list[UnattemptedRuns]:
        """Run the periodic upkeep that keeps the store fast under load; call it every few seconds.

        Cheap if there is nothing to do.

        1. Rolls up the per-minute metrics of runs that ended more than 15 s ago.
        2. Deletes events that are older than ``EVENTS_KEPT`` and acknowledged by every reader.
        3. Deletes idempotency keys older than ``KEYS_KEPT``.
        4. Resumes jobs whose pause has ended, at most 1,000.
        5. Deletes pauses of queues one day after their end.
        6. Several processes may call it at once. One of them does the work; it receives the runs without an attempt
           that were added to the metrics.
        """
        ...

    async def sample_load(self) -> Instant:
        """Record the current load under this minute: runs waiting and running, and their ages. Kept for ``LOADS_KEPT``.

        Returns the time of the sample. A second call within the same minute changes nothing.
        """
        ...

    async def queue_fronts(self, limit: int) -> list[RunId]:
        """Return the first queued run of each queue and label set, at most ``limit`` of them.

        Cheap however many runs are queued. Runs for one session alone (``target``) are left out.
        """
        ...

    async def prune(self, retention: Retention, limit: int) -> int:
        """Delete what ended before its ``cut``.

        1. Never blocks live work.
        2. Returns how much was deleted (rows or partitions); call again while it is more than 0.
        3. Also creates room (partitions) for the coming days.
        4. A run has its payload as long as it is kept.
        5. Per-minute metrics follow the retention of unsuccessful runs, logs that of their run. The audit is kept.
        """
        ...
