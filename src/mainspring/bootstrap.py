"""Settings → adapters → services. The only module that knows concrete adapters."""

import asyncio
import functools
import os
import random
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

import msgspec

from mainspring.adapters.clock.system import SystemClock
from mainspring.adapters.coordination import make_registry
from mainspring.adapters.dispatch import make_dispatch
from mainspring.adapters.events import make_sinks
from mainspring.adapters.mail.smtp import SmtpMail
from mainspring.adapters.secrets.environment import EnvironmentSecrets
from mainspring.adapters.secrets.folder import FolderSecrets
from mainspring.adapters.secrets.several import SeveralSecrets
from mainspring.adapters.store.memory import MemoryStore
from mainspring.adapters.wakeups.local import LocalWakeups
from mainspring.api.auth import Authenticator, KeyKeeper, Tokens
from mainspring.api.server import address_of, refuse_taken
from mainspring.api.token_rules import Algorithm, check_grant
from mainspring.control.budgets import BudgetKeeper
from mainspring.control.clock_guard import ClockGuard
from mainspring.control.datacenters import DatacenterKeeper
from mainspring.control.dead_letters import Undertaker
from mainspring.control.dispatch_health import examine_engine
from mainspring.control.dispatcher import Dispatcher
from mainspring.control.engine_watch import EngineWatch
from mainspring.control.figures import tell_of_scheduler, tell_of_sinks
from mainspring.control.fleet import Fleet
from mainspring.control.health_guard import HealthGuard
from mainspring.control.housekeeper import Housekeeper
from mainspring.control.ingest import Ingest
from mainspring.control.jobs import Jobs
from mainspring.control.monitor import Monitor
from mainspring.control.notifications import Notifier
from mainspring.control.publisher import Publisher
from mainspring.control.reaper import Reaper
from mainspring.control.registry_health import examine_registry
from mainspring.control.retention import RetentionKeeper
from mainspring.control.scheduler.scheduler import Scheduler
from mainspring.control.sealing import SealedCoordinator
from mainspring.control.shards import ShardKeeper
from mainspring.control.slos import SloKeeper
from mainspring.control.status_writer import StatusWriter
from mainspring.control.transfer import Moved, transfer
from mainspring.control.vitals import StoreVitals
from mainspring.control.webhooks import WebhookSink
from mainspring.domain.clock_guard import ClockRules
from mainspring.domain.coordination import STORE, read_coordination
from mainspring.domain.diagnosis import Finding, Signs, diagnose
from mainspring.domain.dispatch import OTHERS, read_routes
from mainspring.domain.errors import EngineUnavailable, Invalid, StoreUnavailable
from mainspring.domain.hints import Sealer
from mainspring.domain.ids import RunId, SessionId
from mainspring.domain.ingest import Voucher, read_request_topic
from mainspring.domain.instant import MILLISECOND, SECOND, Instant, Micros
from mainspring.domain.labels import label_words
from mainspring.domain.notices import QUEUE as NOTIFICATIONS
from mainspring.domain.redis_address import read_redis
from mainspring.domain.reserved import FAN_IN, FAN_OUT, WORKFLOW
from mainspring.domain.run import HeldRun
from mainspring.domain.secrets import SecretRules
from mainspring.domain.webhooks import QUEUE, read_webhooks
from mainspring.ports.access import Access
from mainspring.ports.board import Board
from mainspring.ports.catalog import Catalog, Reports
from mainspring.ports.clock import Clock
from mainspring.ports.clocks import Clocks
from mainspring.ports.coordination import Sealing
from mainspring.ports.dead_letters import DeadLetters
from mainspring.ports.egress import Egress
from mainspring.ports.events_out import EventFacts, Sink
from mainspring.ports.explaining import Explaining
from mainspring.ports.health import Health, PoolUse, SettingView, Watched
from mainspring.ports.leases import Leases
from mainspring.ports.notifications import NotificationStore
from mainspring.ports.operations import Operations
from mainspring.ports.schema import Migrated, Migrates, Migration
from mainspring.ports.secrets import Secrets
from mainspring.ports.store import Retention, Store, Workforce
from mainspring.ports.usage import Budgeting
from mainspring.ports.wakeups import Wakeups
from mainspring.runtime.engines import Engines, GuardedEngine
from mainspring.runtime.metrics import declared
from mainspring.runtime.metrics.book import Book
from mainspring.runtime.metrics.engines import tell_of_engines
from mainspring.runtime.metrics.figures import Figures
from mainspring.runtime.service import Service
from mainspring.runtime.supervisor import Supervisor
from mainspring.settings import (
    AuthSection,
    OidcSection,
    SecretsSection,
    Settings,
    TasksSection,
    describe,
    read_file,
    servers_of,
    without_secrets,
)
from mainspring.worker.builtin.confinement import Confinement, Limits
from mainspring.worker.builtin.container import Containers, find_engine
from mainspring.worker.builtin.tasks import BuiltinTasks
from mainspring.worker.figures import tell_of_worker
from mainspring.worker.handler import AsyncHandler, Handler, HandlerSource, Host
from mainspring.worker.noticeboard import FlagListener, WorkerShower
from mainspring.worker.pulse import Pulse
from mainspring.worker.secrets import Keyring
from mainspring.worker.settings import ChildSettings, WorkerSettings
from mainspring.worker.worker import Worker

if TYPE_CHECKING:
    from mainspring.adapters.ingest.kafka import KafkaAcceptance
    from mainspring.adapters.store.postgres.health import PostgresHealth
    from mainspring.adapters.store.several import SeveralStore
    from mainspring.api.context import Api
    from mainspring.ui.oidc import OidcSettings

