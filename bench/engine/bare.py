"""The three steps of a job's life with nothing around them: submit a batch, claim a batch, complete it."""

from collections.abc import Awaitable
from typing import Any, Protocol, TypeVar

from bench.engine.load import Load
from bench.sizes import QUEUE
from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import HOUR
from mainspring.core.model.runs.completion import complete_success
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.store import Demand, NewSession, Store

#: As the submitting process and a worker under load do it.
SUBMIT = 1_000
CLAIM = 500

Held = TypeVar("Held")


class Bare(Protocol[Held]):
    """Each step may be called while another is under way, but not while it is itself."""

    def submit(self) -> Awaitable[int]:
        """Queue a batch; how many that is."""
        ...

    def claim(self) -> Awaitable[list[Held]]: ...

    def complete(self, held: list[Held]) -> Awaitable[None]: ...

    def close(self) -> Awaitable[None]: ...


class Methods:
    """The store's own methods: on SQLite a statement is a call of a function, and these are the calls."""

    def __init__(self, load: Load, store: Store) -> None:
        self._load = load
        self._store = store
        self._session = SessionId(0)
        self._claims = 0

    async def submit(self) -> int:
        await self._store.submit(await self._load.new_runs(SUBMIT))
        return SUBMIT

    async def claim(self) -> list[HeldRun]:
        if not self._session:
            self._session = await self._store.open_session(NewSession(name="bare", kind="worker", ttl=HOUR))
        self._claims += 1
        return await self._store.claim(self._session, self._claims, [Demand(QUEUE, CLAIM)])

    async def complete(self, held: list[HeldRun]) -> None:
        await self._store.complete([complete_success(run, None) for run in held])

    async def close(self) -> None:
        """The session ends with its store."""


async def open_bare(load: Load) -> "Bare[Any]":
    if load.on_postgres:
        from bench.engine.bare_postgres import Statements

        return await Statements.open(load)
    return Methods(load, (await load.runtime()).store)
