"""Calls that are cancelled, and connections that break, in the middle of a statement or a transaction."""

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.core.model.base.instant import HOUR
from mainspring.core.model.runs.run import RunState
from mainspring.stores.postgres import PostgresStore, database
from mainspring.stores.postgres.database import SESSION
from tests.support.builders import a_job, a_run, a_worker
from tests.support.databases import as_administrator, with_user
from tests.support.races import Races

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


# Cancelled calls


async def test_a_call_that_is_cancelled_during_a_statement_leaves_a_usable_connection(races: Races) -> None:
    store, run = await races.a_store(connections=1), a_run()
    await store.submit([a_run()])
    async with races.paused(lambda pausing: pausing.submit([run])) as other:
        submitting = asyncio.create_task(store.submit([run]))
        await races.blocked(submitting)
        submitting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await submitting
        other.cancel()
    # The only connection of this store works, and the run is submitted once.
    [accepted] = await store.submit([run])
    assert accepted.state is RunState.QUEUED
    assert len(await races.claim(await races.a_worker())) == 2


@pytest.mark.parametrize("cancels", [1, 2])
async def test_a_transaction_whose_caller_is_cancelled_is_rolled_back(races: Races, cancels: int) -> None:
    store = await races.a_store(connections=1)
    holder, blocked, other = a_run(key="k"), a_run(key="k"), a_run()
    await store.submit([holder])
    holding = await races.hold("key_lock")
    submitting = asyncio.create_task(store.submit([blocked]))
    await races.blocked(submitting)
    for _ in range(cancels):
        submitting.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await submitting
    await holding.execute("COMMIT")
    # The only connection of this store is in no transaction: other processes see its writes.
    await store.submit([other])
    assert await races.state(other.id) is RunState.QUEUED
    assert await races.store.runs([blocked.id]) == [None]
    [accepted] = await store.submit([blocked])
    assert (accepted.new, accepted.state) == (True, RunState.BLOCKED)


async def test_callers_that_are_cancelled_while_they_wait_for_a_connection_leak_none(races: Races) -> None:
    store = await races.a_store(connections=1)
    await store.submit([a_run(key="k")])
    holding = await races.hold("key_lock")
    first = asyncio.create_task(store.submit([a_run(key="k")]))
    await races.blocked(first)
    others = [asyncio.create_task(store.now()) for _ in range(5)]
    await asyncio.sleep(0)
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await holding.execute("COMMIT")
    await first
    assert await store.now() > 0


# A server out of reach


class Wire:
    """A connection to the server that can fall silent: data is accepted and does not arrive."""

    def __init__(self, dsn: str) -> None:
        self._server = urlsplit(dsn)
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = asyncio.Event()
        self._open.set()
        #: Set when data was held back.
        self.held_back = asyncio.Event()

    async def __aenter__(self) -> str:
        self._listening = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        port = self._listening.sockets[0].getsockname()[1]
        return urlunsplit(self._server._replace(netloc=f"{self._server.username}@127.0.0.1:{port}"))

    async def __aexit__(self, *error: object) -> None:
        self._listening.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def silence(self) -> None:
        self._open.clear()
        self.held_back.clear()

    def restore(self) -> None:
        self._open.set()

    def silence_open_connections(self) -> None:
        """New connections work."""
        self.silence()
        self._open = asyncio.Event()
        self._open.set()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        flow = self._open
        await flow.wait()
        there = await asyncio.open_connection(self._server.hostname, self._server.port)
        for source, target in ((reader, there[1]), (there[0], writer)):
            self._tasks.add(asyncio.create_task(self._carry(source, target, flow)))

    async def _carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, flow: asyncio.Event) -> None:
        try:
            while data := await source.read(65_536):
                if not flow.is_set():
                    self.held_back.set()
                await flow.wait()
                target.write(data)
        except ConnectionError:
            pass
        finally:
            target.close()


