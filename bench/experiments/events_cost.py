"""What events to a sink cost the full cycle: with and without, in turns, on a PostgreSQL of its own.

    python -m bench.experiments.events_cost redis://… | kafka://… [rounds]

As ``mainspring bench --quick --only full --store postgres``, for half a minute; beside it the events a second that the
sink has got in that time.
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from statistics import median

import msgspec
import redis.asyncio as redis
from confluent_kafka import Consumer, TopicPartition

from bench.engine.full_cycle import cycle
from bench.measurement import Bench
from bench.run import POSTGRES, make_factory
from bench.sites.site import Site, SiteFactory
from bench.sizes import QUICK
from mainspring.core.model.events.events import Topic

_SIZES = msgspec.structs.replace(QUICK, seconds=30)


class FactoryWithSink:
    """A place whose processes publish their events to a sink."""

    def __init__(self, place: SiteFactory, setting: str, address: str) -> None:
        self.kind, self.facts, self.directory = place.kind, place.facts, place.directory
        self._place, self._said = place, {setting: address}

    @asynccontextmanager
    async def site(self, name: str) -> AsyncIterator[Site]:
        async with self._place.site(name) as site:
            site.environment = {**site.environment, **self._said}  # type: ignore[misc]
            yield site


async def main() -> None:
    address, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 5
    kind = address.partition(":")[0]
    count = {"redis": count_redis, "kafka": count_kafka}[kind]
    without: list[float] = []
    beside: list[float] = []
    rates: list[float] = []
    async with make_factory(POSTGRES, lambda words: None) as place:
        with_sink = FactoryWithSink(place, f"MAINSPRING_EVENTS_{kind.upper()}", address)
        # Not measured: topics are made, and a broker in Java gets warm.
        await full(with_sink, Window())
        for number in range(rounds):
            without.append(await full(place, Window()))
            samples: list[tuple[float, int]] = []
            window = Window()
            sampling = asyncio.create_task(sample(samples, lambda: count(address)))
            beside.append(await full(with_sink, window))
            sampling.cancel()
            await asyncio.gather(sampling, return_exceptions=True)
            rates.append(window.rate(samples))
            told = f"without {without[-1]:,.0f} jobs/s, with {beside[-1]:,.0f} and {rates[-1]:,.0f} events/s"
            print(f"round {number + 1}: {told} (load {os.getloadavg()[0]:.0f})", flush=True)
    lower = 1 - median(beside) / median(without)
    each = median(1 - b / w for w, b in zip(without, beside, strict=True))
    print(f"medians: {median(without):,.0f} → {median(beside):,.0f} jobs/s, {lower:.1%} lower ({each:.1%} by rounds);")
    print(f"{median(rates):,.0f} events/s to {kind} meanwhile")


class Window:
    """When the cycle was measured, by what it says."""

    def __init__(self) -> None:
        self._said: list[float] = []

    def say(self, words: str) -> None:
        self._said.append(time.monotonic())

    def rate(self, samples: list[tuple[float, int]]) -> float:
        _, since, until = self._said
        inside = [(at, number) for at, number in samples if since <= at <= until]
        (first, before), (last, after) = inside[0], inside[-1]
        return (after - before) / (last - first)


async def full(place: SiteFactory | FactoryWithSink, window: Window) -> float:
    figures = await cycle(Bench(place, _SIZES, window.say))
    rate, used = figures["full_cycle_jobs_per_s"], figures["full_cycle_processor_us_per_job"]
    assert isinstance(rate, int | float)
    print("  µs of processor time a job:", used, flush=True)
    return rate


async def sample(samples: list[tuple[float, int]], count: Callable[[], Awaitable[int]]) -> None:
    while True:
        samples.append((time.monotonic(), await count()))
        await asyncio.sleep(0.5)


async def count_redis(address: str) -> int:
    async with redis.Redis.from_url(address) as client:
        if not await client.exists(f"{{mainspring}}:{Topic.JOBS}"):
            return 0
        return int((await client.xinfo_stream(f"{{mainspring}}:{Topic.JOBS}"))["entries-added"])


async def count_kafka(address: str) -> int:
    def look() -> int:
        consumer = Consumer({"bootstrap.servers": address.removeprefix("kafka://"), "group.id": "count"})
        try:
            topics = consumer.list_topics(timeout=10).topics
            partitions = topics[Topic.JOBS].partitions if Topic.JOBS in topics else ()
            return sum(consumer.get_watermark_offsets(TopicPartition(Topic.JOBS, one))[1] for one in partitions)
        finally:
            consumer.close()

    return await asyncio.to_thread(look)


if __name__ == "__main__":
    asyncio.run(main())
