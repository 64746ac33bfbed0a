"""A pytest plugin that records which lines and which SQL statements each test uses.

Load it with ``-p tools.mutants.recorder``, and set ``MUTANTS_RECORD`` to a folder and ``MUTANTS_PART`` to a name. Each
process of pytest-xdist writes ``tests.<part>.<process>.jsonl`` there, with the duration, outcome and statements of each
test. If ``MUTANTS_LINES`` is not empty, it also writes ``coverage.<part>.<process>``, the data of coverage.py with one
context for each test.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import apsw
import coverage
import hypothesis
import pytest

from tools.mutants.paths import PACKAGE, PYTHON_FILES, PYTHON_FOLDERS, ROOT, STORES, list_files
from tools.mutants.sql_text import hash_statement, list_units

_FOLDER = Path(os.environ["MUTANTS_RECORD"])
_WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
_WITH_LINES = bool(os.environ["MUTANTS_LINES"])
_PROCESS = f"{os.environ['MUTANTS_PART']}.{_WORKER}"
#: Classes in these modules copy the statements that ``statements.load`` returns into a mapping of their own.
_COPYING_MODULES = ("postgres.database", "postgres.upkeep.health")

_coverage = coverage.Coverage(
    data_file=str(_FOLDER / f"coverage.{_PROCESS}"),
    config_file=False,
    include=[str(ROOT / PACKAGE / name) for name in (*(f"{folder}/*" for folder in PYTHON_FOLDERS), *PYTHON_FILES)],
)
_tests: dict[str, dict[str, Any]] = {}
_used: set[str] = set()
#: The files that define a statement name, relative to the store's folder.
_files_by_name: dict[str, set[str]] = {}
_keys_by_text: dict[str, str] = {}
#: A property test covers most of its lines with few examples; its recorded time is scaled to all of them.
_EXAMPLES = 20
_scales = [1.0]


class RecordedStatements(dict[str, str]):
    """SQL texts by name; reading one marks it as used by the current test."""

    def __init__(self, statements: dict[str, str], folder: str) -> None:
        super().__init__(statements)
        self.folder = folder

    def __getitem__(self, name: str) -> str:
        _used.update(f"{file}::{name}" for file in _files_by_name.get(name, ()) if file.startswith(self.folder))
        return super().__getitem__(name)


def _record_loads() -> None:
    """Replace ``statements.load``, and wrap the copies that the PostgreSQL store makes of its result."""
    module: Any = importlib.import_module("mainspring.stores.statements")
    load: Callable[..., dict[str, str]] = module.load

    def load_recorded(package: str, file: str, *options: object) -> dict[str, str]:
        statements = load(package, file, *options)
        for name in statements:
            _files_by_name.setdefault(name, set()).add(f"{package.rpartition('.')[2]}/{file}")
        return RecordedStatements(statements, f"{package.rpartition('.')[2]}/{file}")

    module.load = load_recorded
    for name in _COPYING_MODULES:
        module = importlib.import_module(f"mainspring.stores.{name}")
        for value in vars(module).values():
            if isinstance(value, type) and value.__module__ == module.__name__ and "__init__" in vars(value):
                value.__init__ = _wrap_mappings(value.__init__)  # type: ignore[misc]


def _wrap_mappings(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def wrapped(self: object, *arguments: Any, **options: Any) -> None:
        init(self, *arguments, **options)
        for name, value in list(getattr(self, "__dict__", {}).items()):
            if type(value) is dict and value and _files_by_name.keys() >= value.keys():
                setattr(self, name, RecordedStatements(value, "postgres/"))

    return wrapped


def _trace_triggers(connection: apsw.Connection) -> None:
    """SQLite reports each statement that a trigger executes, with its text on one line."""

    def executed(event: dict[str, Any]) -> None:
        if event["trigger"]:
            text: str = event["sql"]
            key = _keys_by_text.get(text)
            if key is None:
                key = _keys_by_text[text] = hash_statement(text)
            _used.add(key)

    connection.trace_v2(apsw.SQLITE_TRACE_STMT, executed)


def _limit_examples() -> None:
    def get_limited(settings: Any) -> int:
        wanted: int = settings._max_examples
        _scales.append(wanted / _EXAMPLES)
        return min(wanted, _EXAMPLES)

    type.__setattr__(hypothesis.settings, "max_examples", property(get_limited))


@functools.cache
def _known_keys() -> frozenset[str]:
    files = {file.removeprefix(f"{STORES}/"): file for file in list_files() if file.endswith(".sql")}
    return frozenset(unit.key for name, file in files.items() for unit in list_units(name, (ROOT / file).read_text()))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    if not _WORKER:
        return (yield)
    _used.clear()
    _scales[:] = [1.0]
    _tests[item.nodeid] = {"seconds": 0.0, "passed": True}
    if _WITH_LINES:
        _coverage.switch_context(item.nodeid)
    result = yield
    if _WITH_LINES:
        _coverage.switch_context("")
    test = _tests.pop(item.nodeid) | {"id": item.nodeid, "statements": sorted(_used & _known_keys())}
    # After each test, so that a crash loses one of them and not all.
    with (_FOLDER / f"tests.{_PROCESS}.jsonl").open("a") as file:
        file.write(json.dumps(test) + "\n")
    return result


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    test = _tests.get(report.nodeid) if _WORKER else None
    if test is not None:
        test["seconds"] += report.duration * max(_scales)
        test["passed"] = test["passed"] and (report.passed or (report.when == "teardown" and not report.failed))


def pytest_collection_finish() -> None:
    """Collecting and importing is not traced: it is most of the lines, and belongs to no test."""
    if _WORKER and _WITH_LINES:
        _coverage.start()


def pytest_sessionfinish() -> None:
    if _WORKER and _WITH_LINES:
        _coverage.stop()
        _coverage.save()


if _WORKER:
    _limit_examples()
    _record_loads()
    apsw.connection_hooks.append(_trace_triggers)
