"""One typed tree of settings: defaults, then a file, then the environment, then flags.

A setting ``worker.grace`` is ``grace`` under ``[worker]`` in the file, and ``MAINSPRING_WORKER_GRACE`` outside.
"""

import difflib
import os
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import get_type_hints

import msgspec

from mainspring.config.routes import OTHERS, brings_by_priority, read_routes
from mainspring.config.sections import (
    Addresses,
    ApiSection,
    AuthSection,
    BlobsSection,
    ClockSection,
    DispatchSection,
    EventsSection,
    IngestSection,
    LogSection,
    MetricsSection,
    NotificationsSection,
    OidcSection,
    RetentionSection,
    RunLogsSection,
    SchedulerSection,
    SecretsSection,
    Span,
    TasksSection,
    TracingSection,
    UiSection,
    VaultSection,
    WorkerSection,
    servers_of,
    without_secrets,
)
from mainspring.core.cluster.shards import SHORTEST_TTL
from mainspring.core.model.access.token_rules import is_loopback
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import MAX_SHARDS
from mainspring.core.model.base.instant import DAY, HOUR, MILLISECOND, SECOND, format_duration, parse_duration
from mainspring.core.model.cluster.clock_guard import ClockRules
from mainspring.core.model.cluster.coordination import STORE, read_coordination
from mainspring.core.model.cluster.datacenters import check_place
from mainspring.core.model.cluster.labels import label_words, labels_of, read_label
from mainspring.core.model.runs.run import check_name, check_queue
from mainspring.integrations.redis.address import read_redis
from mainspring.integrations.s3.address import read_blobs