#: How many runs of a queue a worker runs at once where nobody said.
DEFAULT_SLOTS = 100
_VERSION = metadata.version("mainspring")
_POSTGRES = ("postgresql://", "postgres://")
#: How many seconds a cancel waits for being heard of sooner.
_FLAGGED_WITHIN = 0.25
#: What nobody calls a file: something:// and the schemes of databases.
_ADDRESS = re.compile(r"[^/]*://|(sqlite|file|postgres|postgresql):", re.IGNORECASE)


class EngineStore(
    Store,
    Sealing,
    Clocks,
    Catalog,
    Explaining,
    Budgeting,
    Operations,
    Access,
    Reports,
    DeadLetters,
    Leases,
    EventFacts,
    NotificationStore,
    Protocol,
):
    """Every store here also says who owns which shard."""


@runtime_checkable
class Pooled(Protocol):
    """A store with connections."""

    def pool(self) -> PoolUse | None: ...


class Application(HandlerSource, Protocol):
    """What a worker runs."""

    def queues(self) -> Collection[str]:
        """The queues that its tasks are submitted to."""
        ...

    def adopt(self, settings: bytes) -> None:
        """In a child process: these are the settings of the worker, as JSON."""
        ...


class Offer:
    """What a worker runs in all: the built-in tasks, and those of the application, if there is one. Its own win."""

    def __init__(self, settings: Settings, application: Application | None, engine: "Engine | None" = None) -> None:
        self._settings = settings
        self._application = application
        #: Where the tasks that make workflows and fan-outs submit to; without one they are not offered.
        self._engine = engine

    def handlers(self) -> Mapping[str, Handler]:
        tasks = make_builtin_tasks(self._settings)
        egress = functools.cache(lambda: make_egress(self._settings.tasks))
        found = dict(tasks.handlers(egress, now=system_time))
        if self._engine is not None:
            found[WORKFLOW] = make_workflow_handler(self._engine)
            found |= make_fan_handlers(self._engine)
        return found if self._application is None else found | dict(self._application.handlers())

    def queues(self) -> Collection[str]:
        queues = {"default"} if self._application is None else set(self._application.queues())
        queues |= {QUEUE} if self._settings.events.webhooks else set()
        return queues | {NOTIFICATIONS} if self._settings.notifications.channels else queues

    def adopt(self, settings: bytes) -> None:
        if self._application is not None:
            self._application.adopt(settings)

    def hosting(self) -> AbstractAsyncContextManager[None] | None:
        return self._application.hosting() if isinstance(self._application, Host) else None


class Role(StrEnum):
    SCHEDULER = "scheduler"
    WORKER = "worker"
    HTTP = "http"


def system_clock() -> Clock:
    """This machine's clock, for who has no engine."""
    return SystemClock()


def system_time() -> Instant:
    """What this machine's clock shows, for commands that need no store."""
    return system_clock().now()


class Engine:
    """The open adapters of one process: what submitting needs, and what services are made of."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self.wakeups = _make_wakeups(settings, self.clock)
        self.store = _make_store(settings, self.clock, self.wakeups)
        self.random = random.Random()
        section = settings.metrics
        #: What counts the runs that go through this process; none: nobody wants to know.
        self.figures = Figures(section.names, tenants=section.tenants) if section.enabled else None
        #: Where others read how runs and workers are, if anywhere.
        self.board = make_board(settings)
        self._jobs: Jobs | None = None
        self._opening: asyncio.Lock = asyncio.Lock()

    @property
    def jobs(self) -> Jobs:
        if self._jobs is None:
            raise StoreUnavailable("the engine is not open")
        return self._jobs

    async def open(self) -> None:
        """Idempotent."""
        if self._jobs is not None:
            return
        async with self._opening:
            if self._jobs is None:
                await self.store.open()
                try:
                    await self.wakeups.open()
                    if self.board is not None:
                        await self.board.open(await self.store.identity())
                except BaseException:
                    await self.store.close()
                    raise
                self._jobs = make_jobs(self.store, self.wakeups, self.clock, self.random, self._cancelled, self.figures)

    async def close(self) -> None:
        jobs, self._jobs = self._jobs, None
        if jobs is not None:
            if self.board is not None:
                await self.board.close()
            await self.wakeups.close()
            await self.store.close()

    async def _cancelled(self, jobs: Jobs, runs: Collection[RunId]) -> None:
        if self.board is not None:
            # The store knows already. This is quicker, or it is not worth waiting for.
            with suppress(EngineUnavailable, TimeoutError):
                async with asyncio.timeout(_FLAGGED_WITHIN):
                    await self.board.flag(runs)
        await self._cancel_members(jobs, runs)

    async def _cancel_members(self, jobs: Jobs, runs: Collection[RunId]) -> None:
        """Those of fan-outs. Their own clean-up may have to wait for a slot that a member has."""
        views = await self.store.runs(list(runs))
        roots = [view.id for view in views if view is not None and view.task == FAN_OUT]
        if roots:
            from mainspring.api.fan_out_task import cancel_members

            await cancel_members(roots, jobs, self.store)

    def replica_staleness(self) -> Micros | None:
        """How far the replica that lists come from was behind when somebody last listed."""
        replica = getattr(self.store, "replica", None)
        return None if replica is None else replica.staleness

    def pools(self) -> list[PoolUse]:
        """How connections are used, of each server; none where there are no connections."""
        found = [part.pool() for part in stores_of(self.store) if isinstance(part, Pooled)]
        return [use for use in found if use is not None]

    def workforce(self) -> "Callable[[], AbstractAsyncContextManager[Workforce]] | None":
        """How the heartbeat's thread gets a store of its own; none where the store lives in this very loop."""
        if isinstance(self.store, MemoryStore):
            return None

        @asynccontextmanager
        async def opened() -> AsyncIterator[Workforce]:
            store = _make_store(self.settings, self.clock, connections=1)
            await store.open()
            try:
                yield store
            finally:
                await store.close()

        return opened


class _Door:
    """Of an API that somebody else serves: whatever would not end by itself is let go of."""

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave = leave

    async def start(self) -> None: ...

    async def stop(self) -> None:
        self._leave()


