"""Faults of a broker: hints that it loses, repeats or delays make runs late, and do nothing else."""

import asyncio
import signal
import time
from typing import ClassVar

import amqp
import asyncpg
import redis.asyncio as redis

from mainspring.config.servers.brokers import make_dispatch
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.cluster.hints import Hint, HintCodec
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.integrations.kafka.address import parse_kafka
from mainspring.integrations.kafka.admin import KafkaAdmin
from tools.chaos.cluster import QUEUES, Cluster
from tools.chaos.ensembles import BROKERS, freeze, thaw
from tools.chaos.faults import Fault
from tools.chaos.sites import Site

TOPICS = ("run-queue", "retry-queue")


class BrokerFault(Fault):
    tried_with: ClassVar[tuple[str, ...]] = BROKERS


class BrokerForgets(BrokerFault):
    """FLUSHALL; queues deleted; topics deleted."""

    name = "broker-forgets"

    async def happen(self, cluster: Cluster, site: Site, repetition: int) -> None:
        broker = cluster.broker
        match broker.name:
            case "redis":
                async with redis.Redis.from_url(broker.address()) as client:
                    await client.flushall()
            case "rabbitmq":
                await asyncio.to_thread(_delete_queues, broker.address(), await _identity(site))
            case _:
                await KafkaAdmin(parse_kafka(broker.address(), "broker")).delete_topics(TOPICS)
        await asyncio.sleep(6)


class BrokerKilled(BrokerFault):
    name = "broker-killed"
    seconds: ClassVar[float] = 3

    async def happen(self, cluster: Cluster, site: Site, repetition: int) -> None:
        broker = cluster.broker
        for node in broker.nodes:
            await asyncio.to_thread(node.signal, signal.SIGKILL)
        await asyncio.sleep(self.seconds)
        await asyncio.to_thread(broker.ensure)
        await asyncio.sleep(6)


class BrokerAway(BrokerKilled):
    """Ten minutes. Each process leaves it alone after the first calls, and comes back by itself."""

    name, variant, seconds = "broker-away", True, 600


class BrokerFrozen(BrokerFault):
    """Connections stay open, and no server answers."""

    name = "broker-frozen"

    async def happen(self, cluster: Cluster, site: Site, repetition: int) -> None:
        freeze(cluster.broker.nodes)
        await asyncio.sleep(6)
        thaw(cluster.broker.nodes)
        await asyncio.sleep(6)


class HintsRepeated(BrokerFault):
    """Each three times more: those of runs that wait, of runs that run, and of runs that have ended."""

    name = "hints-repeated"

    async def happen(self, cluster: Cluster, site: Site, repetition: int) -> None:
        identity = await _identity(site)
        dispatch = make_dispatch(cluster.broker.address(), SystemClock(), HintCodec((await _hint_key(site)).encode()))
        await dispatch.open(identity)
        try:
            for _ in range(4):
                hints = await _hints(site)
                for _ in range(3):
                    await dispatch.publish(hints)
                await asyncio.sleep(1)
        finally:
            await dispatch.close()


class WorkersComeAndGo(BrokerFault):
    """A storm of rebalances: every second a worker joins the group or leaves it, every other one without a farewell."""

    name = "workers-come-and-go"

    async def happen(self, cluster: Cluster, site: Site, repetition: int) -> None:
        passing = cluster.another_worker()
        for round_ in range(4):
            passing.start()
            await asyncio.sleep(2)
            await (passing.kill() if round_ % 2 else passing.stop())
        # What it held comes to others when its lease is over.
        await asyncio.sleep(4)


async def _identity(site: Site) -> str:
    return await _ask(site, "SELECT store_id FROM mainspring.meta")


async def _hint_key(site: Site) -> str:
    return await _ask(site, "SELECT hint_key FROM mainspring.meta")


async def _ask(site: Site, question: str) -> str:
    connection = await asyncpg.connect(site.server.dsn)
    try:
        return str(await connection.fetchval(question))
    finally:
        await connection.close()


async def _hints(site: Site) -> list[Hint]:
    connection = await asyncpg.connect(site.server.dsn)
    try:
        rows = await connection.fetch(
            """WITH told AS (
                   (SELECT id, queue FROM mainspring.run LIMIT 2000)
                   UNION ALL
                   (SELECT id, queue FROM mainspring.history
                    WHERE finished_at > mainspring.now_us() - 2000000 LIMIT 2000)
               )
               SELECT replace(told.id::text, '-', ''), n.name FROM told JOIN mainspring.name n ON n.id = told.queue"""
        )
    finally:
        await connection.close()
    return [Hint(RunId(run), queue, time.time_ns() // 1_000) for run, queue in rows]


def _delete_queues(address: str, identity: str) -> None:
    who, _, place = address.removeprefix("amqp://").partition("@")
    user, _, password = who.partition(":")
    with amqp.Connection(place.partition("/")[0], user, password) as opened:
        channel = opened.channel()
        for queue in QUEUES:
            channel.queue_delete(f"mainspring.{identity}.queue.{queue}")