PREFIX = "MAINSPRING_"
FILE = "mainspring.toml"
#: Variables with our prefix that are no settings: the file, which API the command line speaks to, what tests and
#: benchmarks use, secrets, and what Kubernetes sets for a service that is called mainspring.
_OTHER_VARIABLES = re.compile(PREFIX + r"(CONFIG|URL|KEY|PROFILE|SEEDS|BENCH_\w+|SECRET_\w+|SERVICE_\w+|PORT_\d+_\w+)")
_PRIORITY = re.compile(r"[1-9]|10")
#: A name of an entry, and not what stands behind the question mark of an address.
_NAMED = re.compile(r"\s*[^\s=?]+\s*=")
#: 1 to 999999.
_SLOTS = re.compile(r"0*[1-9][0-9]{0,5}")
_CENTURY = 36_525 * DAY
_PLENTY = 10**15
#: Settings that may hold a password.
_ADDRESSES = ("store", "replica", "coordination")
#: Of every number and duration: from and to, both included.
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
    "metrics.names": (1, 10_000),
    "metrics.every": (0, HOUR),
    "tracing.ratio": (0, 1),
    "notifications.recovered_after": (SECOND, DAY),
    "clock.warn": (MILLISECOND, _CENTURY),
    "clock.fence": (0, _CENTURY),
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
    """Where everything is kept: a path for SQLite, ``postgresql://…``, a list of those for a store over several
    servers, or ``memory:`` for nothing lasting."""
    host: str = "127.0.0.1"
    """The address that ``up`` listens on."""
    port: int = 7070
    schema: str = "mainspring"
    """The PostgreSQL schema that holds all tables."""
    shards: int = 100
    """Slices that schedulers share out; fixed when a store is made."""
    connections: int = 8
    """PostgreSQL connections of one process, at most; to each server."""
    coordination: str = STORE
    """Who says which scheduler owns which shard: ``store``, ``redis://…``, ``etcd://…`` or ``zookeeper://…``."""
    replica: str = ""
    """A standby that lists and figures of the API are read from; ``postgresql://…``. Nothing else ever is."""
    replica_lag: Span = 5 * SECOND
    """How far it may be behind: beyond that lists come from the primary."""
    production: bool = False
    """This is where it counts: a drill is refused unless it is asked for as one in production."""
    datacenter: str = ""
    """Where this process is, such as ``eu-west``. Runs for a data centre go to the workers there."""
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
        kinds = dict(_leaves(Settings))
        for path, (least, most) in RANGES.items():
            value = _value(self, path)
            if not least <= value <= most:
                words = format_duration if kinds[path] == "duration" else _digits
                raise Invalid(path, f"{words(value)} is out of range", f"{words(least)} to {words(most)}")
        for path, name in (("worker.name", self.worker.name), ("scheduler.name", self.scheduler.name)):
            if name:
                check_name(path, name)
        if self.datacenter:
            check_place("datacenter", self.datacenter)
        if self.log.level not in ("debug", "info", "warning", "error"):
            raise Invalid("log.level", f"{self.log.level!r} is no level", "debug, info, warning or error")
        self.log.check()
        read_coordination(self.coordination)
        if servers_of(self.store) and self.coordination != STORE:
            raise Invalid("coordination", "each server of a store over several grants its own shards", STORE)
        self._check_pools(read_routes(self.dispatch.engine, self.dispatch.queues))
        if self.dispatch.status:
            read_redis(self.dispatch.status, "dispatch.status")
        if self.replica and not all(a.startswith(("postgresql://", "postgres://")) for a in (self.replica, self.store)):
            raise Invalid("replica", "is a standby of a store on PostgreSQL", "postgresql://user@host/database")
        if self.retention.archive:
            read_blobs(self.retention.archive, "retention.archive")
            if self.store == "memory:":
                raise Invalid("retention.archive", "has no use for a store that keeps nothing", "leave it out")
        self.ingest.check()
        if self.api.accept_by and not self.ingest.request_topic:
            raise Invalid(
                "api.accept_by", "has no topic to put jobs into", "set ingest.kafka = kafka://host:9092/job-requests"
            )
        ClockRules(self.clock.warn, self.clock.fence).check()
        self.events.check()
        self.metrics.check()
        self.run_logs.check()
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
                f"{self.host} can be reached from outside, and nobody is asked who they are",
                "set auth.mode = keys, and make the first key with: mainspring keys create --role admin --all-tenants",
            )

    def _check_pools(self, routes: Mapping[str, str]) -> None:
        """A broker that feeds pools of slots must have a queue for each priority."""
        if not self.worker.priorities:
            return
        served = [routes.get(queue, routes.get(OTHERS, STORE)) for queue in self.worker.queues] or routes.values()
        if not all(map(brings_by_priority, served)):
            raise Invalid(
                "worker.priorities",
                "the broker of dispatch.engine or dispatch.queues does not separate priorities",
                "RabbitMQ with {priority} in its queue names, as in amqp://…?queues={queue}.priority.{priority}",
            )

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"Settings({shown})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [
            (name, without_secrets(getattr(self, name)) if name in _ADDRESSES else getattr(self, name))
            for name in self.__struct_fields__
        ]


def load(
    flags: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
    *,
    defaults: Mapping[str, object] | None = None,
    code: tuple[str, Mapping[str, object]] | None = None,
) -> Settings:
    """Read settings from everywhere. An error names the setting and where its value came from.

    ``defaults`` give way to the file. ``code``: settings of the program, as in the file, and the name of what holds
    them; only flags go before them.
    """
    environment = os.environ if environment is None else environment
    leaves = dict(_leaves(Settings))
    values: dict[str, object] = dict(defaults or {})
    values.update(_from_file(file, environment, leaves))
    values.update(_from_environment(environment, leaves))
    if code is not None:
        values.update(_from_tree(*code, leaves))
    for path, value in (flags or {}).items():
        if value is not None:
            values[path] = _parse(f"--{path.rsplit('.', 1)[-1].replace('_', '-')}", value, leaves[path])
    tree: dict[str, object] = {}
    for path, value in values.items():
        section, _, leaf = path.rpartition(".")
        target = tree
        if section:
            nested = tree.setdefault(section, {})
            assert isinstance(nested, dict)
            target = nested
        target[leaf] = value
    settings = msgspec.convert(tree, Settings)
    settings.check()
    return settings


def describe(settings: Settings | None = None) -> Iterator[tuple[str, str]]:
    """Every setting as it is written in a file, or its default. Of secrets it is said that there is one."""
    values = msgspec.to_builtins(settings or Settings())
    for path, kind in _leaves(Settings):
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
    """A value as text. Any of them may be an address with a password."""
    text = str(value)
    return without_secrets(text) if "://" in text or text.startswith("[") else text


