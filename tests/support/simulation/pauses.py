"""When a job was paused, by what people asked for, to compare with what became of its ticks."""

from collections.abc import Iterator, Sequence

from mainspring.domain.instant import Instant
from mainspring.domain.job import JobState, LedgerEntry
from tests.support.simulation.history import JobChange, Step

_NEVER: Instant = 1 << 62


class Pauses:
    """Of one job, one after another: from, to. Whether somebody looked meanwhile must make no difference."""

    def __init__(self) -> None:
        self._spans: list[tuple[Instant, Instant]] = []

    def hear(self, step: Step, change: JobChange) -> None:
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
            # What was due before a pause and nobody had looked at is paused with the rest.
            elif paused and not any(tick < since <= step.at for since, _ in self._spans):
                yield f"{entry.job_id}: {tick} was in no pause, but decided {entry.reason}"