class Node:
    """The services of one process, by its roles."""

    def __init__(
        self,
        settings: Settings,
        roles: set[Role],
        application: Application | None = None,
        path: str | None = None,
        *,
        listens: bool = True,
    ) -> None:
        """``listens``: False for one whose API somebody else serves: ``asgi``."""
        self.engine = Engine(settings)
        #: What answers HTTP, while it runs.
        self.asgi: Callable[[Any, Any, Any], Awaitable[None]] | None = None
        self._listens = listens
        self._settings = settings
        self._roles = roles
        self._application = Offer(settings, application, self.engine)
        self._path = path
        self._keepers: list[ShardKeeper] = []
        self._schedulers: list[Scheduler] = []
        self._monitor = Monitor()
        self._worker: Worker | None = None
        self._guard = _make_guard(self.engine, self._sessions)
        self._engines: Engines | None = None
        self._publishers: list[Publisher] = []
        self._ingest: Ingest | None = None
        self._supervisor = Supervisor()

    async def start(self) -> None:
        if Role.HTTP in self._roles and self._listens:
            # Before anything is done: a scheduler that ends at once would have taken shards from the others.
            refuse_taken(self._settings.host, self._settings.port)
        await self.engine.open()
        self._monitor = self._make_monitor()
        services: list[Service] = [] if self._guard is None else [self._guard]
        self._engines = await make_engines(self.engine)
        if self._engines is not None:
            services += [self._engines, EngineWatch(self._engines, self.engine.wakeups, self.engine.clock)]
        if Role.SCHEDULER in self._roles:
            services += self._scheduler_services()
            self._ingest = await make_ingest(self.engine, self.health)
            if self._ingest is not None:
                services.append(self._ingest)
        if Role.WORKER in self._roles:
            worker = self._worker_service(self._application)
            services += [worker, Pulse(worker, self.engine.wakeups, self.engine.clock)]
            if (board := self.engine.board) is not None:
                services.append(WorkerShower(worker, board, self.engine.wakeups, self.engine.clock))
                services.append(FlagListener(worker, board, self.engine.wakeups, self.engine.clock))
        if Role.HTTP in self._roles:
            services += self._http_services()
        elif self._settings.metrics.enabled:
            services.append(self._metrics_listener())
        self._supervisor = Supervisor(*services)
        await self._supervisor.start()

    async def stop(self) -> None:
        """Leave in good order: a worker lets its runs finish within the grace period.

        It begins at once, while the HTTP server takes its time to say goodbye.
        """
        leaving = [] if self._worker is None else [asyncio.create_task(self._worker.stop())]
        await self._supervisor.stop()
        await asyncio.gather(*leaving, return_exceptions=True)

    def stop_now(self) -> None:
        """Leave at once: what runs is given back."""
        if self._worker is not None:
            self._worker.stop_now()

    async def ended(self) -> bool:
        """Returns when there is nothing more to do here, and whether the process is to start anew: the worker has left
        because of its number of runs or its memory, or somebody has drained it.

        A drained worker beside other roles leaves alone: the others go on.
        """
        while not (worker := self._worker) or not (
            worker.wants_recycling or (worker.drained and self._roles == {Role.WORKER})
        ):
            await self.engine.clock.sleep(SECOND)
        await worker.left()
        return worker.wants_recycling

    async def health(self) -> Mapping[str, object]:
        """How this process is: what ``/healthz`` says."""
        found: dict[str, object] = {"status": "ok", "roles": sorted(role.value for role in self._roles)}
        if self._keepers:
            found["shards"] = sum(len(keeper.owned()) for keeper in self._keepers)
            engine = read_coordination(self._settings.coordination)
            # Not where it is: whoever may ask for this need not know that.
            found["coordination"] = STORE if engine is None else engine.kind
        if self._engines is not None:
            found["dispatch"] = self._engines.health()
        if self._publishers:
            found["events"] = {publisher.sink: publisher.health() for publisher in self._publishers}
        if self._ingest is not None:
            found["ingest"] = self._ingest.health()
        if self._worker is not None:
            found["running"] = self._worker.running
        if self._guard is not None and (reading := self._guard.reading()) is not None:
            found["clockOffsetMs"] = round(reading.offset / MILLISECOND, 1)
        return found

    def _make_monitor(self) -> Monitor:
        """Whoever has an API or schedules reads the fleet, too: of workers there may be thousands."""
        engine, every = self.engine, self._settings.metrics.every
        fleet = Fleet(
            engine.store,
            engine.clock,
            shards=sum(store.shards for store in stores_of(engine.store)),
            every=every,
            engines=lambda: self._engines,
        )
        schedules, lasting = Role.SCHEDULER in self._roles, self._settings.store != "memory:"
        monitor = Monitor(
            None if self._roles == {Role.WORKER} else fleet,
            StoreVitals(make_health(self._settings), engine.clock, every) if schedules and lasting else None,
        )
        if engine.figures is not None:
            engine.figures.schedules = schedules
            monitor.add(engine.figures.tell)
        monitor.add(self._tell)
        monitor.add(self._tell_of_process, harmless=True)
        return monitor

    def _tell(self, book: Book) -> None:
        if self._worker is not None:
            tell_of_worker(self._worker, book)
        if self._keepers:
            tell_of_scheduler(self._keepers, self._schedulers, book)
            tell_of_sinks(self._publishers, book)

    def _tell_of_process(self, book: Book) -> None:
        book.put(declared.BUILD, 1, _VERSION, ",".join(sorted(role.value for role in self._roles)))
        if self._guard is not None and (reading := self._guard.reading()) is not None:
            book.put(declared.PROCESS_CLOCK, reading.offset / SECOND)
        if pools := self.engine.pools():
            book.put(declared.POOL, sum(pool.used for pool in pools), "used")
            book.put(declared.POOL, sum(pool.idle for pool in pools), "idle")
            book.put(declared.POOL_LIMIT, sum(pool.most for pool in pools))
            book.put(declared.POOL_WAITING, sum(pool.waiting for pool in pools))
        tell_of_engines(self._engines, book)

    def _metrics_listener(self) -> Service:
        # Here and not above: child processes and clients need none.
        from mainspring.runtime.metrics.listener import MetricsListener

        section = self._settings.metrics
        return MetricsListener(section.host, section.ports, self._monitor.render, self.health, section.secret())

    def _sessions(self) -> list[SessionId]:
        """Under which this process is known to the store right now."""
        holding = self._worker.holding if self._worker is not None else None
        known = [*(keeper.member for keeper in self._keepers), None if holding is None else holding.session]
        return [session for session in known if session is not None]

    def banner(self) -> str:
        """What was started, in a line or two."""
        roles = ", ".join(sorted(role.value for role in self._roles))
        lines = [f"mainspring: {roles} on {without_secrets(self._settings.store)}"]
        if Role.SCHEDULER in self._roles and self._settings.coordination != STORE:
            lines.append(f"  shards by {without_secrets(self._settings.coordination)}")
        if Role.WORKER in self._roles:
            queues = ", ".join(f"{name}:{slots}" for name, slots in self._queues(self._application).items())
            lines.append(f"  {len(self._application.handlers())} tasks, queues {queues}")
        if Role.HTTP in self._roles:
            open_to = "no authentication: loopback only" if self._settings.auth.mode == "none" else "with credentials"
            lines.append(f"  http://{address_of(self._settings.host, self._settings.port)}/docs ({open_to})")
        return "\n".join(lines)

    def _scheduler_services(self) -> list[Service]:
        """For each server of the store, so that one that is away stops no other; and what counts over all of them."""
        engine = self.engine
        addresses = servers_of(self._settings.store) or (self._settings.store,)
        return [
            *(
                service
                for address, store in zip(addresses, stores_of(engine.store), strict=True)
                for service in self._services_of_server(store, address)
            ),
            BudgetKeeper(engine.store, engine.wakeups, engine.clock, engine.random),
            Undertaker(engine.store, engine.jobs, engine.wakeups, engine.clock),
        ]

    def _services_of_server(self, store: EngineStore, address: str) -> list[Service]:
        engine = self.engine
        sealed = make_coordinator(engine)
        keeper = ShardKeeper(
            sealed or store,
            store.shards,
            engine.wakeups,
            engine.clock,
            name=self._settings.scheduler.name or _label(),
            ttl=self._settings.scheduler.lease,
            fit=_always if self._guard is None else self._guard.fit,
        )
        kept = self._settings.retention
        retention = Retention(succeeded=kept.succeeded, unsuccessful=kept.unsuccessful, ledger=kept.ledger)
        self._keepers.append(keeper)
        watched = make_watched(self._settings, address)
        watch = None if watched is None else HealthGuard(watched, engine.wakeups, engine.clock, keeper.owned)
        scheduler = Scheduler(store, keeper, engine.wakeups, engine.clock, figures=engine.figures)
        self._schedulers.append(scheduler)
        if sealed is not None:
            sealed.on_change(keeper.bell.ring)
        return [
            *([] if sealed is None else [sealed]),
            keeper,
            scheduler,
            Reaper(store, engine.wakeups, engine.clock, engine.random, engine.figures),
            Housekeeper(store, engine.wakeups, engine.clock),
            SloKeeper(store, engine.wakeups, engine.clock, engine.figures),
            DatacenterKeeper(
                store,
                engine.wakeups,
                engine.clock,
                datacenter=self._settings.datacenter,
                version=_VERSION,
                member=lambda: keeper.member,
            ),
            *([] if watch is None else [watch]),
            RetentionKeeper(
                store,
                engine.wakeups,
                engine.clock,
                engine.random,
                retention,
                pressed=lambda: watch is not None and watch.pressed,
            ),
            *(
                []
                if engine.board is None
                else [StatusWriter(store, engine.board, engine.wakeups, engine.clock, keeper.owned)]
            ),
            *(
                []
                if self._engines is None
                else [Dispatcher(store, self._engines, engine.wakeups, engine.clock, keeper.owned)]
            ),
            *self._publishers_of(store, keeper),
        ]

    def _publishers_of(self, store: EngineStore, keeper: ShardKeeper) -> list[Service]:
        """One for each sink: who is away holds up nobody else."""
        engine, section = self.engine, self._settings.events
        sinks: list[Sink] = make_sinks(section.kafka, section.redis, section.redis_length)
        sinks += [WebhookSink(webhook, engine.jobs) for webhook in read_webhooks(section.webhooks)]
        rules = self._settings.notifications.read()
        notifiers: list[Notifier] = []
        if rules.rules:
            notifiers.append(Notifier(store, engine.jobs, rules, engine.wakeups, engine.clock, keeper.owned))
            sinks += notifiers
        made = [Publisher(store, sink, engine.wakeups, engine.clock, keeper.owned, section.keep) for sink in sinks]
        self._publishers += made
        return [*made, *notifiers]

    def _http_services(self) -> list[Service]:
        # Here and not above: importing it takes as long as everything else together, and child processes need none.
        from mainspring.api.app import make_app
        from mainspring.api.server import HttpServer

        engine, settings = self.engine, self._settings
        auth = settings.auth
        authenticator = Authenticator(
            engine.store,
            engine.clock,
            required=auth.mode != "none",
            keys=auth.takes_keys,
            tokens=make_tokens(auth, engine.clock),
        )
        acceptance = make_acceptance(settings)
        api = _make_api(engine, authenticator, self.health, self._monitor, acceptance)
        app = make_app(api)
        if settings.ui.enabled:
            from mainspring.ui.app import UiSettings, make_ui

            ui = settings.ui
            app = make_ui(api, app, UiSettings(ui.secret, ui.read_only, ui.redact, _oidc(settings.oidc)))
        self.asgi = app
        keeper = KeyKeeper(authenticator, engine.wakeups, engine.clock)
        server = HttpServer(settings.host, settings.port, app, engine.clock, leave=api.leave)
        door: Service = server if self._listens else _Door(api.leave)
        return [api.hub, keeper, *([] if acceptance is None else [acceptance]), door]

    def _worker_service(self, application: Application) -> Worker:
        section = self._settings.worker
        _check_surroundings(self._settings)
        settings = WorkerSettings(
            name=section.name or _label(),
            queues=self._queues(application),
            priorities=_pools(section.priorities),
            labels=label_words("worker.labels", section.labels),
            version=_VERSION,
            datacenter=self._settings.datacenter,
            lease=section.lease,
            beat_interval=section.lease * 3 // 10,
            lease_margin=section.lease // 5,
            grace=section.grace,
            capture_logs=section.capture_logs,
            recycle_after_runs=section.recycle_after_runs or None,
            recycle_memory_bytes=section.recycle_memory or None,
            children=ChildSettings(
                children=section.children,
                threads_per_child=section.threads_per_child,
                recycle_after_runs=section.recycle_child_after_runs or None,
                recycle_memory_bytes=section.recycle_child_memory or None,
                adopts=msgspec.json.encode(self.engine.settings),
            ),
        )
        engine = self.engine
        self._worker = Worker(
            engine.store,
            engine.wakeups,
            engine.clock,
            application,
            settings,
            source=self._path,
            open_workforce=engine.workforce(),
            jitter=engine.random,
            engines=self._engines_of(settings),
            figures=engine.figures,
        )
        return self._worker

    def _engines_of(self, settings: WorkerSettings) -> dict[str, GuardedEngine]:
        """By queue. There are no hints of what requires labels, so a worker that has some asks the store. So does one
        in a data centre, unless its engine keeps the hints for these apart."""
        if self._engines is None or settings.labels:
            return {}
        found = {queue: self._engines.of(queue) for queue in settings.queues}
        return {
            queue: guarded
            for queue, guarded in found.items()
            if guarded is not None and (guarded.by_datacenter or not settings.datacenter)
        }

    def _queues(self, application: Application) -> dict[str, int]:
        """The queues that were asked for, or every one that the application uses."""
        return dict(self._settings.worker.queues) or dict.fromkeys(sorted(application.queues()), DEFAULT_SLOTS)


