"""A node: the services of one process."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from importlib import metadata
from typing import Any

import msgspec

from mainspring.config.api import make_acceptance, make_api, make_ingest, make_tokens, oidc
from mainspring.config.health import make_health, make_watched
from mainspring.config.runtime import Runtime
from mainspring.config.sections.addresses import hide_secrets, read_store_servers
from mainspring.config.sections.monitoring import LogSection
from mainspring.config.servers.blobs import make_blobs
from mainspring.config.servers.broker_routes import read_routes
from mainspring.config.servers.brokers import make_dispatch
from mainspring.config.servers.coordinators import make_registry
from mainspring.config.servers.sinks import make_sinks
from mainspring.config.service_metrics import (
    tell_of_archive,
    tell_of_ingest,
    tell_of_run_logs,
    tell_of_scheduler,
    tell_of_sinks,
)
from mainspring.config.settings import Settings
from mainspring.config.stores import POSTGRES, RuntimeStore, label, retention_of, stores_of
from mainspring.config.tasks import Application, Offer, check_surroundings
from mainspring.core.cluster.clock_guard import ClockGuard
from mainspring.core.cluster.datacenters import DatacenterKeeper
from mainspring.core.cluster.epoch_check import EpochCheckedCoordinator
from mainspring.core.cluster.shards import ShardKeeper
from mainspring.core.dispatch.broker_watch import BrokerWatch
from mainspring.core.dispatch.dispatcher import Dispatcher
from mainspring.core.maintenance.fleet import Fleet
from mainspring.core.maintenance.health_guard import HealthGuard
from mainspring.core.maintenance.housekeeper import Housekeeper
from mainspring.core.maintenance.load_sampler import LoadSampler
from mainspring.core.maintenance.monitor import Monitor
from mainspring.core.maintenance.reaper import Reaper
from mainspring.core.maintenance.store_metrics import StoreVitals
from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import MILLISECOND, SECOND
from mainspring.core.model.cluster.clock_guard import ClockRules
from mainspring.core.model.cluster.coordination import STORE, read_coordination
from mainspring.core.model.cluster.hints import Sealer
from mainspring.core.model.cluster.labels import label_words
from mainspring.core.model.events.webhooks import read_webhooks
from mainspring.core.model.runs.obstacles import Obstacles
from mainspring.core.model.schedules.job import Job
from mainspring.core.ports.blobs import Blobs
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.events_out import Sink
from mainspring.core.ports.storage.catalog import SessionView
from mainspring.core.ports.upkeep.archive import Archiving
from mainspring.core.runtime import log_lines
from mainspring.core.runtime.brokers import Brokers, GuardedBroker
from mainspring.core.runtime.metrics import declared
from mainspring.core.runtime.metrics.broker_metrics import tell_of_brokers
from mainspring.core.runtime.metrics.exposition import Exposition
from mainspring.core.runtime.service import Service
from mainspring.core.runtime.supervisor import Supervisor
from mainspring.core.scheduler.scheduler import Scheduler
from mainspring.core.submit.task_registration import TaskRegistration
from mainspring.core.worker.figures import tell_of_worker
from mainspring.core.worker.reporting.attempt_log import AttemptLog, Tracebacks
from mainspring.core.worker.reporting.pulse import Pulse
from mainspring.core.worker.reporting.status_cache import FlagListener, WorkerStatusWriter
from mainspring.core.worker.settings import ChildSettings, WorkerSettings
from mainspring.core.worker.worker import Worker
from mainspring.features.alerts.service import Notifier
from mainspring.features.archive.retention import RetentionKeeper
from mainspring.features.archive.service import Archiver
from mainspring.features.dead_letters.service import DeadLetterService
from mainspring.features.events.service import Publisher
from mainspring.features.events.status_writer import StatusWriter
from mainspring.features.events.webhooks import WebhookSink
from mainspring.features.ingest.service import Ingest
from mainspring.features.logs.service import LogKeeper
from mainspring.features.slo.service import SloKeeper
from mainspring.features.usage.service import BudgetKeeper
from mainspring.http.auth.authenticator import Authenticator, KeyKeeper
from mainspring.http.server import address_of, refuse_taken

#: The variable that hands the digest of registered tasks from a recycled worker to the process that replaces it.
REGISTERED = "_MAINSPRING_REGISTERED_TASKS"
#: The default number of concurrent runs per queue of a worker.
DEFAULT_SLOTS = 100


_VERSION = metadata.version("mainspring")


class Role(StrEnum):
    SCHEDULER = "scheduler"
    WORKER = "worker"
    HTTP = "http"


class _Door:
    """Replaces the HTTP server if another server serves the API. ``stop`` ends streams and waiting requests."""

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave = leave

    async def start(self) -> None: ...

    async def stop(self) -> None:
        self._leave()


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
        self._application = Offer(settings, application, self.runtime)
        self._path = path
        self._keepers: list[ShardKeeper] = []
        self._archivers: list[Archiver] = []
        self._blobs: Blobs | None = None
        self._schedulers: list[Scheduler] = []
        self._monitor = Monitor()
        self._worker: Worker | None = None
        self._registration: TaskRegistration | None = None
        self._guard = _make_guard(self.runtime, self._sessions, schedules=Role.SCHEDULER in roles)
        self._brokers: Brokers | None = None
        self._publishers: list[Publisher] = []
        self._log_keepers: list[LogKeeper] = []
        self._ingest: Ingest | None = None
        self._supervisor = Supervisor()
        self._attempt_log = _make_attempt_log(settings.log, self.runtime.clock)

    def check(self) -> None:
        """Refuse to start if a port is taken or a folder is missing, before this process claims work."""
        if Role.HTTP in self._roles and self._listens:
            refuse_taken(self._settings.host, self._settings.port)
        if Role.WORKER in self._roles:
            check_surroundings(self._settings)

    async def start(self) -> None:
        self.check()
        await self.runtime.open()
        self._monitor = self._make_monitor()
        services: list[Service] = [] if self._guard is None else [self._guard]
        self._brokers = await make_brokers(self.runtime)
        if self._brokers is not None:
            services += [self._brokers, BrokerWatch(self._brokers, self.runtime.wakeups, self.runtime.clock)]
        if Role.SCHEDULER in self._roles:
            services += self._scheduler_services()
            self._ingest = await make_ingest(self.runtime, self.health)
            if self._ingest is not None:
                services.append(self._ingest)
        if Role.WORKER in self._roles:
            worker = self._worker_service(self._application)
            services.append(self._registration_service())
            services += [worker, Pulse(worker, self._attempt_log, self.runtime.wakeups, self.runtime.clock)]
            if (status_cache := self.runtime.status_cache) is not None:
                services.append(WorkerStatusWriter(worker, status_cache, self.runtime.wakeups, self.runtime.clock))
                services.append(FlagListener(worker, status_cache, self.runtime.wakeups, self.runtime.clock))
        if Role.HTTP in self._roles:
            services += self._http_services()
        elif self._settings.metrics.enabled:
            services.append(self._metrics_listener())
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
        if self._blobs is not None:
            await self._blobs.close()

    def stop_now(self) -> None:
        """Stop at once: active runs are released."""
        if self._worker is not None:
            self._worker.stop_now()

    async def ended(self) -> bool:
        """Wait until the worker has ended by itself. Return whether the process should restart.

        It restarts if the worker reached its limit of runs or memory. A worker that was drained ends the process
        only if it is the only role; otherwise the other roles continue.
        """
        while not (worker := self._worker) or not (
            worker.wants_recycling or (worker.drained and self._roles == {Role.WORKER})
        ):
            await self.runtime.clock.sleep(SECOND)
        await worker.left()
        return worker.wants_recycling

    async def health(self) -> Mapping[str, object]:
        """Return the health of this process, which ``/healthz`` shows."""
        found: dict[str, object] = {"status": "ok", "roles": sorted(role.value for role in self._roles)}
        if self._keepers:
            found["shards"] = sum(len(keeper.owned()) for keeper in self._keepers)
            coordinator = read_coordination(self._settings.coordination)
            # The address is omitted, because this answer is public.
            found["coordination"] = STORE if coordinator is None else coordinator.kind
        if self._brokers is not None:
            found["dispatch"] = self._brokers.health()
        if self._publishers:
            found["events"] = {publisher.sink: publisher.health() for publisher in self._publishers}
        if self._log_keepers:
            # The error is omitted, because it names the location of the logs.
            found["runLogs"] = {"status": "waiting" if any(one.trouble for one in self._log_keepers) else "ok"}
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
            shards=sum(store.shards for store in stores_of(runtime.store)),
            every=every,
            most_names=self._settings.metrics.max_names,
            brokers=lambda: self._brokers,
        )
        schedules, lasting = Role.SCHEDULER in self._roles, self._settings.store != "memory:"
        monitor = Monitor(
            None if self._roles == {Role.WORKER} else fleet,
            StoreVitals(make_health(self._settings), runtime.clock, every) if schedules and lasting else None,
        )
        if runtime.figures is not None:
            runtime.figures.schedules = schedules
            monitor.add(runtime.figures.tell)
        if runtime.tracing is not None:
            monitor.add(runtime.tracing.tell, harmless=True)
        monitor.add(self._tell)
        monitor.add(self._tell_of_process, harmless=True)
        return monitor

    def _tell(self, book: Exposition) -> None:
        if self._worker is not None:
            tell_of_worker(self._worker, book)
        if self._keepers:
            tell_of_scheduler(self._keepers, self._schedulers, book)
            tell_of_sinks(self._publishers, book)
            tell_of_archive(self._archivers, book)
            tell_of_run_logs(self._log_keepers, book)
            tell_of_ingest(self._ingest, book)

    def _tell_of_process(self, book: Exposition) -> None:
        book.put(declared.BUILD, 1, _VERSION, ",".join(sorted(role.value for role in self._roles)))
        if self._guard is not None and (reading := self._guard.reading()) is not None:
            book.put(declared.PROCESS_CLOCK, reading.offset / SECOND)
        if pools := self.runtime.pools():
            book.put(declared.POOL, sum(pool.used for pool in pools), "used")
            book.put(declared.POOL, sum(pool.idle for pool in pools), "idle")
            book.put(declared.POOL_LIMIT, sum(pool.most for pool in pools))
            book.put(declared.POOL_WAITING, sum(pool.waiting for pool in pools))
        tell_of_brokers(self._brokers, book)

    def _metrics_listener(self) -> Service:
        # Imported here, because child processes and clients do not need it.
        from mainspring.core.runtime.metrics.listener import MetricsListener

        section = self._settings.metrics
        return MetricsListener(section.host, section.ports, self._monitor.render, self.health, section.secret())

    def _sessions(self) -> list[SessionId]:
        """Return the current sessions of this process."""
        holding = self._worker.holding if self._worker is not None else None
        known = [*(keeper.member for keeper in self._keepers), None if holding is None else holding.session]
        return [session for session in known if session is not None]

    def banner(self) -> str:
        """Return a summary of the started services, one to four lines."""
        roles = ", ".join(sorted(role.value for role in self._roles))
        lines = [f"mainspring: {roles} on {hide_secrets(self._settings.store)}"]
        if Role.SCHEDULER in self._roles and self._settings.coordination != STORE:
            lines.append(f"  shards by {hide_secrets(self._settings.coordination)}")
        if Role.WORKER in self._roles:
            slots, pools = self._queues(self._application), self._settings.worker.priorities
            if pools:
                # Each queue has all pools, and its own slots do not count.
                each = ", ".join(f"{priority}:{size}" for priority, size in pools.items())
                queues = f"{', '.join(slots)}; slots by priority {each}"
            else:
                queues = ", ".join(f"{name}:{size}" for name, size in slots.items())
            lines.append(f"  {self._application.describe()}; queues {queues}")
        if Role.HTTP in self._roles:
            open_to = "no authentication: loopback only" if self._settings.auth.mode == "none" else "with credentials"
            address = f"http://{address_of(self._settings.host, self._settings.port)}"
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
            queues=tuple(self._queues(application)),
            tasks=tuple(application.handlers()),
            labels=label_words("worker.labels", settings.worker.labels),
        )
        obstacles = Obstacles([*await self.runtime.store.sessions("worker"), own])
        return obstacles.describe(jobs[0].tenant, (job.spec for job in jobs))

    def _scheduler_services(self) -> list[Service]:
        """Return the services of the scheduler: one set per server of the store, and those that span all servers.

        With one set per server, a server that is unavailable does not stop the others.
        """
        runtime = self.runtime
        if self._settings.retention.archive:
            self._blobs = make_blobs(self._settings.retention.archive, "retention.archive", self._settings.blobs)
        addresses = read_store_servers(self._settings.store) or (self._settings.store,)
        return [
            *(
                service
                for address, store in zip(addresses, stores_of(runtime.store), strict=True)
                for service in self._services_of_server(store, address)
            ),
            BudgetKeeper(runtime.store, runtime.wakeups, runtime.clock, runtime.random),
            DeadLetterService(runtime.store, runtime.jobs, runtime.wakeups, runtime.clock),
        ]

    def _services_of_server(self, store: RuntimeStore, address: str) -> list[Service]:
        runtime = self.runtime
        sealed = make_coordinator(runtime)
        keeper = ShardKeeper(
            sealed or store,
            store.shards,
            runtime.wakeups,
            runtime.clock,
            name=self._settings.scheduler.name or label(),
            ttl=self._settings.scheduler.lease,
            fit=_always if self._guard is None else self._guard.fit,
        )
        retention = retention_of(self._settings)
        self._keepers.append(keeper)
        watched = make_watched(self._settings, address)
        watch = None if watched is None else HealthGuard(watched, runtime.wakeups, runtime.clock, keeper.owned)

        def pressed() -> bool:
            return watch is not None and watch.pressed

        archiver = None
        if self._blobs is not None and isinstance(store, Archiving):
            archiver = Archiver(store, self._blobs, runtime.clock, keeper.owned, pressed)
            self._archivers.append(archiver)
        scheduler = Scheduler(store, keeper, runtime.wakeups, runtime.clock, figures=runtime.figures)
        self._schedulers.append(scheduler)
        if sealed is not None:
            sealed.on_change(keeper.wakeup.notify)
        return [
            *([] if sealed is None else [sealed]),
            keeper,
            scheduler,
            Reaper(store, runtime.wakeups, runtime.clock, runtime.random, runtime.figures),
            Housekeeper(store, runtime.wakeups, runtime.clock, runtime.figures),
            LoadSampler(store, runtime.wakeups, runtime.clock, keeper.owned),
            SloKeeper(store, runtime.wakeups, runtime.clock, runtime.figures),
            DatacenterKeeper(
                store,
                runtime.wakeups,
                runtime.clock,
                datacenter=self._settings.datacenter,
                version=_VERSION,
                member=lambda: keeper.member,
            ),
            *([] if watch is None else [watch]),
            RetentionKeeper(
                store,
                runtime.wakeups,
                runtime.clock,
                runtime.random,
                retention,
                is_loaded=pressed,
                archiver=archiver,
            ),
            *(
                []
                if runtime.status_cache is None
                else [StatusWriter(store, runtime.status_cache, runtime.wakeups, runtime.clock, keeper.owned)]
            ),
            *(
                []
                if self._brokers is None
                else [Dispatcher(store, self._brokers, runtime.wakeups, runtime.clock, keeper.owned)]
            ),
            *self._log_keepers_of(store, keeper, pressed),
            *self._publishers_of(store, keeper),
        ]

    def _log_keepers_of(self, store: RuntimeStore, keeper: ShardKeeper, pressed: Callable[[], bool]) -> list[LogKeeper]:
        """Return the service that moves logs out of the store; none if logs stay in the store."""
        runtime = self.runtime
        if runtime.run_logs is None:
            return []
        made = LogKeeper(
            store,
            runtime.run_logs,
            runtime.wakeups,
            runtime.clock,
            keeper.owned,
            self._settings.run_logs.keep,
            retention_of(self._settings),
            pressed,
        )
        self._log_keepers.append(made)
        return [made]

    def _publishers_of(self, store: RuntimeStore, keeper: ShardKeeper) -> list[Service]:
        """Return one publisher per sink, so that a sink that is unavailable does not delay the others."""
        runtime, section = self.runtime, self._settings.events
        sinks: list[Sink] = make_sinks(section.kafka, section.redis, section.redis_length, section.status_updates)
        sinks += [WebhookSink(webhook, runtime.jobs) for webhook in read_webhooks(section.webhooks)]
        rules = self._settings.notifications.read()
        notifiers: list[Notifier] = []
        if rules.rules:
            notifiers.append(Notifier(store, runtime.jobs, rules, runtime.wakeups, runtime.clock, keeper.owned))
            sinks += notifiers
        made = [Publisher(store, sink, runtime.wakeups, runtime.clock, keeper.owned, section.keep) for sink in sinks]
        self._publishers += made
        return [*made, *notifiers]

    def _http_services(self) -> list[Service]:
        # Imported here: the import takes as long as all others together, and child processes do not need it.
        from mainspring.config.resources import RESOURCES
        from mainspring.http.app import make_app
        from mainspring.http.server import HttpServer

        runtime, settings = self.runtime, self._settings
        auth = settings.auth
        authenticator = Authenticator(
            runtime.store,
            runtime.clock,
            required=auth.mode != "none",
            keys=auth.takes_keys,
            tokens=make_tokens(auth, runtime.clock),
        )
        acceptance = make_acceptance(settings)
        api = make_api(runtime, authenticator, self.health, self._monitor, acceptance)
        app = make_app(api, RESOURCES)
        if settings.ui.enabled:
            from mainspring.config.pages import PAGES
            from mainspring.web.app import UiSettings, make_ui

            ui = settings.ui
            app = make_ui(api, app, PAGES, UiSettings(ui.secret, ui.read_only, ui.redact, oidc(settings.oidc)))
        self.asgi = app
        keeper = KeyKeeper(authenticator, runtime.wakeups, runtime.clock)
        server = HttpServer(settings.host, settings.port, app, runtime.clock, leave=api.leave)
        door: Service = server if self._listens else _Door(api.leave)
        return [api.hub, keeper, *([] if acceptance is None else [acceptance]), door]

    def _worker_service(self, application: Application) -> Worker:
        section = self._settings.worker
        settings = WorkerSettings(
            name=section.name or label(),
            queues=self._queues(application),
            priorities=_pools(section.priorities),
            labels=label_words("worker.labels", section.labels),
            version=_VERSION,
            datacenter=self._settings.datacenter,
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
                adopts=msgspec.json.encode(self.runtime.settings),
            ),
        )
        runtime = self.runtime
        self._worker = Worker(
            runtime.store,
            runtime.wakeups,
            runtime.clock,
            application,
            settings,
            source=self._path,
            open_workforce=runtime.workforce(),
            jitter=runtime.random,
            brokers=self._brokers_of(settings),
            figures=runtime.figures,
            tracing=runtime.tracing,
            attempt_log=self._attempt_log,
        )
        return self._worker

    def _registration_service(self) -> TaskRegistration:
        runtime = self.runtime
        self._registration = TaskRegistration(
            runtime.store,
            self._application.entries(),
            self._settings.worker.name or label(),
            runtime.clock,
            runtime.wakeups.listen([]),
            os.environ.get(REGISTERED, ""),
        )
        return self._registration

    def leave_word(self) -> None:
        """Pass the digest of the registered tasks to the replacing process, which then skips the registration."""
        if self._registration is not None:
            os.environ[REGISTERED] = self._registration.digest

    def _brokers_of(self, settings: WorkerSettings) -> dict[str, GuardedBroker]:
        """Return the broker of each queue that the worker uses.

        Runs that require labels have no hints, so a worker with labels polls the store. So does a worker in a data
        center, unless the broker separates hints by data center.
        """
        if self._brokers is None or settings.labels:
            return {}
        found = {queue: self._brokers.of(queue) for queue in settings.queues}
        return {
            queue: guarded
            for queue, guarded in found.items()
            if guarded is not None and (guarded.by_datacenter or not settings.datacenter)
        }

    def _queues(self, application: Application) -> dict[str, int]:
        """Return the configured queues, or all queues of the application."""
        return dict(self._settings.worker.queues) or dict.fromkeys(sorted(application.queues()), DEFAULT_SLOTS)


def _make_attempt_log(section: LogSection, clock: Clock) -> AttemptLog:
    readable = log_lines.chosen is not None and log_lines.chosen.readable
    every_attempt = section.runs == "all" or (section.runs == "auto" and readable)
    return AttemptLog(clock, every_attempt=every_attempt, tracebacks=Tracebacks(section.tracebacks))


def _always() -> bool:
    return True


def _make_guard(runtime: Runtime, sessions: Callable[[], list[SessionId]], *, schedules: bool) -> ClockGuard | None:
    """Return the clock guard, or None if the store uses the clock of this machine."""
    if not runtime.settings.store.startswith(POSTGRES) and not read_store_servers(runtime.settings.store):
        return None
    section = runtime.settings.clock
    rules = ClockRules(section.warn_offset, section.max_offset)
    return ClockGuard(runtime.store, runtime.wakeups, runtime.clock, rules, sessions, schedules=schedules)


def _pools(given: Mapping[str, int]) -> dict[int, int]:
    """Return the slots for each priority."""
    return {int(priority): slots for priority, slots in given.items()}


def make_coordinator(runtime: Runtime) -> EpochCheckedCoordinator | None:
    """Build the coordinator outside the store, or None if the store assigns shards."""
    found = read_coordination(runtime.settings.coordination)
    return None if found is None else EpochCheckedCoordinator(runtime.store, make_registry(found, runtime.clock))


async def make_brokers(runtime: Runtime) -> Brokers | None:
    """Build the brokers for the open store, or None if there are none."""
    section = runtime.settings.dispatch
    routes = read_routes(section.broker, section.queues)
    if not routes:
        return None
    identity = await runtime.store.identity()
    sealer = Sealer((section.key or await runtime.store.hint_key()).encode())
    made = {
        url: GuardedBroker(make_dispatch(url, runtime.clock, sealer, runtime.settings.datacenter), runtime.clock)
        for url in dict.fromkeys(routes.values())
        if url != STORE
    }
    return Brokers(list(made.values()), {queue: made.get(url) for queue, url in routes.items()}, identity)
