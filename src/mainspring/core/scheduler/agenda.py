"""The scheduler's agenda: when to look for due runs, and ticks that were planned in advance."""

from mainspring.core.model.base.ids import JobId
from mainspring.core.model.base.instant import MILLISECOND, Instant
from mainspring.core.model.schedules.job import Fire
from mainspring.core.scheduler.wheel import TimingWheel


class Agenda:
    """Marks and planned fires, each held once, however often they are loaded. Losing all of it loses no work."""

    def __init__(self) -> None:
        self._wheel: TimingWheel[Instant | Fire] | None = None
        self._marks: set[Instant] = set()
        #: The planned revision of each job; entries of older revisions in the wheel are void.
        self._planned: dict[JobId, int] = {}

    def __len__(self) -> int:
        return 0 if self._wheel is None else len(self._wheel)

    def mark(self, due: Instant, now: Instant) -> None:
        """Note that runs are due then."""
        due = -(-due // MILLISECOND) * MILLISECOND
        if due not in self._marks:
            self._marks.add(due)
            self._insert(due, due, now)

    def knows(self, job: JobId, rev: int) -> bool:
        """Return whether this revision or a newer one is planned."""
        planned = self._planned.get(job)
        return planned is not None and planned >= rev

    def plan(self, fire: Fire, now: Instant) -> None:
        """Plan a job's next tick."""
        job = fire.job
        if job.next_fire is not None and not self.knows(job.id, job.rev):
            self._planned[job.id] = job.rev
            self._insert(job.next_fire, fire, now)

    def forget(self, job: JobId) -> None:
        """Drop the plan of a job: its next tick is handled elsewhere."""
        self._planned.pop(job, None)

    def take_due(self, now: Instant) -> tuple[list[Instant], list[Fire]]:
        """Return marks and fires that are due."""
        marks: list[Instant] = []
        fires: list[Fire] = []
        for item in self._wheel.advance(now) if self._wheel is not None else ():
            if not isinstance(item, Fire):
                self._marks.discard(item)
                marks.append(item)
            elif self._planned.get(item.job.id) == item.job.rev:
                del self._planned[item.job.id]
                fires.append(item)
        return marks, fires

    def next_due(self) -> Instant | None:
        return None if self._wheel is None else self._wheel.next_due()

    def clear(self) -> None:
        self._wheel = None
        self._marks.clear()
        self._planned.clear()

    def _insert(self, due: Instant, item: Instant | Fire, now: Instant) -> None:
        if self._wheel is None:
            self._wheel = TimingWheel(now)
        self._wheel.insert(due, item)
