"""Pages of workers and schedulers: sessions, leases, versions and clocks."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Any

from mainspring.core.model.access.access import Permission
from mainspring.core.model.base.instant import Instant
from mainspring.features.workers.operations.processes import drain_worker, list_schedulers, list_workers
from mainspring.http.problems import ObjectNotFound
from mainspring.http.schemas.workers import SchedulerOut, Schedulers, WorkerOut, Workers
from mainspring.web.formatting import instant
from mainspring.web.page import ActionReply, Pages, Reply, Visit

processes = Pages()

#: The active runs of a worker are searched among this many of the newest runs.
_MAX_RUNNING = 500
#: A clock offset above this is reported as wrong, in milliseconds.
MAX_CLOCK_OFFSET_MS = 1_000
#: A process is late if this fraction of its lease has passed since its last heartbeat.
_LATE_SHARE = 0.75


@processes.page("GET", "/workers", permission=Permission.READ)
async def show_workers(visit: Visit[Any]) -> Reply:
    found, load = await asyncio.gather(visit.ask(list_workers), visit.ask("autoscale"))
    workers: Workers = found
    items = sorted(workers.items, key=lambda worker: (worker.datacenter, worker.name, worker.worker_id))
    return visit.show(
        "processes/workers.html",
        workers=items,
        running=sum(worker.running for worker in items),
        slots=sum(worker.slots or 0 for worker in items),
        busy=sum(worker.running for worker in items if worker.slots),
        leaving=sum(worker.draining for worker in items),
        recommended=load.recommended_workers,
        queues=len({queue for worker in items for queue in worker.queues}),
        versions=_count_words(worker.version for worker in items),
        datacenters=_count_words(worker.datacenter for worker in items),
        late=_list_late(items, visit.now),
        clock_ms=MAX_CLOCK_OFFSET_MS,
    )


@processes.page("GET", "/workers/{id}", permission=Permission.READ)
async def show_worker(visit: Visit[Any]) -> Reply:
    identifier = visit.path["id"]
    workers, runs = await asyncio.gather(
        visit.ask(list_workers),
        visit.ask("list_runs", query={"status": "running,cancelling", "limit": _MAX_RUNNING}),
    )
    worker: WorkerOut | None = next((one for one in workers.items if one.worker_id == identifier), None)
    if worker is None:
        if not identifier.isdecimal():
            raise ObjectNotFound
        return visit.show("processes/gone.html")
    mine = [run for run in runs.items if (run.executor_id or "").rpartition("#")[2] == identifier]
    return visit.show(
        "processes/worker.html",
        worker=worker,
        runs=mine[:50],
        late=bool(_list_late([worker], visit.now)),
        clock_ms=MAX_CLOCK_OFFSET_MS,
    )


@processes.page("POST", "/workers/{id}/drain", permission=Permission.ADMINISTER_ALL)
async def do_drain(visit: Visit[Any]) -> Reply:
    await visit.ask(drain_worker, path=visit.path)
    return ActionReply(words="Worker draining. It stops after its active runs.", to=f"workers/{visit.path['id']}")


@processes.page("GET", "/schedulers", permission=Permission.READ)
async def show_schedulers(visit: Visit[Any]) -> Reply:
    found: Schedulers = await visit.ask(list_schedulers)
    items = sorted(found.items, key=lambda one: (one.datacenter, one.name, one.scheduler_id))
    return visit.show(
        "processes/schedulers.html",
        schedulers=items,
        lag_ms=found.lag_ms,
        shards=sum(one.shards for one in items),
        versions=_count_words(one.version for one in items),
        late=_list_late(items, visit.now),
        worst_clock=max((abs(one.clock_offset_ms) for one in items if one.clock_offset_ms is not None), default=None),
        clock_ms=MAX_CLOCK_OFFSET_MS,
    )


def _count_words(words: Iterable[str]) -> list[tuple[str, int]]:
    """Count the non-empty words, most frequent first."""
    return Counter(word for word in words if word).most_common()


def _list_late(found: "Iterable[WorkerOut | SchedulerOut]", now: Instant) -> set[str]:
    """Return the names of processes whose lease has nearly expired."""
    late: set[str] = set()
    for one in found:
        beat, end = instant(one.last_heartbeat_at), instant(one.lease_until)
        if now - beat > (end - beat) * _LATE_SHARE:
            late.add(one.name)
    return late
