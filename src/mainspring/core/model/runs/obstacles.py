"""Reasons why no live worker can take a run: warnings for jobs that were accepted nevertheless."""

from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from typing import Protocol

from mainspring.core.model.cluster.datacenters import ALL, find_datacenter, find_preference
from mainspring.core.model.cluster.labels import DATACENTER
from mainspring.core.model.schedules.job import JobSpec

_NAMED = 5
_MOST_REMEMBERED = 10_000


class LiveWorker(Protocol):
    """The runs that a live worker accepts."""

    @property
    def serves(self) -> str:
        """The only tenant that the worker serves; empty: all tenants."""
        ...

    @property
    def queues(self) -> Sequence[str]: ...

    @property
    def tasks(self) -> Sequence[str]:
        """The tasks that the worker knows; empty: all tasks."""
        ...

    @property
    def labels(self) -> Sequence[str]: ...

    @property
    def priorities(self) -> Sequence[int]:
        """The only priorities that the worker has slots for; empty: all priorities."""
        ...

    @property
    def datacenter(self) -> str: ...

    @property
    def draining(self) -> bool: ...


class Obstacles:
    """Finds the reasons why none of a set of live workers can start a run."""

    def __init__(self, workers: Collection[LiveWorker]) -> None:
        self._workers = [worker for worker in workers if not worker.draining]
        # Submits repeat the same few queries, and there may be thousands of workers.
        self._found: dict[tuple[object, ...], tuple[str, ...]] = {}

    def find(
        self,
        tenant: str,
        queue: str,
        task: str,
        requires: tuple[str, ...] = (),
        datacenters: tuple[str, ...] = (),
        priority: int | None = None,
    ) -> tuple[str, ...]:
        """Describe each obstacle in a sentence. ``datacenters``: the data centers in which each tick runs."""
        key = (tenant, queue, task, requires, datacenters, priority)
        found = self._found.get(key)
        if found is None:
            if len(self._found) >= _MOST_REMEMBERED:
                self._found.clear()
            found = self._found[key] = tuple(self._search(tenant, queue, task, requires, datacenters, priority))
        return found

    def find_for_schedule(self, tenant: str, spec: JobSpec) -> tuple[str, ...]:
        return self.find(tenant, spec.queue, spec.task, spec.policy.requires, spec.datacenters, spec.priority)

    def describe(self, tenant: str, specs: Iterable[JobSpec]) -> list[str]:
        """Describe each distinct obstacle of several schedules once, followed by the schedules that it affects."""
        names: dict[str, list[str]] = {}
        for spec in specs:
            for obstacle in self.find_for_schedule(tenant, spec):
                names.setdefault(obstacle, []).append(spec.name)
        return [
            f"{obstacle} (schedule{'s' if len(held) > 1 else ''} {_list(held)})" for obstacle, held in names.items()
        ]

    def _search(
        self,
        tenant: str,
        queue: str,
        task: str,
        requires: tuple[str, ...],
        datacenters: tuple[str, ...],
        priority: int | None,
    ) -> list[str]:
        able = [worker for worker in self._workers if worker.serves in ("", tenant)]
        if not able:
            return ["no worker is running; the job waits until one starts: mainspring worker MODULE:APP"]
        serving = [worker for worker in able if queue in worker.queues]
        found = [] if serving else [f"no live worker serves queue {queue!r}; {_suggest_queue(queue, able)}"]
        # If no worker serves the queue, check all live workers, so that further obstacles are reported as well.
        found += _find_missing_datacenters(serving or able, queue if serving else "", requires, datacenters)
        if not any(_knows(worker, task) for worker in able):
            known = (name for worker in able for name in worker.tasks)
            return [*found, f"no live worker knows task {task!r}; {suggest_task(task, known)}"]
        if not serving:
            return found
        if not any(_knows(worker, task) for worker in serving):
            others = sorted({name for worker in able if _knows(worker, task) for name in worker.queues})
            return [*found, f"no live worker of queue {queue!r} knows task {task!r}; workers of {_list(others)} do"]
        if priority is not None and all(worker.priorities and priority not in worker.priorities for worker in serving):
            taken = sorted({own for worker in serving for own in worker.priorities})
            found.append(
                f"no live worker of queue {queue!r} takes priority {priority}; they have slots for priorities "
                f"{_list([str(own) for own in taken])} alone"
            )
        labels = [word for word in requires if not word.startswith(f"{DATACENTER}=")]
        if labels and not any(set(labels) <= set(worker.labels) for worker in serving if _knows(worker, task)):
            found.append(f"no live worker of queue {queue!r} has the labels {', '.join(labels)}")
        return found


def _find_missing_datacenters(
    workers: Collection[LiveWorker], queue: str, requires: tuple[str, ...], datacenters: tuple[str, ...]
) -> list[str]:
    """Describe the data centers without a live worker. ``queue``: the queue of ``workers``; empty: all live workers."""
    which, where = (f"worker of queue {queue!r}", "workers of the queue") if queue else ("worker", "workers")
    live = {worker.datacenter for worker in workers if worker.datacenter}
    here = f"data centers with live {where}: {_list(sorted(live))}" if live else "no live worker names one"
    preference = find_preference(requires)
    if preference is not None:
        if live.isdisjoint(preference.order):
            return [f"no live {which} is in {_list(list(preference.order))}; {here}"]
        return []
    wanted = [] if datacenters == (ALL,) else list(datacenters)
    one = find_datacenter(requires)
    if one is not None and one not in wanted:
        wanted.append(one)
    return [f"no live {which} is in data center {name!r}; {here}" for name in wanted if name not in live]


def _knows(worker: LiveWorker, task: str) -> bool:
    return not worker.tasks or task in worker.tasks


def _suggest_queue(queue: str, able: Collection[LiveWorker]) -> str:
    served = sorted({name for worker in able for name in worker.queues})
    close = get_close_matches(queue, served, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"start one with --queue {queue} (served queues: {_list(served)})"


def suggest_task(task: str, known: Iterable[str]) -> str:
    """Say what becomes of a run whose task is not among the known ones."""
    close = get_close_matches(task, sorted(set(known)), n=1, cutoff=0.8)
    return f"did you mean {close[0]!r}?" if close else "it waits until one does"


def _list(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (" …" if len(names) > _NAMED else "") if names else "none"