def _leaves(struct: type[msgspec.Struct], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, hint in get_type_hints(struct, include_extras=True).items():
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            yield from _leaves(hint, f"{prefix}{name}.")
        else:
            yield prefix + name, getattr(hint, "__metadata__", (hint,))[0]


def _digits(number: float) -> str:
    return str(number).removesuffix(".0")


def _value(settings: Settings, path: str) -> int:
    section, _, leaf = path.rpartition(".")
    value: int = getattr(getattr(settings, section) if section else settings, leaf)
    return value


def _from_environment(environment: Mapping[str, str], leaves: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    paths = {PREFIX + path.upper().replace(".", "_"): path for path in leaves}
    for name, value in environment.items():
        if name in paths:
            yield paths[name], _parse(name, value, leaves[paths[name]])
        elif name.startswith(PREFIX) and not _OTHER_VARIABLES.fullmatch(name):
            # Without the prefix, which would make everything look alike.
            close = difflib.get_close_matches(name[len(PREFIX) :], [known[len(PREFIX) :] for known in paths], 1)
            raise Invalid(name, "is no setting", f"did you mean {PREFIX}{close[0]}?" if close else "")


def _from_file(
    file: Path | None, environment: Mapping[str, str], leaves: Mapping[str, object]
) -> Iterator[tuple[str, object]]:
    chosen = file or (Path(environment[PREFIX + "CONFIG"]) if PREFIX + "CONFIG" in environment else None)
    path = chosen or Path(FILE)
    try:
        tree = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        if chosen is None and isinstance(error, FileNotFoundError):
            return
        raise Invalid(str(path), f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        # Also text that is not UTF-8, and numbers that are too long to be read.
        raise Invalid(str(path), f"is not TOML: {error}") from error
    yield from _from_tree(str(path), tree, leaves)


def _from_tree(where: str, tree: Mapping[str, object], leaves: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for name, value in _flatten(tree, leaves):
        if name not in leaves:
            close = difflib.get_close_matches(name, leaves, 1)
            raise Invalid(f"{where}: {name}", "is no setting", f"did you mean {close[0]}?" if close else "")
        yield name, _parse(f"{where}: {name}", value, leaves[name])


def _flatten(
    tree: Mapping[str, object], leaves: Mapping[str, object], prefix: str = ""
) -> Iterator[tuple[str, object]]:
    for name, value in tree.items():
        if isinstance(value, dict) and prefix + name not in leaves:
            yield from _flatten(value, leaves, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _parse(where: str, value: object, kind: object) -> object:
    if kind == "duration":
        if not isinstance(value, int | float | str):
            raise Invalid(where, f"{value!r} is not a duration", 'for example "30s"')
        return parse_duration(value, where)
    if kind == dict[str, int]:
        return parse_queues(value, where)
    if kind == "priorities":
        return parse_priorities(value, where)
    if kind == dict[str, str]:
        return parse_labels(value, where)
    if kind == "tables":
        return _parse_tables(value, where)
    if kind == "table" or (kind == "commands" and str(value).lower() not in ("true", "false")):
        return parse_table(value, where)
    if kind is bool or kind == "commands":
        found = {"true": True, "false": False}.get(str(value).lower())
        if found is None:
            raise Invalid(where, f"{value!r} is neither true nor false")
        return found
    if kind is int:
        try:
            return int(str(value))
        except ValueError:
            raise Invalid(where, f"{value!r} is not a whole number") from None
    if kind is float:
        try:
            return float(str(value))
        except ValueError:
            raise Invalid(where, f"{value!r} is not a number") from None
    if kind == tuple[str, ...]:
        words = value.split(",") if isinstance(value, str) else value
        if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
            raise Invalid(where, f"{value!r} is not a list of texts")
        return tuple(word.strip() for word in words if word.strip())
    if kind == "addresses" and isinstance(value, list | tuple) and all(isinstance(word, str) for word in value):
        return msgspec.json.encode(value).decode()
    if not isinstance(value, str):
        raise Invalid(where, "is not a text" if kind == "secret" else f"{value!r} is not a text")
    return value


def _parse_tables(value: object, where: str) -> dict[str, object]:
    """A table of tables, or JSON of one."""
    try:
        found = msgspec.json.decode(value, type=dict[str, dict[str, object]]) if isinstance(value, str) else value
    except msgspec.MsgspecError as error:
        raise Invalid(where, f"is not JSON of tables: {error}", 'for example {"topic": {"task": "encode"}}') from None
    if not isinstance(found, dict):
        raise Invalid(where, f"{value!r:.80} is not a table of tables")
    for name, table in found.items():
        if not isinstance(table, dict):
            raise Invalid(f"{where}.{name}", f"{table!r:.80} is not a table")
    return found


def parse_table(value: object, where: str) -> dict[str, tuple[str, ...]]:
    """Read ``name=word word,other=word``, or a table of texts or lists of them."""
    if isinstance(value, str):
        pairs: list[tuple[str, object]] = [
            (name.strip(), words) for name, _, words in (part.partition("=") for part in _entries(value))
        ]
        if len(dict(pairs)) < len(pairs):
            raise Invalid(where, "has a name twice")
        value = dict(pairs)
    if not isinstance(value, dict):
        raise Invalid(where, f"{value!r:.80} is not a table", "for example name=word word,other=word")
    found = {}
    for name, words in value.items():
        try:
            split = shlex.split(words) if isinstance(words, str) else words
        except ValueError as error:
            raise Invalid(where, f"{name} cannot be read: {error}") from None
        if not isinstance(split, list | tuple) or not all(isinstance(word, str) for word in split):
            raise Invalid(where, f"{name} has {words!r:.80}", "a text, or a list of texts")
        found[name] = tuple(split)
    return found


def _entries(text: str) -> list[str]:
    """What stands between commas. A comma inside an address of several hosts is part of it: no name follows."""
    entries: list[str] = []
    for part in text.split(","):
        if entries and "://" in entries[-1] and not _NAMED.match(part):
            entries[-1] += f",{part}" if part.strip() else ""
        elif part.strip():
            entries.append(part)
    return entries


def parse_labels(value: object, where: str = "labels") -> dict[str, str]:
    """Read ``gpu=a100,region=eu``, a list of such, or a table."""
    if isinstance(value, str):
        value = value.split(",")
    if isinstance(value, list | tuple):
        pairs = [read_label(where, str(word).strip()) for word in value]
        if len(dict(pairs)) < len(pairs):
            raise Invalid(where, "names a label twice")
        value = dict(pairs)
    return labels_of(label_words(where, value))  # type: ignore[arg-type]


def parse_queues(value: object, where: str = "queues") -> dict[str, int]:
    """Read ``mail:20,default`` (100 slots where none are said), a list of such, or a table."""
    hint = "for example default:100,mail:20"
    queues = {}
    for name, slots in _pairs(value):
        if not name or not _SLOTS.fullmatch(slots):
            raise Invalid(where, f"{name}:{slots} is not a queue with its slots", hint)
        queues[check_queue(where, name)] = int(slots)
    if not queues:
        raise Invalid(where, "names no queue", hint)
    return queues


def parse_priorities(value: object, where: str = "priorities") -> dict[str, int]:
    """Read ``1:100,2:50``, a list of such, or a table."""
    hint = "1 to 10 and at least 1 slot, for example 1:100,2:50"
    priorities = {}
    for name, slots in _pairs(value):
        if not _PRIORITY.fullmatch(name) or not _SLOTS.fullmatch(slots):
            raise Invalid(where, f"{name}:{slots} is not a priority with its slots", hint)
        priorities[name] = int(slots)
    return priorities


def _pairs(value: object) -> list[tuple[str, str]]:
    """Names with their slots, as texts."""
    if isinstance(value, dict):
        return [(str(name), str(slots)) for name, slots in value.items()]
    words = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else []
    return [(name, slots or "100") for name, _, slots in (str(word).strip().partition(":") for word in words)]
