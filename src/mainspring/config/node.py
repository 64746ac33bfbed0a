"""A node: the services of one process."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from importlib import metadata
from typing import Any

from mainspring.config.health import make_health
from mainspring.config.runtime import Runtime
from mainspring.config.sections.addresses import hide_secrets
from mainspring.config.services.cluster import make_brokers, make_clock_guard
from mainspring.config.services.metrics import write_ingest_metrics
from mainspring.config.services.scheduler import SchedulerServices
from mainspring.config.services.worker import REGISTERED, make_attempt_log, make_registration, make_worker, read_queues
from mainspring.config.settings import Settings
from mainspring.config.stores import list_stores
from mainspring.config.tasks import Application, WorkerTasks, check_environment
from mainspring.core.dispatch.broker_watch import BrokerWatch
from mainspring.core.maintenance.fleet import Fleet
from mainspring.core.maintenance.monitor import Monitor
from mainspring.core.maintenance.store_metrics import StoreVitals
from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import MILLISECOND, SECOND
from mainspring.core.model.cluster.coordination import STORE
from mainspring.core.model.cluster.labels import label_words
from mainspring.core.model.runs.obstacles import Obstacles
from mainspring.core.model.schedules.job import Job
from mainspring.core.ports.storage.catalog import SessionView
from mainspring.core.runtime.brokers import Brokers
from mainspring.core.runtime.metrics import declared
from mainspring.core.runtime.metrics.broker_metrics import export_brokers
from mainspring.core.runtime.metrics.exposition import Exposition
from mainspring.core.runtime.service import Service
from mainspring.core.runtime.supervisor import Supervisor
from mainspring.core.submit.task_registration import TaskRegistration
from mainspring.core.worker.metrics import export_worker
from mainspring.core.worker.reporting.pulse import Pulse
from mainspring.core.worker.reporting.status_cache import FlagListener, WorkerStatusWriter
from mainspring.core.worker.worker import Worker
from mainspring.features.ingest.service import Ingest
from mainspring.http.server import check_port_free, format_address

_VERSION = metadata.version("mainspring")


class Role(StrEnum):
    SCHEDULER = "scheduler"
    WORKER = "worker"
    HTTP = "http"


class Node:
    """The services of one process, selected by its roles."""

    def __init__(
        self,
        settings: Settings,
        roles: set[Role],
        application: Application | None = None,
        path: str | None = None,
        *,
        listens: bool = True,
    ) -> None:
        """``listens``: False if another server serves the API through ``asgi``."""
        self.runtime = Runtime(settings)
        #: The ASGI application, while the node runs.
        self.asgi: Callable[[Any, Any, Any], Awaitable[None]] | None = None
        self._listens = listens
        self._settings = settings
        self._roles = roles
        self._application = WorkerTasks(settings, application, self.runtime)
        self._path = path
        self._monitor = Monitor()
        self._scheduler: SchedulerServices | None = None
        self._worker: Worker | None = None
        self._registration: TaskRegistration | None = None
        self._guard = make_clock_guard(self.runtime, self._get_sessions, schedules=Role.SCHEDULER in roles)
        self._brokers: Brokers | None = None
        self._ingest: Ingest | None = None
        self._supervisor = Supervisor()
        self._attempt_log = make_attempt_log(settings.log, self.runtime.clock)

    def check(self) -> None:
        """Refuse to start if a port is taken or a folder is missing, before this process claims work."""
        if Role.HTTP in self._roles and self._listens:
            check_port_free(self._settings.host, self._settings.port)
        if Role.WORKER in self._roles:
            check_environment(self._settings)

    async def start(self) -> None:
        self.check()
        await self.runtime.open()
        self._monitor = self._make_monitor()
        services: list[Service] = [] if self._guard is None else [self._guard]
        self._brokers = await make_brokers(self.runtime)
        if self._brokers is not None:
            services += [self._brokers, BrokerWatch(self._brokers, self.runtime.wakeups, self.runtime.clock)]
        if Role.SCHEDULER in self._roles:
            self._scheduler = SchedulerServices(self.runtime, self._guard, self._brokers)
            services += self._scheduler.make()
            if self._settings.ingest.kafka:
                # Imported here: the API's modules that read and check the requests take long to load.
                from mainspring.config.ingest import make_ingest

                self._ingest = await make_ingest(self.runtime, self.health)
                services.append(self._ingest)
        if Role.WORKER in self._roles:
            services += self._make_worker_services()
        if Role.HTTP in self._roles:
            # Imported here: the import takes as long as all others together, and child processes do not need it.
            from mainspring.config.services.http import make_http_services

            self.asgi, made = make_http_services(self.runtime, self.health, self._monitor, listens=self._listens)
            services += made
        elif self._settings.metrics.enabled:
            services.append(self._make_metrics_listener())
        self._supervisor = Supervisor(*services)
        await self._supervisor.start()

    async def stop(self) -> None:
        """Stop in order: a worker lets its runs finish within the grace period.

        The worker starts to stop at once, while the HTTP server finishes its requests.
        """
        leaving = [] if self._worker is None else [asyncio.create_task(self._worker.stop())]
        await self._supervisor.stop()
        await asyncio.gather(*leaving, return_exceptions=True)
        await self._monitor.close()
        if self._scheduler is not None:
            await self._scheduler.close()

    def stop_now(self) -> None:
        """Stop at once: active runs are released."""
        if self._worker is not None:
            self._worker.stop_now()

    async def wait_for_end(self) -> bool:
        """Wait until the worker has ended by itself. Return whether the process should restart.

        It restarts if the worker reached its limit of runs or memory. A worker that was drained ends the process
        only if it is the only role; otherwise the other roles continue.
        """
        while not (worker := self._worker) or not (
            worker.wants_recycling or (worker.lease.drained and self._roles == {Role.WORKER})
        ):
            await self.runtime.clock.sleep(SECOND)
        await worker.left()
        return worker.wants_recycling

    async def health(self) -> Mapping[str, object]:
        """Return the health of this process, which ``/healthz`` shows."""
        found: dict[str, object] = {"status": "ok", "roles": sorted(role.value for role in self._roles)}
        if self._scheduler is not None:
            found |= self._scheduler.read_health()
        if self._brokers is not None:
            found["dispatch"] = self._brokers.health()
        if self._ingest is not None:
            found["ingest"] = self._ingest.health()
        if self._worker is not None:
            found["running"] = self._worker.running
        if self._guard is not None and (reading := self._guard.reading()) is not None:
            found["clockOffsetMs"] = round(reading.offset / MILLISECOND, 1)
        return found

    def _make_monitor(self) -> Monitor:
        """Build the metrics monitor.

        Only processes with an API or a scheduler report the fleet, because workers are many.
        """
        runtime, every = self.runtime, self._settings.metrics.interval
        fleet = Fleet(
            runtime.store,
            runtime.clock,
            shards=sum(store.shards for store in list_stores(runtime.store)),
            every=every,
            most_names=self._settings.metrics.max_names,
            brokers=lambda: self._brokers,
        )
        schedules, lasting = Role.SCHEDULER in self._roles, self._settings.store != "memory:"
        monitor = Monitor(
            None if self._roles == {Role.WORKER} else fleet,
            StoreVitals(make_health(self._settings), runtime.clock, every) if schedules and lasting else None,
        )
        if runtime.metrics is not None:
            runtime.metrics.schedules = schedules
            monitor.add(runtime.metrics.export)
        if runtime.tracing is not None:
            monitor.add(runtime.tracing.export, harmless=True)
        monitor.add(self._write_metrics)
        monitor.add(self._write_process_metrics, harmless=True)
        return monitor

    def _write_metrics(self, exposition: Exposition) -> None:
        if self._worker is not None:
            export_worker(self._worker, exposition)
        if self._scheduler is not None:
            self._scheduler.write_metrics(exposition)
        if self._ingest is not None:
            write_ingest_metrics(self._ingest, exposition)

    def _write_process_metrics(self, exposition: Exposition) -> None:
        exposition.put(declared.BUILD, 1, _VERSION, ",".join(sorted(role.value for role in self._roles)))
        if self._guard is not None and (reading := self._guard.reading()) is not None:
            exposition.put(declared.PROCESS_CLOCK, reading.offset / SECOND)
        if pools := self.runtime.pools():
            exposition.put(declared.POOL, sum(pool.used for pool in pools), "used")
            exposition.put(declared.POOL, sum(pool.idle for pool in pools), "idle")
            exposition.put(declared.POOL_LIMIT, sum(pool.most for pool in pools))
            exposition.put(declared.POOL_WAITING, sum(pool.waiting for pool in pools))
        export_brokers(self._brokers, exposition)

    def _make_worker_services(self) -> list[Service]:
        runtime = self.runtime
        self._worker = worker = make_worker(runtime, self._application, self._attempt_log, self._brokers, self._path)
        self._registration = make_registration(runtime, self._application)
        services: list[Service] = [
            self._registration,
            worker,
            Pulse(worker, self._attempt_log, runtime.wakeups, runtime.clock),
        ]
        if (status_cache := runtime.status_cache) is not None:
            services.append(WorkerStatusWriter(worker, status_cache, runtime.wakeups, runtime.clock))
            services.append(FlagListener(worker, status_cache, runtime.wakeups, runtime.clock))
        return services

    def _make_metrics_listener(self) -> Service:
        # Imported here, because child processes and clients do not need it.
        from mainspring.core.runtime.metrics.listener import MetricsListener

        section = self._settings.metrics
        return MetricsListener(section.host, section.ports, self._monitor.render, self.health, section.secret())

    def _get_sessions(self) -> list[SessionId]:
        """Return the current sessions of this process."""
        sessions = [] if self._scheduler is None else self._scheduler.get_sessions()
        if self._worker is not None and (holding := self._worker.lease.holding) is not None:
            sessions.append(holding.session)
        return sessions

    def build_banner(self) -> str:
        """Return a summary of the started services, one to four lines."""
        roles = ", ".join(sorted(role.value for role in self._roles))
        lines = [f"mainspring: {roles} on {hide_secrets(self._settings.store)}"]
        if Role.SCHEDULER in self._roles and self._settings.coordination != STORE:
            lines.append(f"  shards by {hide_secrets(self._settings.coordination)}")
        if Role.WORKER in self._roles:
            slots, pools = read_queues(self._settings, self._application), self._settings.worker.priorities
            if pools:
                # Each queue has all pools, and its own slots do not count.
                each = ", ".join(f"{priority}:{size}" for priority, size in pools.items())
                queues = f"{', '.join(slots)}; slots by priority {each}"
            else:
                queues = ", ".join(f"{name}:{size}" for name, size in slots.items())
            lines.append(f"  {self._application.describe()}; queues {queues}")
        if Role.HTTP in self._roles:
            open_to = "no authentication: loopback only" if self._settings.auth.mode == "none" else "with credentials"
            address = f"http://{format_address(self._settings.host, self._settings.port)}"
            if self._settings.ui.enabled:
                lines.append(f"  dashboard {address}/")
            lines.append(f"  API {address}/docs ({open_to})")
        return "\n".join(lines)

    async def find_obstacles(self, jobs: Sequence[Job]) -> list[str]:
        """Describe what keeps jobs from running once the worker of this process has started.

        Empty if this process has no scheduler or no worker: then other processes may be about to start.
        """
        settings, application = self._settings, self._application
        if not jobs or not {Role.SCHEDULER, Role.WORKER} <= self._roles:
            return []
        own = SessionView(
            id=SessionId(0),
            kind="worker",
            name="",
            version=_VERSION,
            datacenter=settings.datacenter,
            started_at=0,
            lease_until=0,
            queues=tuple(read_queues(settings, application)),
            tasks=tuple(application.handlers()),
            labels=label_words("worker.labels", settings.worker.labels),
            priorities=tuple(map(int, settings.worker.priorities)),
        )
        obstacles = Obstacles([*await self.runtime.store.sessions("worker"), own])
        return obstacles.describe(jobs[0].tenant, (job.spec for job in jobs))

    def hand_over_registration(self) -> None:
        """Pass the digest of the registered tasks to the replacing process, which then skips the registration."""
        if self._registration is not None:
            os.environ[REGISTERED] = self._registration.digest
