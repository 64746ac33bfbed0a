"""The typed tree of all settings: defaults, then a file, then the environment, then flags.

A setting ``worker.grace`` is ``grace`` under ``[worker]`` in the file, and ``MAINSPRING_WORKER_GRACE`` in the
environment.
"""

from collections.abc import Iterator
from typing import get_type_hints

import msgspec

from mainspring.config.sections.access import ApiSection, AuthSection, OidcSection, UiSection
from mainspring.config.sections.addresses import hide_secrets, read_store_servers
from mainspring.config.sections.events import EventsSection, IngestSection, NotificationsSection
from mainspring.config.sections.monitoring import LogSection, MetricsSection, TracingSection
from mainspring.config.sections.processes import ClockSection, DispatchSection, SchedulerSection, WorkerSection
from mainspring.config.sections.storage import BlobsSection, RetentionSection, RunLogsSection
from mainspring.config.sections.tasks import SecretsSection, TasksSection, VaultSection
from mainspring.config.sections.values import Addresses, Span
from mainspring.core.cluster.shards import SHORTEST_TTL
from mainspring.core.model.access.token_rules import is_loopback
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import MAX_SHARDS
from mainspring.core.model.base.instant import DAY, HOUR, MILLISECOND, SECOND, format_duration
from mainspring.core.model.cluster.clock_guard import ClockRules
from mainspring.core.model.cluster.coordination import STORE, read_coordination
from mainspring.core.model.cluster.datacenters import check_datacenter_name
from mainspring.core.model.runs.names import check_name

PREFIX = "MAINSPRING_"
FILE = "mainspring.toml"
_CENTURY = 36_525 * DAY
_PLENTY = 10**15
#: Settings that may contain a password.
_ADDRESSES = ("store", "replica", "coordination")
#: The inclusive range of every number and duration.
RANGES = {
    "port": (1, 65_535),
    "shards": (1, MAX_SHARDS),
    "connections": (1, 1_000),
    "replica_lag": (100 * MILLISECOND, HOUR),
    "worker.lease": (2 * SECOND, HOUR),
    "worker.grace": (0, _CENTURY),
    "worker.children": (1, 1_000),
    "worker.threads_per_child": (1, 1_000),
    "worker.child_start": (SECOND, HOUR),
    "worker.transactions": (1, 1_000),
    "worker.recycle_after_runs": (0, _PLENTY),
    "worker.recycle_memory": (0, _PLENTY),
    "worker.recycle_child_after_runs": (0, _PLENTY),
    "worker.recycle_child_memory": (0, _PLENTY),
    "scheduler.lease": (SHORTEST_TTL, HOUR),
    "events.redis_length": (1, _PLENTY),
    "events.keep": (HOUR, _CENTURY),
    "metrics.first_port": (1, 65_535),
    "metrics.last_port": (1, 65_535),
    "metrics.max_names": (1, 10_000),
    "metrics.interval": (0, HOUR),
    "tracing.ratio": (0, 1),
    "notifications.recovered_after": (SECOND, DAY),
    "clock.warn_offset": (MILLISECOND, _CENTURY),
    "clock.max_offset": (0, _CENTURY),
    "retention.succeeded": (0, _CENTURY),
    "retention.unsuccessful": (0, _CENTURY),
    "retention.ledger": (0, _CENTURY),
    "run_logs.keep": (DAY, _CENTURY),
    "retention.short": (0, _CENTURY),
    "retention.long": (0, _CENTURY),
    "retention.audit": (0, _CENTURY),
    "api.rate": (0, 1_000_000),
    "api.burst": (1, 1_000_000),
    "vault.keep": (SECOND, DAY),
    "tasks.memory": (0, _PLENTY),
    "tasks.cpus": (0, 10_000),
    "tasks.cpu_time": (0, _CENTURY),
    "tasks.open_files": (0, 1_000_000),
    "tasks.processes": (0, 1_000_000),
}


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    store: Addresses = "mainspring.db"
    """The store: a path for SQLite, ``postgresql://…``, a list of those for a sharded store, or ``memory:``,
    which keeps nothing."""
    host: str = "127.0.0.1"
    """The address that ``up`` listens on."""
    port: int = 7070
    schema: str = "mainspring"
    """The PostgreSQL schema that holds all tables."""
    shards: int = 100
    """The number of shards that schedulers share, fixed when a store is created."""
    connections: int = 8
    """PostgreSQL connections of one process to each server, at most."""
    coordination: str = STORE
    """The coordinator that grants shards to schedulers: ``store``, ``redis://…``, ``etcd://…`` or
    ``zookeeper://…``."""
    replica: str = ""
    """A standby that lists and statistics of the API are read from, ``postgresql://…``. Everything else is read
    from the primary."""
    replica_lag: Span = 5 * SECOND
    """How far the replica may be behind. Beyond that, lists come from the primary."""
    production: bool = False
    """Mark this installation as production: a drill is refused unless it is requested for production."""
    datacenter: str = ""
    """The data center of this process, such as ``eu-west``. Runs that require a data center go to its
    workers."""
    worker: WorkerSection = WorkerSection()
    scheduler: SchedulerSection = SchedulerSection()
    dispatch: DispatchSection = DispatchSection()
    events: EventsSection = EventsSection()
    notifications: NotificationsSection = NotificationsSection()
    ingest: IngestSection = IngestSection()
    clock: ClockSection = ClockSection()
    retention: RetentionSection = RetentionSection()
    run_logs: RunLogsSection = RunLogsSection()
    log: LogSection = LogSection()
    metrics: MetricsSection = MetricsSection()
    tracing: TracingSection = TracingSection()
    auth: AuthSection = AuthSection()
    api: ApiSection = ApiSection()
    ui: UiSection = UiSection()
    oidc: OidcSection = OidcSection()
    tasks: TasksSection = TasksSection()
    secrets: SecretsSection = SecretsSection()
    vault: VaultSection = VaultSection()
    blobs: BlobsSection = BlobsSection()

    def check(self) -> None:
        """Raise ``Invalid`` for invalid settings. Addresses of other servers are checked in ``config/checks.py``."""
        kinds = dict(list_leaves(Settings))
        for path, (least, most) in RANGES.items():
            value = _get_value(self, path)
            if not least <= value <= most:
                words = format_duration if kinds[path] == "duration" else _format_number
                raise Invalid(path, f"{words(value)} is out of range", f"{words(least)} to {words(most)}")
        for path, name in (("worker.name", self.worker.name), ("scheduler.name", self.scheduler.name)):
            if name:
                check_name(path, name)
        if self.datacenter:
            check_datacenter_name("datacenter", self.datacenter)
        if self.log.level not in ("debug", "info", "warning", "error"):
            raise Invalid("log.level", f"{self.log.level!r} is not a level", "debug, info, warning or error")
        self.log.check()
        read_coordination(self.coordination)
        if read_store_servers(self.store) and self.coordination != STORE:
            raise Invalid("coordination", "each server of a store over several grants its own shards", STORE)
        if self.replica and not all(a.startswith(("postgresql://", "postgres://")) for a in (self.replica, self.store)):
            raise Invalid("replica", "is a standby of a store on PostgreSQL", "postgresql://user@host/database")
        if self.retention.archive and self.store == "memory:":
            raise Invalid("retention.archive", "has no use for a store that keeps nothing", "leave it out")
        self.ingest.check()
        ClockRules(self.clock.warn_offset, self.clock.max_offset).check()
        self.events.check()
        self.metrics.check()
        self.tracing.check()
        self.notifications.read()
        self.auth.check()
        self.api.check()
        self.oidc.check()
        if self.oidc.issuer and self.auth.mode == "none":
            raise Invalid("oidc.issuer", "has no use while auth.mode is none", "keys, jwt or both")
        self.tasks.check()
        self.secrets.check()
        self.vault.check()
        if self.auth.mode == "none" and not is_loopback(self.host):
            raise Invalid(
                "host",
                f"{self.host} is reachable from other machines, and the API has no authentication",
                "set auth.mode = keys, and make the first key with: mainspring keys create --role admin --all-tenants",
            )

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"Settings({shown})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [
            (name, hide_secrets(getattr(self, name)) if name in _ADDRESSES else getattr(self, name))
            for name in self.__struct_fields__
        ]