def _always() -> bool:
    return True


def _make_guard(engine: Engine, sessions: Callable[[], list[SessionId]]) -> ClockGuard | None:
    """Where the store's clock is another machine's: elsewhere it is this one's own."""
    if not engine.settings.store.startswith(_POSTGRES) and not servers_of(engine.settings.store):
        return None
    section = engine.settings.clock
    return ClockGuard(engine.store, engine.wakeups, engine.clock, ClockRules(section.warn, section.fence), sessions)


def _pools(given: Mapping[str, int]) -> dict[int, int]:
    """A pool of slots for each priority."""
    return {int(priority): slots for priority, slots in given.items()}


@asynccontextmanager
async def local_api(engine: Engine) -> AsyncIterator["Api"]:
    """What the API is made of, on an open engine and without a server: for commands that are given a store."""

    async def health() -> Mapping[str, object]:
        return {"status": "ok", "roles": []}

    # Nobody is asked who they are: whoever reaches the store could do all of it without us.
    api = _make_api(engine, Authenticator(engine.store, engine.clock, required=False), health)
    await api.hub.start()
    try:
        yield api
    finally:
        await api.hub.stop()


def _make_api(
    engine: Engine,
    authenticator: Authenticator,
    health: Callable[[], Awaitable[Mapping[str, object]]],
    monitor: Monitor | None = None,
    accepting: "KafkaAcceptance | None" = None,
) -> "Api":
    from mainspring.api.acceptance import Acceptance
    from mainspring.api.context import Api
    from mainspring.api.hub import Hub
    from mainspring.api.limits import Buckets
    from mainspring.api.metrics import Metrics
    from mainspring.api.proxies import read_networks

    settings = engine.settings
    return Api(
        engine.store,
        engine.jobs,
        engine.wakeups,
        engine.clock,
        auth=authenticator,
        buckets=Buckets(engine.clock, settings.api.rate, settings.api.burst),
        hub=Hub(engine.store, engine.clock, _label()),
        metrics=Metrics(monitor or Monitor(), engine.figures, engine.replica_staleness),
        health=health,
        tasks=make_builtin_tasks(settings),
        proxies=read_networks("api.trusted_proxies", settings.api.trusted_proxies),
        production=settings.production,
        acceptance=None if accepting is None else Acceptance(accepting, engine.clock, settings.ingest.bound_to),
        system=_System(settings),
        notifications=settings.notifications.read(),
    )


