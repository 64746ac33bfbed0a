"""One typed tree of settings: defaults, then a file, then the environment, then flags.

A setting ``worker.grace`` is ``grace`` under ``[worker]`` in the file, and ``MAINSPRING_WORKER_GRACE`` outside.
"""

import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, TypeAlias, get_type_hints

import msgspec

from mainspring.domain.errors import Invalid
from mainspring.domain.ids import MAX_SHARDS
from mainspring.domain.instant import DAY, SECOND, format_duration, parse_duration

PREFIX = "MAINSPRING_"
FILE = "mainspring.toml"

#: Microseconds, written as "30s" or as a number of seconds.
Span: TypeAlias = Annotated[int, "duration"]


class WorkerSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str = ""
    """A label for this worker; the host's name and process id by default."""
    queues: dict[str, int] = msgspec.field(default_factory=dict)
    """Queues and how many of their runs go on at once, as in ``default:100,mail:20``. None named: all that the
    application uses, 100 each."""
    grace: Span = 25 * SECOND
    """How long runs may go on after the first SIGTERM."""
    children: int = 2
    """Child processes for sync tasks."""
    threads_per_child: int = 8
    """Threads in each of them."""
    recycle_after_runs: int = 0
    """Leave, to be started anew, after this many runs; 0 for never."""
    recycle_memory: int = 0
    """The same when the process uses this many bytes; 0 for never."""


class SchedulerSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str = ""
    """A label for this scheduler; the host's name and process id by default."""
    lease: Span = 3 * SECOND // 2
    """How long a scheduler that is silent keeps its shards."""


class RetentionSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    succeeded: Span = 7 * DAY
    unsuccessful: Span = 30 * DAY
    """Failed, cancelled and skipped runs, and attempts that did not succeed."""
    ledger: Span = 90 * DAY
    """What became of each tick."""


class LogSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    level: str = "info"
    format: str = "auto"
    """``text``, ``json``, or ``auto``: text on a terminal."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    store: str = "mainspring.db"
    """Where everything is kept: a path for SQLite, ``postgresql://…``, or ``memory:`` for nothing lasting."""
    host: str = "127.0.0.1"
    """The address that ``up`` listens on."""
    port: int = 7070
    schema: str = "mainspring"
    """The PostgreSQL schema that holds all tables."""
    shards: int = 100
    """Slices that schedulers share out; fixed when a store is made."""
    connections: int = 8
    """PostgreSQL connections of one process, at most."""
    worker: WorkerSection = WorkerSection()
    scheduler: SchedulerSection = SchedulerSection()
    retention: RetentionSection = RetentionSection()
    log: LogSection = LogSection()

    def check(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise Invalid("port", f"{self.port} is out of range", "0 to 65535")
        if not 1 <= self.shards <= MAX_SHARDS:
            raise Invalid("shards", f"{self.shards} is out of range", f"1 to {MAX_SHARDS}")
        if not 1 <= self.connections <= 1_000:
            raise Invalid("connections", f"{self.connections} is out of range", "1 to 1000")
        if self.log.level not in ("debug", "info", "warning", "error"):
            raise Invalid("log.level", f"{self.log.level!r} is no level", "debug, info, warning or error")
        if self.log.format not in ("auto", "text", "json"):
            raise Invalid("log.format", f"{self.log.format!r} is no format", "auto, text or json")
        if self.host not in ("127.0.0.1", "::1", "localhost"):
            raise Invalid(
                "host", f"{self.host} can be reached from outside", "there is no authentication yet: loopback only"
            )


def load(
    flags: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> Settings:
    """Read settings from everywhere. An error names the setting and where its value came from."""
    environment = os.environ if environment is None else environment
    leaves = dict(_leaves(Settings))
    values: dict[str, object] = {}
    values.update(_from_file(file, environment, leaves))
    for path, kind in leaves.items():
        name = PREFIX + path.upper().replace(".", "_")
        if name in environment:
            values[path] = _parse(name, environment[name], kind)
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


def describe() -> Iterator[tuple[str, str]]:
    """Every setting with its default, as it is written in a file."""
    defaults = msgspec.to_builtins(Settings())
    for path, kind in _leaves(Settings):
        section, _, leaf = path.rpartition(".")
        value = defaults[section][leaf] if section else defaults[leaf]
        yield path, format_duration(value) if kind == "duration" else str(value)


def _leaves(struct: type[msgspec.Struct], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, hint in get_type_hints(struct, include_extras=True).items():
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            yield from _leaves(hint, f"{prefix}{name}.")
        else:
            yield prefix + name, "duration" if getattr(hint, "__metadata__", None) == ("duration",) else hint


def _from_file(
    file: Path | None, environment: Mapping[str, str], leaves: Mapping[str, object]
) -> Iterator[tuple[str, object]]:
    chosen = file or (Path(environment[PREFIX + "CONFIG"]) if PREFIX + "CONFIG" in environment else None)
    path = chosen or Path(FILE)
    if chosen is None and not path.exists():
        return
    try:
        tree = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise Invalid(str(path), f"cannot be read: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise Invalid(str(path), f"is not TOML: {error}") from error
    for name, value in _flatten(tree, leaves):
        if name not in leaves:
            close = difflib.get_close_matches(name, leaves, 1)
            raise Invalid(f"{path}: {name}", "is no setting", f"did you mean {close[0]}?" if close else "")
        yield name, _parse(f"{path}: {name}", value, leaves[name])


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
    if kind is int:
        try:
            return int(str(value))
        except ValueError:
            raise Invalid(where, f"{value!r} is not a whole number") from None
    if not isinstance(value, str):
        raise Invalid(where, f"{value!r} is not a text")
    return value


def parse_queues(value: object, where: str = "queues") -> dict[str, int]:
    """Read ``mail:20,default`` (100 slots where none are said), a list of such, or a table."""
    if isinstance(value, dict):
        pairs = [(str(name), str(slots)) for name, slots in value.items()]
    else:
        words = (
            value.split(",")
            if isinstance(value, str)
            else [str(word) for word in value]
            if isinstance(value, list | tuple)
            else []
        )
        pairs = [(name, slots or "100") for name, _, slots in (word.strip().partition(":") for word in words)]
    queues = {}
    for name, slots in pairs:
        if not name or not slots.isdigit() or int(slots) < 1:
            raise Invalid(where, f"{name}:{slots} is not a queue with its slots", "for example default:100,mail:20")
        queues[name] = int(slots)
    if not queues:
        raise Invalid(where, "names no queue", "for example default:100,mail:20")
    return queues
