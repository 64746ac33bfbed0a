"""Reads the settings from flags, the environment, a file and the program."""

import difflib
import os
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from mainspring.config.checks import check_addresses
from mainspring.config.settings import FILE, PREFIX, Settings, list_leaves
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import parse_duration
from mainspring.core.model.cluster.labels import label_words, read_label, split_labels
from mainspring.core.model.runs.names import check_queue

#: Variables with our prefix that are not settings: the file, the API of the command line, variables of tests and
#: benchmarks, secrets, and those that Kubernetes sets for a service named mainspring.
_OTHER_VARIABLES = re.compile(PREFIX + r"(CONFIG|URL|KEY|PROFILE|SEEDS|BENCH_\w+|SECRET_\w+|SERVICE_\w+|PORT_\d+_\w+)")


_PRIORITY = re.compile(r"[1-9]|10")


#: The name of an entry, but not a query parameter of an address.
_NAMED = re.compile(r"\s*[^\s=?]+\s*=")


#: 1 to 999999.
_SLOTS = re.compile(r"0*[1-9][0-9]{0,5}")


def load(
    flags: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
    *,
    defaults: Mapping[str, object] | None = None,
    code: tuple[str, Mapping[str, object]] | None = None,
) -> Settings:
    """Read settings from all sources. An error names the setting and the source of its value.

    ``defaults`` have lower priority than the file. ``code``: settings of the program in the form of the file, with
    the name of the object that has them; only flags override them.
    """
    environment = os.environ if environment is None else environment
    leaves = dict(list_leaves(Settings))
    values: dict[str, object] = dict(defaults or {})
    values.update(_read_file(file, environment, leaves))
    values.update(_read_environment(environment, leaves))
    if code is not None:
        values.update(_read_tree(*code, leaves))
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
    check_addresses(settings)
    return settings


def _read_environment(environment: Mapping[str, str], leaves: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    paths = {PREFIX + path.upper().replace(".", "_"): path for path in leaves}
    for name, value in environment.items():
        if name in paths:
            yield paths[name], _parse(name, value, leaves[paths[name]])
        elif name.startswith(PREFIX) and not _OTHER_VARIABLES.fullmatch(name):
            # Compared without the prefix, which would make all names similar.
            close = difflib.get_close_matches(name[len(PREFIX) :], [known[len(PREFIX) :] for known in paths], 1)
            raise Invalid(name, "is no setting", f"did you mean {PREFIX}{close[0]}?" if close else "")


def _read_file(
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
        # ValueError includes text that is not UTF-8, and numbers that are too long.
        raise Invalid(str(path), f"is not TOML: {error}") from error
    yield from _read_tree(str(path), tree, leaves)


def _read_tree(where: str, tree: Mapping[str, object], leaves: Mapping[str, object]) -> Iterator[tuple[str, object]]:
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
    """Parse a table of tables, or its JSON form."""
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
    """Parse ``name=word word,other=word``, or a table of strings or lists of strings."""
    if isinstance(value, str):
        pairs: list[tuple[str, object]] = [
            (name.strip(), words) for name, _, words in (part.partition("=") for part in _split_entries(value))
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


def _split_entries(text: str) -> list[str]:
    """Split text at commas.

    A comma in an address with several hosts is not a separator, because no name follows it.
    """
    entries: list[str] = []
    for part in text.split(","):
        if entries and "://" in entries[-1] and not _NAMED.match(part):
            entries[-1] += f",{part}" if part.strip() else ""
        elif part.strip():
            entries.append(part)
    return entries


def parse_labels(value: object, where: str = "labels") -> dict[str, str]:
    """Parse ``gpu=a100,region=eu``, a list of such pairs, or a table."""
    if isinstance(value, str):
        value = value.split(",")
    if isinstance(value, list | tuple):
        pairs = [read_label(where, str(word).strip()) for word in value]
        if len(dict(pairs)) < len(pairs):
            raise Invalid(where, "names a label twice")
        value = dict(pairs)
    return split_labels(label_words(where, value))  # type: ignore[arg-type]


def parse_queues(value: object, where: str = "queues") -> dict[str, int]:
    """Parse ``mail:20,default`` (the default is 100 slots), a list of such pairs, or a table."""
    hint = "for example default:100,mail:20"
    queues = {}
    for name, slots in _read_slots(value):
        if not name or not _SLOTS.fullmatch(slots):
            raise Invalid(where, f"{name}:{slots} is not a queue with its slots", hint)
        queues[check_queue(where, name)] = int(slots)
    if not queues:
        raise Invalid(where, "names no queue", hint)
    return queues


def parse_priorities(value: object, where: str = "priorities") -> dict[str, int]:
    """Parse ``1:100,2:50``, a list of such pairs, or a table."""
    hint = "1 to 10 and at least 1 slot, for example 1:100,2:50"
    priorities = {}
    for name, slots in _read_slots(value):
        if not _PRIORITY.fullmatch(name) or not _SLOTS.fullmatch(slots):
            raise Invalid(where, f"{name}:{slots} is not a priority with its slots", hint)
        priorities[name] = int(slots)
    return priorities


def _read_slots(value: object) -> list[tuple[str, str]]:
    """Return names with their slots, as strings."""
    if isinstance(value, dict):
        return [(str(name), str(slots)) for name, slots in value.items()]
    words = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else []
    return [(name, slots or "100") for name, _, slots in (str(word).strip().partition(":") for word in words)]
