"""``python -m tools.list_times [RUNS]``: how long the first page of every combination of filters takes on PostgreSQL.

It asks the API for each combination, without a socket, and prints the combinations with the time, the number of items
and how far the search went. Needs ``make services``.
"""

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Iterator
from itertools import product
from typing import Any

import httpx2
import psutil

from mainspring.stores.postgres import PostgresStore
from tests.api.conftest import Service
from tests.support.builders import SHARDS
from tests.support.databases import with_database
from tools.page_times import fill_once, find_server, processor_seconds
from tools.services import ensure

_TIMES = 5
#: Of each filter: none, a value that many runs have, and one that few or none have.
_FILTERS = {
    "status": ("", "failed", "succeeded", "queued,cancelled"),
    "queue": ("", "queue_1", "default"),
    "task": ("", "task_1", "report"),
    "tag": ("", "nightly"),
    "text": ("", "task_2", "nothing-like-it"),
}


def _combinations() -> Iterator[dict[str, str]]:
    for values in product(*_FILTERS.values()):
        yield {name: value for name, value in zip(_FILTERS, values, strict=True) if value}


async def measure(dsn: str) -> None:
    store = PostgresStore(dsn, shards=SHARDS)
    await store.open()
    try:
        async with Service(auth=False, store=store).client() as client:
            server = await find_server(dsn)
            print(
                f"load {os.getloadavg()[0]:.1f}; of {_TIMES}, ms: processor, median; items; searched back to; filters"
            )
            medians = [await _time(client, server, query) for query in _combinations()]
    finally:
        await store.close()
    late = sum(median > 300 for median in medians)
    print(
        f"{len(medians)} combinations, load {os.getloadavg()[0]:.1f}: median {statistics.median(medians):.0f} ms, "
        f"worst {max(medians):.0f} ms, {late} over 300 ms"
    )


async def _time(client: httpx2.AsyncClient, server: psutil.Process, query: dict[str, str]) -> float:
    took = []
    page: dict[str, Any] = {}
    before: dict[int, float] = {}
    for number in range(_TIMES + 1):
        if number == 1:
            before = processor_seconds(server)
        began = time.perf_counter()
        answer = await client.get("/v1/runs", params=query)
        took.append((time.perf_counter() - began) * 1_000)
        assert answer.status_code == 200, answer.text
        page = answer.json()
    after = processor_seconds(server)
    processor = sum(used - before.get(one, 0) for one, used in after.items()) / _TIMES * 1_000
    median = statistics.median(took[1:])
    reached = page.get("searchedBackTo", "end" if page["nextCursor"] is None else "")
    words = " ".join(f"{name}={value}" for name, value in query.items())
    print(f"{processor:7.0f} {median:7.0f} {len(page['items']):3} {reached:28} {words}", flush=True)
    return median


def main() -> None:
    arguments = argparse.ArgumentParser(prog="python -m tools.list_times", description=__doc__)
    arguments.add_argument("runs", nargs="?", type=int, default=1_000_000)
    arguments.add_argument(
        "--database", default="", help="filled if it is not there, and kept; by default list_times_RUNS"
    )
    given = arguments.parse_args()
    given.database = given.database or f"list_times_{given.runs}"
    server = ensure("postgres")
    began = time.monotonic()
    asyncio.run(fill_once(server, given.database, given.runs))
    print(f"filled in {time.monotonic() - began:.0f} s", flush=True)
    asyncio.run(measure(with_database(server, given.database)))


if __name__ == "__main__":
    main()
