"""Reads the schedules that a forecast counts."""

from mainspring.core.model.base.ids import JobId
from mainspring.core.model.cluster.datacenters import list_targets
from mainspring.core.model.schedules.forecast import Planned
from mainspring.core.model.schedules.job import JobState
from mainspring.core.ports.storage.catalog import JobFilter, Lists
from mainspring.core.ports.storage.datacenters import DatacenterStatus
from mainspring.core.scheduler.closed_times import ClosedTimes

_PAGE = 1_000


async def read_planned(
    lists: Lists, closed_times: ClosedTimes, data_centers: list[DatacenterStatus], tenant: str | None, at_most: int
) -> tuple[list[Planned], bool]:
    """Read the schedules that are not paused, newest first; also return whether there are more."""
    planned: list[Planned] = []
    wanted = JobFilter(tenant=tenant, states=frozenset({JobState.SCHEDULED}))
    known = [data_center.name for data_center in data_centers if data_center.seen_at]
    after: JobId | None = None
    while len(planned) < at_most:
        page = await lists.list_jobs(wanted, after, min(_PAGE, at_most - len(planned)))
        closed = await closed_times.of(page.items)
        planned += [
            Planned(
                name=job.spec.name,
                schedule=job.spec.schedule,
                key=job.id,
                next_fire=job.next_fire,
                closed_periods=closed.get(job.id),
                copies=len(list_targets(job.spec.datacenters, known)) or 1,
            )
            for job in page.items
        ]
        after = None if page.after is None else JobId(page.after)
        if after is None:
            return planned, False
    return planned, True
