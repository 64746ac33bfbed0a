"""The calendars that a scheduler applies, as of the newest known change."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import JobId
from mainspring.core.model.schedules.calendar import Calendar
from mainspring.core.model.schedules.closed_periods import ClosedPeriods, CompiledCalendar, select_closed_periods
from mainspring.core.model.schedules.job import Job
from mainspring.core.ports.storage.calendars import SchedulerCalendars

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


class ClosedTimes:
    """Caches calendars, and reads them again when a job refers to a newer version, for all tenants at once.

    Without calendars nothing is read. Ticks planned with an old version cannot be fired: the change has increased the
    job's ``rev``.
    """

    def __init__(self, store: SchedulerCalendars, log: "FilteringBoundLogger") -> None:
        self._store = store
        self._log = log
        self._known: dict[str, tuple[int, list[CompiledCalendar]]] = {}

    async def of(self, jobs: Sequence[Job]) -> dict[JobId, ClosedPeriods]:
        """Return the closed periods of those of these jobs that calendars apply to."""
        minding = [job for job in jobs if job.calendar_rev]
        if not minding:
            return {}
        stale = {job.tenant for job in minding if self._known.get(job.tenant, (0, []))[0] < job.calendar_rev}
        if stale:
            for almanac in await self._store.tenant_calendars(stale):
                closed = [one for calendar in almanac.calendars if (one := self._closed(calendar)) is not None]
                self._known[almanac.tenant] = (almanac.rev, closed)
        found = {}
        for job in minding:
            _, calendars = self._known.get(job.tenant, (0, []))
            spec = job.spec
            closed_periods = select_closed_periods(calendars, spec.calendars, spec.tags, spec.queue, spec.when_closed)
            if closed_periods is not None:
                found[job.id] = closed_periods
        return found

    def _closed(self, calendar: Calendar) -> CompiledCalendar | None:
        try:
            return CompiledCalendar(calendar)
        except Invalid as error:
            # Its time zone is unknown here. That must not hold up the other calendars.
            self._log.error("calendar unreadable, ignored", calendar=calendar.name, why=str(error))
            return None
