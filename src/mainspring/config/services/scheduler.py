"""Builds the services of a scheduler."""

from collections.abc import Callable
from importlib import metadata

from mainspring.config.health import make_watched
from mainspring.config.runtime import Runtime
from mainspring.config.sections.addresses import read_store_servers
from mainspring.config.servers.blobs import make_blobs
from mainspring.config.servers.sinks import make_sinks
from mainspring.config.services.cluster import make_coordinator
from mainspring.config.services.metrics import (
    write_archive_metrics,
    write_run_logs_metrics,
    write_scheduler_metrics,
    write_sinks_metrics,
)
from mainspring.config.stores import RuntimeStore, build_label, list_stores, read_retention
from mainspring.core.cluster.clock_guard import ClockGuard
from mainspring.core.cluster.datacenters import DatacenterKeeper
from mainspring.core.cluster.shards import ShardKeeper
from mainspring.core.dispatch.dispatcher import Dispatcher
from mainspring.core.maintenance.health_guard import HealthGuard
from mainspring.core.maintenance.housekeeper import Housekeeper
from mainspring.core.maintenance.load_sampler import LoadSampler
from mainspring.core.maintenance.reaper import Reaper
from mainspring.core.maintenance.unserved_runs import UnservedRuns
from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.cluster.coordination import STORE, read_coordination
from mainspring.core.model.events.webhooks import read_webhooks
from mainspring.core.ports.blobs import Blobs
from mainspring.core.ports.events_out import Sink
from mainspring.core.ports.upkeep.archive import ArchiveStore
from mainspring.core.runtime.brokers import Brokers
from mainspring.core.runtime.metrics.exposition import Exposition
from mainspring.core.runtime.service import Service
from mainspring.core.scheduler.scheduler import Scheduler
from mainspring.features.alerts.service import Notifier
from mainspring.features.archive.retention import RetentionKeeper
from mainspring.features.archive.service import Archiver
from mainspring.features.dead_letters.service import DeadLetterService
from mainspring.features.events.service import Publisher
from mainspring.features.events.status_writer import StatusWriter
from mainspring.features.events.webhooks import WebhookSink
from mainspring.features.logs.service import LogKeeper
from mainspring.features.slo.service import SloKeeper
from mainspring.features.usage.service import BudgetKeeper

_VERSION = metadata.version("mainspring")


class SchedulerServices:
    """The services of a scheduler: one set per server of the store, and those that span all servers.

    With one set per server, a server that is unavailable does not stop the others.
    """

    def __init__(self, runtime: Runtime, guard: ClockGuard | None, brokers: Brokers | None) -> None:
        self._runtime = runtime
        self._settings = runtime.settings
        self._guard = guard
        self._brokers = brokers
        self._blobs: Blobs | None = None
        self._keepers: list[ShardKeeper] = []
        self._schedulers: list[Scheduler] = []
        self._archivers: list[Archiver] = []
        self._log_keepers: list[LogKeeper] = []
        self._publishers: list[Publisher] = []

    def make(self) -> list[Service]:
        """Build the services, in the order in which they start."""
        runtime = self._runtime
        if self._settings.retention.archive:
            self._blobs = make_blobs(self._settings.retention.archive, "retention.archive", self._settings.blobs)
        addresses = read_store_servers(self._settings.store) or (self._settings.store,)
        return [
            *(
                service
                for address, store in zip(addresses, list_stores(runtime.store), strict=True)
                for service in self._make_for_server(store, address)
            ),
            BudgetKeeper(runtime.store, runtime.wakeups, runtime.clock, runtime.random),
            DeadLetterService(runtime.store, runtime.jobs, runtime.wakeups, runtime.clock),
        ]

    def _make_for_server(self, store: RuntimeStore, address: str) -> list[Service]:
        runtime = self._runtime
        sealed = make_coordinator(runtime)
        keeper = ShardKeeper(
            sealed or store,
            store.shards,
            runtime.wakeups,
            runtime.clock,
            name=self._settings.scheduler.name or build_label(),
            ttl=self._settings.scheduler.lease,
            fit=_always if self._guard is None else self._guard.fit,
        )
        retention = read_retention(self._settings)
        self._keepers.append(keeper)
        watched = make_watched(self._settings, address)
        watch = None if watched is None else HealthGuard(watched, runtime.wakeups, runtime.clock, keeper.owned)

        def pressed() -> bool:
            return watch is not None and watch.pressed

        archiver = None
        if self._blobs is not None and isinstance(store, ArchiveStore):
            archiver = Archiver(store, self._blobs, runtime.clock, keeper.owned, pressed)
            self._archivers.append(archiver)
        scheduler = Scheduler(store, keeper, runtime.wakeups, runtime.clock, metrics=runtime.metrics)
        self._schedulers.append(scheduler)
        if sealed is not None:
            sealed.on_change(keeper.wakeup.notify)
        return [
            *([] if sealed is None else [sealed]),
            keeper,
            scheduler,
            Reaper(store, runtime.wakeups, runtime.clock, runtime.random, runtime.metrics),
            Housekeeper(store, runtime.wakeups, runtime.clock, runtime.metrics),
            LoadSampler(store, runtime.wakeups, runtime.clock, keeper.owned),
            UnservedRuns(store, runtime.wakeups, runtime.clock, keeper.owned),
            SloKeeper(store, runtime.wakeups, runtime.clock, runtime.metrics),
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
            *self._make_log_keepers(store, keeper, pressed),
            *self._make_publishers(store, keeper),
        ]

    def _make_log_keepers(
        self, store: RuntimeStore, keeper: ShardKeeper, pressed: Callable[[], bool]
    ) -> list[LogKeeper]:
        """Return the service that moves logs out of the store; none if logs stay in the store."""
        runtime = self._runtime
        if runtime.run_logs is None:
            return []
        made = LogKeeper(
            store,
            runtime.run_logs,
            runtime.wakeups,
            runtime.clock,
            keeper.owned,
            self._settings.run_logs.keep,
            read_retention(self._settings),
            pressed,
        )
        self._log_keepers.append(made)
        return [made]

    def _make_publishers(self, store: RuntimeStore, keeper: ShardKeeper) -> list[Service]:
        """Return one publisher per sink, so that a sink that is unavailable does not delay the others."""
        runtime, section = self._runtime, self._settings.events
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

    async def close(self) -> None:
        if self._blobs is not None:
            await self._blobs.close()

    def get_sessions(self) -> list[SessionId]:
        """Return the current sessions of the schedulers."""
        return [keeper.member for keeper in self._keepers if keeper.member is not None]

    def read_health(self) -> dict[str, object]:
        """Return the part of schedulers in the health of the process."""
        coordinator = read_coordination(self._settings.coordination)
        found: dict[str, object] = {
            "shards": sum(len(keeper.owned()) for keeper in self._keepers),
            # The address is omitted, because this answer is public.
            "coordination": STORE if coordinator is None else coordinator.kind,
        }
        if self._publishers:
            found["events"] = {publisher.sink: publisher.health() for publisher in self._publishers}
        if self._log_keepers:
            # The error is omitted, because it names the location of the logs.
            found["runLogs"] = {"status": "waiting" if any(one.trouble for one in self._log_keepers) else "ok"}
        return found

    def write_metrics(self, exposition: Exposition) -> None:
        write_scheduler_metrics(self._keepers, self._schedulers, exposition)
        write_sinks_metrics(self._publishers, exposition)
        write_archive_metrics(self._archivers, exposition)
        write_run_logs_metrics(self._log_keepers, exposition)


def _always() -> bool:
    return True
