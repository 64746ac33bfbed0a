"""The ceiling: the very statements of the store in a bare loop, with no task, no slots, no leases, no wake-ups.

On PostgreSQL a producer, a claimer and a settler have a connection each and wait for nobody but each other. On SQLite,
where a statement is a call of a function, the store's own methods are called in the same way.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from mainspring.bench.bench import Bench
from mainspring.bench.figures import Figures, minutes
from mainspring.bench.load import Load
from mainspring.bench.sizes import QUEUE
from mainspring.domain.instant import HOUR
from mainspring.domain.run import HeldRun, settle_success
from mainspring.ports.store import NewSession, Want

Held = TypeVar("Held")

_SUBMIT = 1_000
_CLAIM = 500
_BACKLOG = 20_000


async def measure(bench: Bench) -> Figures:
    async with bench.system("bare") as system:
        bench.say(f"the ceiling, bare statements: {minutes(bench.sizes.ceiling_seconds)}")
        run = run_store if bench.embedded else run_statements
        rate = await system.call(run, seconds=bench.sizes.ceiling_seconds)
    return {"bare_sql_jobs_per_s": rate}


async def run_statements(load: Load, seconds: float) -> int:
    """PostgreSQL: completed jobs a second."""
    from mainspring.bench.bare_postgres import Statements

    statements = await Statements.open(load)
    try:
        return await pipeline(statements.submit, statements.claim, statements.settle, seconds)
    finally:
        await statements.close()


async def run_store(load: Load, seconds: float) -> int:
    """Any store, by its methods: completed jobs a second."""
    engine = await load.engine()
    store = engine.store
    session = await store.open_session(NewSession(name="bare", kind="worker", ttl=HOUR))
    claims = 0

    async def submit() -> int:
        await store.submit(await load.new_runs(_SUBMIT))
        return _SUBMIT

    async def claim() -> list[HeldRun]:
        nonlocal claims
        claims += 1
        return await store.claim(session, claims, [Want(QUEUE, _CLAIM)])

    async def settle(held: list[HeldRun]) -> None:
        await store.settle([settle_success(run, None) for run in held])

    return await pipeline(submit, claim, settle, seconds)


async def pipeline(
    submit: Callable[[], Awaitable[int]],
    claim: Callable[[], Awaitable[list[Held]]],
    settle: Callable[[list[Held]], Awaitable[None]],
    seconds: float,
) -> int:
    """Three loops that hand on to each other, over a backlog that stays what it is; completed jobs a second."""
    submitted = settled = 0
    claimed: asyncio.Queue[list[Held]] = asyncio.Queue(4)
    while submitted < _BACKLOG:
        submitted += await submit()

    async def submitting() -> None:
        nonlocal submitted
        while True:
            if submitted - settled > _BACKLOG + 2 * _SUBMIT:
                await asyncio.sleep(0.001)
            else:
                submitted += await submit()

    async def claiming() -> None:
        while True:
            if batch := await claim():
                await claimed.put(batch)
            else:
                await asyncio.sleep(0.001)

    async def settling() -> None:
        nonlocal settled
        while True:
            batch = await claimed.get()
            await settle(batch)
            settled += len(batch)

    loops = [asyncio.create_task(loop()) for loop in (submitting, claiming, settling)]
    try:
        # The first tenth warms up: plans, caches, the tail of the backlog.
        await asyncio.wait(loops, timeout=seconds / 10)
        before, started = settled, time.perf_counter()
        await asyncio.wait(loops, timeout=seconds * 0.9, return_when=asyncio.FIRST_EXCEPTION)
        rate = (settled - before) / (time.perf_counter() - started)
    finally:
        for loop in loops:
            loop.cancel()
        ended = await asyncio.gather(*loops, return_exceptions=True)
    for outcome in ended:
        if isinstance(outcome, Exception):
            raise outcome
    return round(rate)