async def migrate(settings: Settings, *, contract: bool = False) -> Migrated:
    """Bring the store's schema up to date, as every process does when it starts; what was done."""
    store = _make_store(settings, SystemClock())
    applied: list[Migration] = []
    waiting: list[Migration] = []
    if settings.store.startswith(_POSTGRES) or servers_of(settings.store):
        for server in stores_of(store):
            done = await cast(Migrates, server).migrate(contract=contract)
            applied += done.applied
            waiting += done.waiting
    elif contract:
        raise Invalid("--contract", "is for PostgreSQL", "the processes on a file are stopped and started together")
    await store.open()
    await store.close()
    return Migrated(applied=tuple(applied), waiting=tuple(waiting))


def make_health(settings: Settings) -> Health:
    """What examines the store, without opening it as a process would."""
    if settings.store == "memory:":
        raise Invalid("store", "memory: keeps nothing", "a path for SQLite, or postgresql://…")
    if servers := servers_of(settings.store):
        from mainspring.adapters.store.several.health import SeveralHealth

        each = [msgspec.structs.replace(settings, store=address) for address in servers]
        return SeveralHealth([(without_secrets(one.store), make_health(one)) for one in each])
    if settings.store.startswith(_POSTGRES):
        return _postgres_health(settings)
    from mainspring.adapters.store.sqlite.health import SqliteHealth

    return SqliteHealth(path_of(settings.store), SystemClock())


