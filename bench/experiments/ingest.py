"""How fast jobs are made of requests in a topic of Kafka: a scheduler, PostgreSQL and Kafka, all on this machine.

    python -m bench.experiments.ingest --requests 200000 --keys

The requests are in the topic before the scheduler starts. ``--keys``: each record has one; otherwise its place is its
key. Counted is what the store holds, from a tenth of the requests to the last one.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Sequence
from uuid import uuid4

import asyncpg

from bench.machine import family_processor_seconds
from mainspring.core.model.base.instant import SECOND
from mainspring.integrations.kafka.address import parse_kafka
from mainspring.integrations.kafka.admin import KafkaAdmin
from mainspring.integrations.kafka.producer import BatchProducer, Record
from mainspring.stores.postgres import PostgresStore
from tools.services import ensure
from tools.services.local_postgres import throwaway_postgres

_BATCH = 5_000
_COUNT = "SELECT (SELECT count(*) FROM mainspring.run) + (SELECT count(*) FROM mainspring.history)"


async def fill(address: str, topic: str, requests: int, *, keys: bool) -> float:
    """Seconds that it took."""
    server = parse_kafka(address, "kafka")
    await KafkaAdmin(server).make_topics([topic], 12, {})
    producer = BatchProducer(server, patience=30 * SECOND, linger=5_000)
    began = time.monotonic()
    for start in range(0, requests, _BATCH):
        places = range(start, min(start + _BATCH, requests))
        bodies = [b'{"task":"encode","queue":"video","payload":{"videoId":%d}}' % place for place in places]
        await producer.send(
            [
                Record(topic, body, b"request-%d" % place if keys else None)
                for place, body in zip(places, bodies, strict=True)
            ]
        )
    await producer.close()
    return time.monotonic() - began


async def until(connection: "asyncpg.Connection", number: int, processes: Sequence[Process]) -> int:
    while True:
        assert all(process.returncode is None for process in processes), "a scheduler has ended"
        count: int = await connection.fetchval(_COUNT)
        if count >= number:
            return count
        await asyncio.sleep(0.25)  # Counting them all is work for the server, too.


async def measure(requests: int, schedulers: int, *, keys: bool) -> dict[str, object]:
    address, topic = ensure("kafka"), f"bench-{uuid4().hex}"
    filled = await fill(address, topic, requests, keys=keys)
    with throwaway_postgres() as postgres:
        store = PostgresStore(postgres.dsn)
        await store.open()
        await store.close()
        environment = {**os.environ, "MAINSPRING_STORE": postgres.dsn, "MAINSPRING_INGEST_KAFKA": f"{address}/{topic}"}
        processes = [
            await asyncio.create_subprocess_exec(sys.executable, "-m", "mainspring", "scheduler", env=environment)
            for _ in range(schedulers)
        ]
        connection = await asyncpg.connect(postgres.dsn)
        try:
            first = await until(connection, requests // 10, processes)
            began, used = time.monotonic(), sum(family_processor_seconds(one.pid) for one in processes)
            last = await until(connection, requests, processes)
            took = time.monotonic() - began
            used = sum(family_processor_seconds(one.pid) for one in processes) - used
            # A duplicate would have arrived by now.
            await asyncio.sleep(1)
            assert await connection.fetchval(_COUNT) == requests, "a request was made twice"
        finally:
            await connection.close()
            for process in processes:
                process.terminate()
            for process in processes:
                await process.wait()
    return {
        "requests": requests,
        "keys": keys,
        "schedulers": schedulers,
        "requests_per_s": round((last - first) / took),
        "scheduler_processor_us_per_request": round(used * 1e6 / (last - first), 1),
        "sent_per_s": round(requests / filled),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--schedulers", type=int, default=1)
    parser.add_argument("--keys", action="store_true")
    given = parser.parse_args()
    print(json.dumps(asyncio.run(measure(given.requests, given.schedulers, keys=given.keys))))


if __name__ == "__main__":
    main()
