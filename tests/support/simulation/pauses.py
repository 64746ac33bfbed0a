"""The pauses of jobs by the requests of clients, for comparison with the decisions on their ticks."""

from collections.abc import Iterator, Sequence

from mainspring.core.model.base.instant import Instant
from mainspring.core.model.schedules.job import JobState, LedgerEntry
from tests.support.simulation.history import JobChange, Step

_NEVER: Instant = 1 << 62


class Pauses:
    """The pauses of one job in order, as pairs of start and end."""

    def __init__(self) -> None:
        self._spans: list[tuple[Instant, Instant]] = []

    def observe(self, step: Step, change: JobChange) -> None:
        before, after = change.before, change.after
        if before is None or before.state not in (JobState.SCHEDULED, JobState.PAUSED):
            self._spans = []
        if step.operation != "set_jobs_state":
            return
        if self._spans:
            since, until = self._spans[-1]
            self._spans[-1] = since, min(until, step.at)
        if after.state is JobState.PAUSED:
            self._spans.append((step.at, _NEVER if after.resume_at is None else after.resume_at))

    def complaints(self, step: Step, entries: Sequence[LedgerEntry]) -> Iterator[str]:
        for entry in entries if step.operation == "fire" else ():
            paused, tick = entry.reason.startswith("paused"), entry.scheduled_at
            if any(since <= tick < until for since, until in self._spans):
                if not paused:
                    yield f"{entry.job_id}: {tick} was in a pause, but decided {entry.decision} {entry.reason}"
            # A tick that was due before the pause and not decided yet is paused, too.
            elif paused and not any(tick < since <= step.at for since, _ in self._spans):
                yield f"{entry.job_id}: {tick} was in no pause, but decided {entry.reason}"
