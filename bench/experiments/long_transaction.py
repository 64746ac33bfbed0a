"""The effect of a transaction that stays open on claims: before it, after many runs, and when it has ended.

    python -m bench.experiments.long_transaction [runs] [minutes]

On a PostgreSQL of its own. One process submits, claims and completes batches, without a pause or spread over so many
minutes; the times are of claims.
"""

import asyncio
import sys
import time
from statistics import median, quantiles

import asyncpg

from bench.run import POSTGRES, make_factory
from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import HOUR
from mainspring.core.model.runs.completion import complete_success
from mainspring.core.store import Demand
from mainspring.stores.postgres import PostgresStore
from tests.support.builders import a_run, a_worker

_BATCH = 500
#: Claims that are timed, of so many runs each.
_TIMED, _CLAIM = 1_000, 20


class Cycle:
    def __init__(self, store: PostgresStore, worker: SessionId) -> None:
        self._store, self._worker, self._claims = store, worker, 0

    async def churn(self, runs: int, seconds: float = 0) -> None:
        began = time.monotonic()
        for done in range(0, runs, _BATCH):
            await asyncio.sleep(max(began + seconds * done / runs - time.monotonic(), 0))
            await self._store.submit([a_run() for _ in range(_BATCH)])
            await self._claim(_BATCH)

    async def timed(self) -> list[float]:
        took = []
        for number in range(_TIMED):
            if number % (_BATCH // _CLAIM) == 0:
                await self._store.submit([a_run() for _ in range(_BATCH)])
            took.append(await self._claim(_CLAIM))
        return took

    async def _claim(self, limit: int) -> float:
        self._claims += 1
        began = time.perf_counter()
        held = await self._store.claim(self._worker, self._claims, [Demand("default", limit)])
        took = (time.perf_counter() - began) * 1_000
        assert len(held) == limit, len(held)
        await self._store.complete([complete_success(run, None) for run in held])
        return took


async def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    minutes = float(sys.argv[2]) if len(sys.argv) > 2 else 0
    async with make_factory(POSTGRES, lambda words: None) as place, place.site("long") as site:
        dsn = site.environment["MAINSPRING_STORE"]
        store = PostgresStore(dsn, shards=4)
        await store.open()
        upkeep = asyncio.create_task(tidy(store))
        try:
            cycle = Cycle(store, await store.open_session(a_worker(ttl=HOUR)))
            await cycle.churn(20_000)
            before = await cycle.timed()
            print_times("before it", before)
            other = await asyncpg.connect(dsn)
            await other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM mainspring.run")
            began = time.monotonic()
            for part in range(1, 5):
                await cycle.churn(runs // 4, minutes * 60 / 4)
                print_times(f"after {runs // 4 * part:,} runs, {time.monotonic() - began:.0f} s", await cycle.timed())
            await other.close()
            await store.tidy()
            print_times("when it has ended", await cycle.timed())
        finally:
            upkeep.cancel()
            await asyncio.gather(upkeep, return_exceptions=True)
            await store.close()


async def tidy(store: PostgresStore) -> None:
    """As a scheduler does."""
    while True:
        await asyncio.sleep(5)
        await store.tidy()


def print_times(when: str, took: list[float]) -> None:
    p99 = quantiles(took, n=100)[-1]
    print(f"{when:28} claim p50 {median(took):6.2f}, p99 {p99:6.2f}, worst {max(took):7.2f} ms", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