def describe(settings: Settings | None = None) -> Iterator[tuple[str, str]]:
    """Yield every setting, or its default, as it is written in a file. Secrets are replaced by an ellipsis."""
    values = msgspec.to_builtins(settings or Settings())
    for path, kind in list_leaves(Settings):
        section, _, leaf = path.rpartition(".")
        value = values[section][leaf] if section else values[leaf]
        if kind == "secret":
            yield path, "…" if value else ""
        elif kind == "duration":
            yield path, format_duration(value)
        elif kind == "tables":
            yield path, msgspec.json.encode(value).decode() if value else ""
        elif isinstance(value, dict):
            pairs = [
                (name, " ".join(map(_hide, words)) if isinstance(words, tuple | list) else _hide(words))
                for name, words in value.items()
            ]
            yield path, ", ".join(f"{name}={words}" for name, words in pairs)
        elif isinstance(value, tuple | list):
            yield path, ", ".join(map(_hide, value))
        elif isinstance(value, bool):
            yield path, str(value).lower()
        else:
            yield path, f"{value:g}" if isinstance(value, float) else _hide(value)


def _hide(value: object) -> str:
    """Return a value as text without passwords. Any value may be an address with a password."""
    text = str(value)
    return hide_secrets(text) if "://" in text or text.startswith("[") else text


def list_leaves(struct: type[msgspec.Struct], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield every setting by its path, with the kind of its value."""
    for name, hint in get_type_hints(struct, include_extras=True).items():
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            yield from list_leaves(hint, f"{prefix}{name}.")
        else:
            yield prefix + name, getattr(hint, "__metadata__", (hint,))[0]


def _format_number(number: float) -> str:
    return str(number).removesuffix(".0")


def _get_value(settings: Settings, path: str) -> int:
    section, _, leaf = path.rpartition(".")
    value: int = getattr(getattr(settings, section) if section else settings, leaf)
    return value
