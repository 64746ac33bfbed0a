"""``python -m tools.list_times [RUNS]``: how long the first page of every combination of filters takes on PostgreSQL.

It asks the API for each combination, without a socket, and prints the combinations with the time, the number of items
and how far the search went. The filters that select a range (job, tenant, time) are combined with each other filter and
with each other. Then come the filters of dead letters and of the audit. Needs ``make services``.
"""

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Iterator
from itertools import combinations, product
from typing import Any

import httpx2
import psutil

from mainspring.core.model.base.instant import DAY, Instant, isoformat
from mainspring.stores.postgres import PostgresStore
from tests.api.conftest import Service
from tests.support.builders import SHARDS
from tests.support.databases import with_database
from tools.much_history import fingerprint_of_most
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


def _list_combinations() -> Iterator[dict[str, str]]:
    for values in product(*_FILTERS.values()):
        yield {name: value for name, value in zip(_FILTERS, values, strict=True) if value}


def _list_ranges(ranges: list[dict[str, str]]) -> Iterator[dict[str, str]]:
    """Each range alone, with each other filter, and with each other range."""
    single = [{name: value} for name, values in _FILTERS.items() for value in values if value]
    for each in ranges:
        yield from ({**each, **other} for other in ({}, *single))
    yield from ({**one, **other} for one, other in combinations(ranges, 2))


async def _find_ranges(client: httpx2.AsyncClient, now: Instant) -> list[dict[str, str]]:
    """A job, the tenant, and two bounds three and six days back."""
    jobs = (await client.get("/v1/jobs", params={"kind": "recurring", "limit": 1})).json()["items"]
    return [
        {"jobId": jobs[0]["jobId"]},
        {"tenant": "default"},
        {"createdBefore": isoformat(now - 3 * DAY)},
        {"createdAfter": isoformat(now - 6 * DAY)},
    ]


_OTHER_LISTS = {
    "/v1/dead-letters/runs": [
        *({}, {"task": "task_1"}, {"queue": "queue_1"}, {"tenant": "default"}, {"fingerprint": fingerprint_of_most()}),
        {"task": "task_1", "queue": "queue_1", "fingerprint": fingerprint_of_most()},
        {"fingerprint": "0" * 16},
    ],
    "/v1/audit": [
        *({}, {"author": "user:7"}, {"author": "nobody"}, {"action": "jobs.pause"}, {"action": "keys"}),
        *({"target": "nothing"}, {"author": "user:7", "action": "jobs.pause"}, {"author": "nobody", "action": "jobs"}),
    ],
}


async def measure(dsn: str) -> None:
    store = PostgresStore(dsn, shards=SHARDS)
    await store.open()
    try:
        async with Service(auth=False, store=store).client() as client:
            server = await find_server(dsn)
            print(
                f"load {os.getloadavg()[0]:.1f}; of {_TIMES}, ms: processor, median; items; searched back to; filters"
            )
            runs = [*_list_combinations(), *_list_ranges(await _find_ranges(client, await store.now()))]
            queries = [("/v1/runs", query) for query in runs]
            queries += [(path, query) for path, asked in _OTHER_LISTS.items() for query in asked]
            medians = [await _time(client, server, path, query) for path, query in queries]
    finally:
        await store.close()
    late = sum(median > 300 for median in medians)
    print(
        f"{len(medians)} combinations, load {os.getloadavg()[0]:.1f}: median {statistics.median(medians):.0f} ms, "
        f"worst {max(medians):.0f} ms, {late} over 300 ms"
    )


async def _time(client: httpx2.AsyncClient, server: psutil.Process, path: str, query: dict[str, str]) -> float:
    took = []
    page: dict[str, Any] = {}
    before: dict[int, float] = {}
    for number in range(_TIMES + 1):
        if number == 1:
            before = processor_seconds(server)
        began = time.perf_counter()
        answer = await client.get(path, params=query)
        took.append((time.perf_counter() - began) * 1_000)
        assert answer.status_code == 200, answer.text
        page = answer.json()
    after = processor_seconds(server)
    processor = sum(used - before.get(one, 0) for one, used in after.items()) / _TIMES * 1_000
    median = statistics.median(took[1:])
    reached = page.get("searchedBackTo", "end" if page["nextCursor"] is None else "")
    words = " ".join([path, *(f"{name}={value}" for name, value in query.items())])
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