def _postgres_health(settings: Settings) -> "PostgresHealth":
    try:
        from mainspring.adapters.store.postgres.health import PostgresHealth
    except ModuleNotFoundError as error:
        raise _missing("PostgreSQL", "postgres", error) from error
    kept = settings.retention
    return PostgresHealth(
        settings.store,
        settings.schema,
        SystemClock(),
        connections=settings.connections,
        retention=Retention(succeeded=kept.succeeded, unsuccessful=kept.unsuccessful, ledger=kept.ledger),
        replica=(settings.replica, settings.replica_lag) if settings.replica else None,
    )


def make_watched(settings: Settings, address: str) -> Watched | None:
    """What watches one server of a store; None where nobody else works on it."""
    if not address.startswith(_POSTGRES):
        return None
    return _postgres_health(msgspec.structs.replace(settings, store=address))


def make_coordinator(engine: Engine) -> SealedCoordinator | None:
    """What grants shards outside the store; None where the store does it."""
    found = read_coordination(engine.settings.coordination)
    return None if found is None else SealedCoordinator(engine.store, make_registry(found, engine.clock))


def make_board(settings: Settings) -> Board | None:
    """Where others read how runs and workers are; None where nobody asked for it."""
    if not settings.dispatch.status:
        return None
    try:
        from mainspring.adapters.board.redis import RedisBoard
    except ModuleNotFoundError as error:
        raise _missing("Redis", "redis", error) from error
    return RedisBoard(read_redis(settings.dispatch.status, "dispatch.status"))


async def make_engines(engine: Engine) -> Engines | None:
    """What brings hints of what waits in the store, which is open; None where nothing does."""
    section = engine.settings.dispatch
    routes = read_routes(section.engine, section.queues)
    if not routes:
        return None
    identity = await engine.store.identity()
    sealer = Sealer((section.key or await engine.store.hint_key()).encode())
    made = {
        url: GuardedEngine(make_dispatch(url, engine.clock, sealer, engine.settings.datacenter), engine.clock)
        for url in dict.fromkeys(routes.values())
        if url != STORE
    }
    return Engines(list(made.values()), {queue: made.get(url) for queue, url in routes.items()}, identity)


async def make_ingest(engine: Engine, health: Callable[[], Awaitable[Mapping[str, object]]]) -> Ingest | None:
    """What makes jobs of requests that come by a topic; None where there is none."""
    section = engine.settings.ingest
    if not section.kafka:
        return None
    # Here and not above: it is the API that reads and checks them.
    from mainspring.api.ingest import JobMaker

    with _needing_kafka():
        from mainspring.adapters.ingest.kafka import KafkaRequests
    topic = read_request_topic(section.kafka, "ingest.kafka")
    requests = KafkaRequests(topic, await engine.store.identity(), engine.clock, _voucher(engine.settings))
    api = _make_api(engine, Authenticator(engine.store, engine.clock, required=False), health)
    return Ingest(requests, JobMaker(api, section.bound_to).make, engine.clock, engine.wakeups.listen([]))


def make_acceptance(settings: Settings) -> "KafkaAcceptance | None":
    """What takes jobs in for an API while the store is away."""
    if not settings.api.accept_by:
        return None
    with _needing_kafka():
        from mainspring.adapters.ingest.kafka import KafkaAcceptance
    return KafkaAcceptance(read_request_topic(settings.ingest.kafka, "ingest.kafka"), _voucher(settings))


def _voucher(settings: Settings) -> Voucher | None:
    # Not the store's id, as for hints: it is in the name of a group of consumers.
    return Voucher(settings.dispatch.key.encode()) if settings.dispatch.key else None


@contextmanager
def _needing_kafka() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        hint = "pip install 'mainspring[kafka]'"
        raise Invalid("ingest.kafka", f"Kafka needs the package {error.name}", hint) from error


async def examine(settings: Settings) -> list[Finding]:
    """What is wrong, or soon will be: with the store, with what grants shards, with what brings hints."""
    examination = await make_health(settings).examine()
    findings = list(examination.findings) + await _examine_coordination(settings)
    findings += await _examine_dispatch(settings, examination.signs)
    return findings if examination.signs is None else findings + diagnose(examination.signs)


