"""Builds the services of a worker."""

import os
from collections.abc import Mapping
from importlib import metadata

import msgspec

from mainspring.config.runtime import Runtime
from mainspring.config.sections.monitoring import LogSection
from mainspring.config.settings import Settings
from mainspring.config.stores import build_label
from mainspring.config.tasks import Application
from mainspring.core.model.cluster.labels import label_words
from mainspring.core.ports.clock import Clock
from mainspring.core.runtime import log_lines
from mainspring.core.runtime.brokers import Brokers, GuardedBroker
from mainspring.core.submit.task_registration import TaskRegistration
from mainspring.core.worker.reporting.attempt_log import AttemptLog, Tracebacks
from mainspring.core.worker.runtime import WorkerRuntime
from mainspring.core.worker.settings import ChildSettings, WorkerSettings
from mainspring.core.worker.worker import Worker

#: The variable that hands the digest of registered tasks from a recycled worker to the process that replaces it.
REGISTERED = "_MAINSPRING_REGISTERED_TASKS"
#: The default number of concurrent runs per queue of a worker.
DEFAULT_SLOTS = 100
_VERSION = metadata.version("mainspring")


def make_worker(
    runtime: Runtime,
    application: Application,
    attempt_log: AttemptLog,
    brokers: Brokers | None,
    source: str | None,
) -> Worker:
    """Build the worker. ``source``: the path of the application, which child processes import."""
    section = runtime.settings.worker
    settings = WorkerSettings(
        name=section.name or build_label(),
        queues=read_queues(runtime.settings, application),
        priorities=_read_pools(section.priorities),
        labels=label_words("worker.labels", section.labels),
        version=_VERSION,
        datacenter=runtime.settings.datacenter,
        lease=section.lease,
        heartbeat_interval=section.lease * 3 // 10,
        lease_margin=section.lease // 5,
        grace=section.grace,
        capture_logs=section.capture_logs,
        recycle_after_runs=section.recycle_after_runs or None,
        recycle_memory_bytes=section.recycle_memory or None,
        children=ChildSettings(
            children=section.children,
            threads_per_child=section.threads_per_child,
            start_timeout=section.child_start,
            recycle_after_runs=section.recycle_child_after_runs or None,
            recycle_memory_bytes=section.recycle_child_memory or None,
            adopts=msgspec.json.encode(runtime.settings),
        ),
    )
    adapters = WorkerRuntime(
        runtime.store, runtime.wakeups, runtime.clock, settings, runtime.random, runtime.metrics, runtime.tracing
    )
    return Worker(
        adapters,
        application,
        source=source,
        open_workforce=runtime.workforce(),
        brokers=_select_brokers(brokers, settings),
        attempt_log=attempt_log,
    )


def make_registration(runtime: Runtime, application: Application) -> TaskRegistration:
    """Build the registration of the application's tasks in the task catalog."""
    return TaskRegistration(
        runtime.store,
        application.entries(),
        runtime.settings.worker.name or build_label(),
        runtime.clock,
        runtime.wakeups.listen([]),
        os.environ.get(REGISTERED, ""),
    )


def make_attempt_log(section: LogSection, clock: Clock) -> AttemptLog:
    readable = log_lines.chosen is not None and log_lines.chosen.readable
    every_attempt = section.runs == "all" or (section.runs == "auto" and readable)
    return AttemptLog(clock, every_attempt=every_attempt, tracebacks=Tracebacks(section.tracebacks))


def read_queues(settings: Settings, application: Application) -> dict[str, int]:
    """Return the configured queues, or all queues of the application."""
    return dict(settings.worker.queues) or dict.fromkeys(sorted(application.queues()), DEFAULT_SLOTS)


def _select_brokers(brokers: Brokers | None, settings: WorkerSettings) -> dict[str, GuardedBroker]:
    """Return the broker of each queue that the worker uses.

    Runs that require labels have no hints, so a worker with labels polls the store. So does a worker in a data
    center, unless the broker separates hints by data center.
    """
    if brokers is None or settings.labels:
        return {}
    found = {queue: brokers.of(queue) for queue in settings.queues}
    return {
        queue: guarded
        for queue, guarded in found.items()
        if guarded is not None and (guarded.by_datacenter or not settings.datacenter)
    }


def _read_pools(given: Mapping[str, int]) -> dict[int, int]:
    """Return the slots for each priority."""
    return {int(priority): slots for priority, slots in given.items()}