async def test_a_cancelled_call_returns_at_once_although_the_server_is_out_of_reach(
    races: Races, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker at the end of its lease must not wait for the answer to its last heartbeat, nor for a rollback."""
    # No setting changes how long a connection waits for the server; a call that waits as well does not return.
    monkeypatch.setattr(database, "_CONFIRMATION", 3_600)
    wire = Wire(races.dsn)
    async with wire as dsn:
        store = PostgresStore(dsn, connections=3)
        await store.open()
        worker = await store.open_session(a_worker(ttl=HOUR))
        await store.submit([a_run(key="k")])
        calls: list[Callable[[], Coroutine[Any, Any, object]]] = [
            lambda: store.heartbeat(worker, HOUR, [], [], 0),
            lambda: store.submit([a_run(key="k")]),
            store.now,
        ]
        # A connection for each call, and every statement prepared on it.
        await asyncio.gather(*(call() for call in calls))
        for call in calls:
            wire.silence()
            calling = asyncio.create_task(call())
            await wire.held_back.wait()
            calling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await calling
        wire.restore()
        assert (await store.submit([a_run(key="k")]))[0].state is RunState.BLOCKED
        await store.close()


async def test_a_heartbeat_gets_a_new_connection_when_its_only_one_is_dead(races: Races) -> None:
    wire = Wire(races.dsn)
    async with wire as dsn:
        store = PostgresStore(dsn, connections=1)
        await store.open()
        worker = await store.open_session(a_worker(ttl=HOUR))
        wire.silence_open_connections()
        beating = asyncio.create_task(store.heartbeat(worker, HOUR, [], [], 0))
        await wire.held_back.wait()
        beating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await beating
        assert (await store.heartbeat(worker, HOUR, [], [], 0)).alive
        await store.close()


# Errors of the server


async def test_a_backend_that_is_terminated_inside_a_transaction_is_replaced(races: Races) -> None:
    store = await races.a_store(connections=1)
    holder, blocked = a_run(key="k"), a_run(key="k")
    await store.submit([holder])
    holding = await races.hold("key_lock")
    submitting = asyncio.create_task(store.submit([blocked]))
    await races.blocked(submitting)
    # The store retries a transaction that was lost before its commit.
    await races.watch.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    await holding.execute("COMMIT")
    [accepted] = await submitting
    assert (accepted.new, accepted.state) == (True, RunState.BLOCKED)


async def test_a_lock_timeout_is_an_outage_and_keeps_the_connection(
    races: Races, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SESSION, "lock_timeout", "50ms")
    store = await races.a_store(connections=1)

    async def read_backends() -> list[int]:
        rows = await races.watch.fetch(
            "SELECT pid FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name = 'mainspring' ORDER BY pid"
        )
        return [row["pid"] for row in rows]

    await store.submit([a_run(key="k")])
    before = await read_backends()
    holding = await races.hold("key_lock")
    with pytest.raises(StoreUnavailable):
        await store.submit([a_run(key="k")])
    await holding.execute("COMMIT")
    assert (await store.submit([a_run(key="k")]))[0].state is RunState.BLOCKED
    assert await read_backends() == before


async def test_a_statement_that_a_migration_has_changed_is_prepared_again(races: Races) -> None:
    store = await races.a_store(connections=1)
    job = a_job()
    await store.put_jobs([job])
    await races.watch.execute("ALTER TABLE job ALTER COLUMN version TYPE bigint")
    [again] = await store.put_jobs([job])
    assert again.job.version == 1


async def test_a_login_that_no_longer_works_is_an_outage(races: Races) -> None:
    role = f"test_{uuid.uuid4().hex}"
    administrator = await asyncpg.connect(as_administrator(races.dsn))
    await administrator.execute(f"CREATE ROLE {role} SUPERUSER LOGIN")
    try:
        store = PostgresStore(with_user(races.dsn, role), connections=2)
        await store.open()
        await store.now()
        await administrator.execute(f"ALTER ROLE {role} NOLOGIN")
        # One connection exists; the second call needs another one.
        answers = await asyncio.gather(store.now(), store.now(), return_exceptions=True)
        assert [type(answer) for answer in answers] == [int, StoreUnavailable]
        await store.close()
    finally:
        await administrator.execute(f"DROP ROLE {role}")
        await administrator.close()