class _System:
    """This process, as its administrators may look at it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def settings(self) -> list[SettingView]:
        defaults = dict(describe())
        return [SettingView(name, value, value != defaults[name]) for name, value in describe(self._settings)]

    async def examine(self) -> list[Finding]:
        # Nothing lasts there that could be wrong.
        return [] if self._settings.store == "memory:" else await examine(self._settings)


async def _examine_coordination(settings: Settings) -> list[Finding]:
    """How the engine is that grants shards; nothing to say where the store does it."""
    found = read_coordination(settings.coordination)
    if found is None:
        return []
    registry = make_registry(found, SystemClock())
    return [await examine_registry(registry, found.kind, settings.scheduler.lease, SystemClock())]


async def _examine_dispatch(settings: Settings, signs: Signs | None) -> list[Finding]:
    """How the engines are that bring hints; nothing to say where there are none. ``signs``: how the store is."""
    section, clock = settings.dispatch, SystemClock()
    routes = read_routes(section.engine, section.queues)
    namespace, queues = ("", []) if signs is None else (signs.identity, signs.queues())
    findings = []
    for url in dict.fromkeys(routes.values()):
        if url != STORE:
            mine = [queue for queue in queues if routes.get(queue, routes[OTHERS]) == url]
            engine = make_dispatch(url, clock, Sealer(b""))
            findings.append(await examine_engine(engine, clock, namespace, mine))
    return findings


async def move(settings: Settings, target: Settings, tell: Callable[[str, int, int], None]) -> Moved:
    """Take everything from an SQLite file to PostgreSQL. ``tell``: of each batch its kind, how many, of how many."""
    if not target.store.startswith(_POSTGRES):
        raise Invalid("--to", "is not PostgreSQL", "postgresql://user@host/database")
    if settings.store == "memory:" or settings.store.startswith(_POSTGRES):
        raise Invalid("--from", "is not an SQLite file", "such as mainspring.db")
    from mainspring.adapters.store.sqlite.transfer import SqliteSource

    try:
        from mainspring.adapters.store.postgres.transfer import PostgresTarget
    except ModuleNotFoundError as error:
        raise _missing("PostgreSQL", "postgres", error) from error
    source = SqliteSource(path_of(settings.store), SystemClock())
    to = PostgresTarget(target.store, target.schema)
    return await transfer(source, to, without_secrets(target.store), tell)


def make_builtin_tasks(settings: Settings) -> BuiltinTasks:
    """Which built-in tasks these settings allow."""
    tasks = settings.tasks
    return BuiltinTasks(
        http=tasks.http,
        scripts=Path(tasks.scripts).expanduser() if tasks.scripts else None,
        commands=tasks.commands,
        confinement=_confinement(tasks),
        containers=Containers(tasks.containers, tasks.images, network=tasks.network, limits=_limits(tasks)),
        keyring=make_keyring(settings.secrets),
        webhooks=read_webhooks(settings.events.webhooks),
        notifications=settings.notifications.read(),
        mail=SmtpMail(),
    )


def make_workflow_handler(engine: "Engine | Callable[[], Awaitable[Engine]]") -> Handler:
    """The task ``workflow``, which submits through an engine: an open one, or one that is opened when it is needed."""

    async def opened() -> tuple[Jobs, Store]:
        found = engine if isinstance(engine, Engine) else await engine()
        return found.jobs, found.store

    async def invoke(held: HeldRun) -> bytes | None:
        # Here and not above: most processes make no workflows, and it takes a while to import.
        from mainspring.api.workflow_task import workflow_handler

        return await workflow_handler(opened).invoke(held)

    return AsyncHandler(WORKFLOW, invoke, harmless=True)


def make_fan_handlers(engine: "Engine | Callable[[], Awaitable[Engine]]") -> dict[str, Handler]:
    """The tasks ``fan_out`` and ``fan_in``, likewise."""

    async def opened() -> tuple[Jobs, Store]:
        found = engine if isinstance(engine, Engine) else await engine()
        return found.jobs, found.store

    async def fan_out(held: HeldRun) -> bytes | None:
        from mainspring.api.fan_out_task import fan_out_handler

        return await fan_out_handler(opened).invoke(held)

    async def fan_in(held: HeldRun) -> bytes | None:
        from mainspring.api.fan_out_task import fan_in_handler

        return await fan_in_handler(opened).invoke(held)

    return {
        FAN_OUT: AsyncHandler(FAN_OUT, fan_out, harmless=True),
        FAN_IN: AsyncHandler(FAN_IN, fan_in, harmless=True),
    }


def make_keyring(section: SecretsSection) -> Keyring:
    """Where secrets come from, and who may use which."""
    places: list[Secrets] = [EnvironmentSecrets()]
    if section.folder:
        places.append(FolderSecrets(Path(section.folder).expanduser()))
    return Keyring(SeveralSecrets(places), SecretRules(section.allow))


def _limits(tasks: TasksSection) -> Limits:
    return Limits(
        memory=tasks.memory,
        cpus=tasks.cpus,
        cpu_time=tasks.cpu_time,
        open_files=tasks.open_files,
        processes=tasks.processes,
    )


def _confinement(tasks: TasksSection) -> Confinement:
    return Confinement(_limits(tasks), user=tasks.user, cgroup=tasks.cgroup)


def _check_surroundings(settings: Settings) -> None:
    """What a worker needs of its machine for what its settings say."""
    tasks = settings.tasks
    for name, folder in (("tasks.scripts", tasks.scripts), ("secrets.folder", settings.secrets.folder)):
        if folder and not Path(folder).expanduser().is_dir():
            raise Invalid(name, f"{folder} is not a folder")
    _confinement(tasks).check()
    if tasks.containers:
        find_engine(tasks.containers)


def make_egress(tasks: TasksSection) -> Egress:
    """The one way out for calls that users ask for."""
    # Here and not above: it takes a tenth of a second to import, and most processes call nobody.
    from mainspring.adapters.egress.guarded import GuardedEgress

    return GuardedEgress(tasks.http_allow)


def _oidc(section: OidcSection) -> "OidcSettings | None":
    """Where people sign in to the dashboard; none: nowhere."""
    if not section.issuer:
        return None
    from mainspring.ui.oidc import OidcSettings

    return OidcSettings(
        issuer=section.issuer,
        client_id=section.client_id,
        client_secret=section.secret(),
        url=section.url,
        algorithm=msgspec.convert(section.algorithm, Algorithm),
        scopes=section.scopes,
        group_claim=section.group_claim,
        name_claim=section.name_claim,
        label=section.label,
        roles={group: check_grant("oidc.roles", group, words) for group, words in section.roles.items()},
    )


def make_tokens(auth: AuthSection, clock: Clock) -> Tokens | None:
    """What reads bearer tokens; None where they are not let in. Keys in files are read here, once."""
    if not auth.takes_tokens:
        return None
    from mainspring.api import tokens

    algorithm = msgspec.convert(auth.jwt_algorithm, Algorithm)
    keys: tokens.Keys
    if auth.jwks_url:
        keys = tokens.JwksUrl(auth.jwks_url, algorithm, clock)
    elif auth.jwks_file:
        keys = tokens.read_jwks("auth.jwks_file", read_file("auth.jwks_file", auth.jwks_file), algorithm)
    elif auth.jwt_key_file:
        keys = tokens.read_pem("auth.jwt_key_file", read_file("auth.jwt_key_file", auth.jwt_key_file), algorithm)
    else:
        keys = tokens.secret_key("auth.jwt_secret_file" if auth.jwt_secret_file else "auth.jwt_secret", auth.secret())
    return tokens.JwtTokens(
        keys,
        clock,
        algorithm=algorithm,
        issuer=auth.jwt_issuer,
        audience=auth.jwt_audience,
        role_claim=auth.jwt_role_claim,
        tenant_claim=auth.jwt_tenant_claim,
    )


def _make_store(
    settings: Settings, clock: Clock, wakeups: Wakeups | None = None, connections: int | None = None
) -> EngineStore:
    if settings.store == "memory:":
        return MemoryStore(clock, settings.shards, wakeups)
    if servers := servers_of(settings.store):
        return _make_several(settings, clock, servers, wakeups, connections)
    if settings.store.startswith(("postgresql://", "postgres://")):
        try:
            from mainspring.adapters.store.postgres import PostgresStore
            from mainspring.adapters.wakeups.postgres import PostgresWakeups
        except ModuleNotFoundError as error:
            raise _missing("PostgreSQL", "postgres", error) from error
        return PostgresStore(
            settings.store,
            schema=settings.schema,
            shards=settings.shards,
            connections=connections or settings.connections,
            migrate=connections is None,
            wakeups=wakeups if isinstance(wakeups, PostgresWakeups) else None,
            transactions=settings.worker.transactions,
            replica=(settings.replica, settings.replica_lag) if settings.replica else None,
        )
    from mainspring.adapters.store.sqlite import SqliteStore

    return SqliteStore(path_of(settings.store), clock, settings.shards)


def _make_several(
    settings: Settings, clock: Clock, servers: Sequence[str], wakeups: Wakeups | None, connections: int | None
) -> "SeveralStore":
    try:
        from mainspring.adapters.store.postgres import PostgresStore
        from mainspring.adapters.store.several import SeveralStore
        from mainspring.adapters.wakeups.several import SeveralWakeups
    except ModuleNotFoundError as error:
        raise _missing("PostgreSQL", "postgres", error) from error

    def make(address: str, number: int) -> PostgresStore:
        return PostgresStore(
            address,
            schema=settings.schema,
            shards=settings.shards,
            connections=connections or settings.connections,
            migrate=connections is None,
            wakeups=wakeups.parts[number] if isinstance(wakeups, SeveralWakeups) else None,
            one_of_several=True,
        )

    return SeveralStore([(address, without_secrets(address)) for address in servers], clock, make)


@asynccontextmanager
async def open_several(settings: Settings) -> AsyncIterator["SeveralStore"]:
    """The store over several servers, for what is done to the servers themselves."""
    servers = servers_of(settings.store)
    if not servers:
        raise Invalid("store", "is on one server", "a list of them, as in docs/operations/several-servers.md")
    store = _make_several(settings, SystemClock(), servers, None, None)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def stores_of(store: EngineStore) -> list[EngineStore]:
    """The store on each server; mostly there is one."""
    found = getattr(store, "stores", None)
    return [store] if found is None else [part for _, part in found]


def make_jobs(
    store: EngineStore,
    wakeups: Wakeups,
    clock: Clock,
    random: random.Random,
    along: Callable[[Jobs, Collection[RunId]], Awaitable[None]] | None = None,
    figures: Figures | None = None,
) -> Jobs:
    """What takes work in. Over several servers it chooses the place of every id."""
    return Jobs(
        store,
        wakeups,
        clock,
        random,
        shards=store.shards,
        along=along,
        places=getattr(store, "place_count", 0),
        apart=getattr(store, "server_of", None),
        figures=figures,
    )


def _make_wakeups(settings: Settings, clock: Clock) -> Wakeups:
    if settings.store == "memory:":
        return LocalWakeups()
    if servers := servers_of(settings.store):
        try:
            from mainspring.adapters.wakeups.several import SeveralWakeups
        except ModuleNotFoundError as error:
            raise _missing("PostgreSQL", "postgres", error) from error
        return SeveralWakeups(servers, clock, settings.schema)
    if settings.store.startswith(("postgresql://", "postgres://")):
        try:
            from mainspring.adapters.wakeups.postgres import PostgresWakeups
        except ModuleNotFoundError as error:
            raise _missing("PostgreSQL", "postgres", error) from error
        return PostgresWakeups(settings.store, clock, settings.schema)
    from mainspring.adapters.wakeups.sqlite import SqliteWakeups

    return SqliteWakeups(path_of(settings.store), clock)


def path_of(store: str) -> Path:
    """The file that is meant; refuses what is rather a mistyped address."""
    path = store.removeprefix("sqlite:///")
    if path in ("memory", ":memory:"):
        raise Invalid("store", f"{path} is not a store", "memory: for nothing lasting, ./memory for a file")
    if mistyped := _ADDRESS.match(path):
        raise Invalid("store", f"{mistyped[0]} is not a store", "a path, sqlite:///path, postgresql://… or memory:")
    if "\0" in path:
        raise Invalid("store", "a path cannot hold a zero byte")
    try:
        return Path(path or "mainspring.db").expanduser()
    except RuntimeError as error:
        raise Invalid("store", f"{path}: {error}") from error


def _missing(what: str, extra: str, error: ModuleNotFoundError) -> Invalid:
    return Invalid("store", f"{what} needs the package {error.name}", f"pip install 'mainspring[{extra}]'")


def _label() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"
