"""Fixtures for every test: a real PostgreSQL server, and a fresh database in it."""

import asyncio
import gc
import random
import uuid
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from datetime import datetime
from pathlib import Path

import hypothesis
import pytest
import structlog
import time_machine

from mainspring.cli import logs
from mainspring.core.runtime.tasks import cancel_and_wait
from mainspring.sdk.loops.blocking import BlockingLoop
from tests.support.builders import SHARDS
from tests.support.databases import create_database, drop_database, with_database
from tests.support.kept_connections import KeptConnections
from tests.support.kept_sqlite import KeptSqlite
from tests.support.leaks import CommandState, ProcessState
from tests.support.servers import IN_CI, not_here, require
from tools.services import ServiceUnavailable, ensure

#: How fast examples are made says how busy the machine is, not whether they are good.
BUSY = [hypothesis.HealthCheck.too_slow]
COMMON = hypothesis.settings(deadline=None, print_blob=True, suppress_health_check=BUSY)
#: The same examples each time: no first run fails by chance. ``--hypothesis-profile=random`` tries others.
hypothesis.settings.register_profile("ci", COMMON, derandomize=True, max_examples=200)
hypothesis.settings.register_profile("laptop", COMMON, derandomize=True, max_examples=25)
hypothesis.settings.register_profile("random", COMMON, max_examples=200)
hypothesis.settings.load_profile("ci" if IN_CI else "laptop")


#: These start whole processes or a browser. ``make test`` leaves them out, like every test marked ``slow``.
_SLOW = frozenset(Path(__file__).parent / folder for folder in ("cli", "clients", "examples", "system", "ui"))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import these for ``make test``."""
    return True if config.option.markexpr == "not slow" and collection_path in _SLOW else None


def pytest_itemcollected(item: pytest.Item) -> None:
    # Not their folders: pytest calls no hook of this file for a folder that it finds by itself.
    if not _SLOW.isdisjoint(item.path.parents):
        item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect garbage neither during the collection nor among what it made: these objects live until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--wall-clock", help="start with the clock of this process at this time: 2026-12-31T23:59:50Z")
    parser.addoption("--shuffle", metavar="SEED", help="run the modules, and the tests of each, in a random order")
    parser.addoption("--leaks", action="store_true", help="fail a test that leaves its process changed")


@pytest.fixture(scope="session", autouse=True)
def _wall_clock(request: pytest.FixtureRequest) -> Iterator[None]:
    """Move the wall clock of the process, if asked. It ticks; the monotonic clock and other processes are unchanged."""
    start = request.config.getoption("--wall-clock")
    if start is None:
        yield
        return
    with time_machine.travel(datetime.fromisoformat(start), tick=True):
        yield


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Shuffle the tests, if asked. Keep each ``xdist_group`` in one process: pytest 9.2 ignores where 3.8 writes it."""
    if (seed := config.getoption("--shuffle")) is not None:
        _shuffle(items, seed)
    for item in items if getattr(config.option, "loadgroup", False) else ():
        mark = item.get_closest_marker("xdist_group")
        if mark is not None and not item.nodeid.endswith(f"@{mark.args[0]}"):
            item._id = type(item._id).parse(f"{item.nodeid}@{mark.args[0]}")


def _shuffle(items: list[pytest.Item], seed: str) -> None:
    """Shuffle by module: fixtures of a module are set up once. Every process of pytest-xdist gets the same order."""
    chance = random.Random(seed)
    modules: dict[Path, list[pytest.Item]] = {}
    for item in items:
        modules.setdefault(item.path, []).append(item)
    paths = list(modules)
    chance.shuffle(paths)
    for tests in modules.values():
        chance.shuffle(tests)
    items[:] = [item for path in paths for item in modules[path]]


@pytest.fixture(scope="session", autouse=True)
def _logs_stay_as_they_are() -> Iterator[None]:
    """A command that is called in this process must not set up its logs: other tests look at what is logged."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "configure", lambda section: None)
        yield


@pytest.fixture(autouse=True)
def _structlog_stays_unconfigured(_test_leaves_no_changes: None) -> Iterator[None]:
    """``capture_logs`` leaves structlog configured: commands called in this process would print log lines to stdout."""
    yield
    if structlog.is_configured():
        structlog.reset_defaults()


@pytest.fixture(scope="module", autouse=True)
def _module_leaves_no_changes(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Undo what a module leaves changed in the process; with ``--leaks``, fail if anything else is left."""
    yield from _undo_changes(pytestconfig, tmp_path_factory)


@pytest.fixture(autouse=True)
def _test_leaves_no_changes(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Undo what a test leaves changed in the process; with ``--leaks``, fail if anything else is left."""
    yield from _undo_changes(pytestconfig, tmp_path_factory)


def _undo_changes(config: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    before = CommandState()
    all_before = ProcessState() if config.getoption("--leaks") else None
    yield
    before.undo(tmp_path_factory.getbasetemp())
    if all_before is not None:
        assert not (changes := all_before.changes()), "the process is left changed: " + "; ".join(changes)


@pytest.fixture(scope="session")
def address_of() -> Callable[[str], str]:
    """The address of a server by its name in ``tools/services``; started when a test asks, shared by all of them."""

    def address(name: str) -> str:
        require(name)
        try:
            return ensure(name)
        except ServiceUnavailable as error:
            not_here(f"{name} is not available: {error}")

    return address


@pytest.fixture(scope="session")
def postgres_dsn(address_of: Callable[[str], str]) -> str:
    """A running server, shared by all tests; an ordinary role that may create databases."""
    return address_of("postgres")


@pytest.fixture(scope="session")
async def kept_connections() -> AsyncIterator[KeptConnections]:
    """Connections that the tests of this process use one after the other."""
    kept = KeptConnections()
    yield kept
    await kept.close()


@pytest.fixture(scope="session")
async def kept_sqlite(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KeptSqlite]:
    """SQLite stores that the tests of this process use one after the other."""
    kept = KeptSqlite(tmp_path_factory.mktemp("sqlite"), SHARDS)
    yield kept
    await kept.close()


@pytest.fixture(autouse=True)
async def _no_task_outlives_its_test(_test_leaves_no_changes: None) -> AsyncIterator[None]:
    """Cancel the tasks that a test left behind: all tests of a process share one event loop."""
    yield
    if left := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.gather(*map(cancel_and_wait, left))


@pytest.fixture(autouse=True)
def _no_blocking_loop_outlives_its_test(_test_leaves_no_changes: None) -> Iterator[None]:
    """Stop the event loops that blocking calls of applications have started: each has a thread and open files."""
    started: set[BlockingLoop] = set()
    start = BlockingLoop._started

    def record(loop: BlockingLoop) -> asyncio.AbstractEventLoop:
        started.add(loop)
        return start(loop)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BlockingLoop, "_started", record)
        yield
    for loop in started:
        loop.close()


@pytest.fixture
def postgres_template() -> str | None:
    """The database that ``postgres_database`` copies; override it with ``migrated_template`` or ``make_template``."""
    return None


@pytest.fixture
async def postgres_database(postgres_dsn: str, postgres_template: str | None) -> AsyncIterator[str]:
    """The DSN of a database that only this test sees."""
    name = f"test_{uuid.uuid4().hex}"
    await create_database(postgres_dsn, name, postgres_template)
    yield with_database(postgres_dsn, name)
    await drop_database(postgres_dsn, name)
