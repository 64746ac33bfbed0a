"""The RabbitMQ broker: durable queues, publisher confirms, and consumers that prefetch as much as they can start.

While a queue is empty, its takers wait as consumers, so the broker wakes them. Hints that are not acknowledged in
time are returned. Hints of a process that dies are delivered to others at once.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from pamqp import commands

from mainspring.core.model.base.errors import BrokerUnavailable
from mainspring.core.model.base.instant import SECOND, Micros
from mainspring.core.model.cluster.hints import Hint, HintCodec
from mainspring.core.model.runs.dead_letters import DeadRun
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.dispatch import LEASE, HintDelivery
from mainspring.core.runtime.tasks import cancel_and_wait
from mainspring.integrations.rabbitmq.address import parse_rabbitmq
from mainspring.integrations.rabbitmq.client import Client
from mainspring.integrations.rabbitmq.consumer import Consumer
from mainspring.integrations.rabbitmq.errors import (
    NOT_FOUND,
    AmqpError,
    ChannelClosed,
    ConnectionLost,
    ConnectionRejected,
)
from mainspring.integrations.rabbitmq.publisher import MailRejected, Messages, Publisher
from mainspring.integrations.rabbitmq.queues import QueueDeclarer

#: The time limit of an answer. Declaring queues takes longer, because quorum queues are created on several nodes.
_PATIENCE: Micros = 5 * SECOND
_PATIENCE_TO_CONNECT: Micros = 3 * SECOND
_PATIENCE_TO_MAKE: Micros = 15 * SECOND
#: Delays before refused messages are sent again: a new quorum queue accepts nothing until it has a leader.
_PAUSES: tuple[Micros, ...] = (SECOND // 10, SECOND // 3, SECOND)
#: The largest number of messages in flight.
_BATCH = 1_000
#: Hints are not written to disk, which would double the cost of a classic queue. Hints that a restart loses are
#: published again. Quorum queues write everything.
_TRANSIENT, _PERSISTENT = 1, 2


class Receipt(NamedTuple):
    consumer: Consumer
    tag: int


_DECLARE_RACE = "INTERNAL_ERROR"


class RabbitDispatch:
    kind = "rabbitmq"

    def __init__(self, url: str, clock: Clock, codec: HintCodec, lease: Micros = LEASE) -> None:
        self.refused = 0
        self._broker = parse_rabbitmq(url, "dispatch.broker")
        self._clock = clock
        self._codec = codec
        self._lease = lease
        self.by_priority = self._broker.by_priority
        self._client = Client(self._broker, clock, _PATIENCE_TO_CONNECT)
        self._queues = QueueDeclarer(self._client, self._broker, "")
        self._publisher: Publisher | None = None
        #: Channels are opened one at a time.
        self._opening = asyncio.Lock()
        #: By Mainspring queue and the names of its queues in the broker.
        self._consumers: dict[tuple[str, Sequence[str]], Consumer] = {}
        self._expiring: asyncio.Task[None] | None = None

    async def open(self, namespace: str) -> None:
        self._queues = QueueDeclarer(self._client, self._broker, namespace)
        self._expiring = asyncio.create_task(self._expire(), name="rabbitmq-leases")

    async def close(self) -> None:
        expiring, self._expiring = self._expiring, None
        if expiring is not None:
            await cancel_and_wait(expiring)
        await self._client.close()

    async def publish(self, hints: Sequence[Hint]) -> None:
        for start in range(0, len(hints), _BATCH):
            queues: defaultdict[tuple[str, int], list[bytes]] = defaultdict(list)
            for hint in hints[start : start + _BATCH]:
                queues[self._queues.find(hint)].append(self._codec.encode(hint))
            messages = [
                Messages("", name, commands.Basic.Properties(delivery_mode=_TRANSIENT, priority=priority), bodies)
                for (name, priority), bodies in queues.items()
            ]
            async with self._answer():
                await self._send(messages, [some.key for some in messages])

    async def publish_dead(self, dead: Sequence[DeadRun]) -> None:
        queue = self._queues.dead
        for start in range(0, len(dead), _BATCH):
            some = dead[start : start + _BATCH]
            messages = [Messages(queue, "run.dead", _build_properties(run), [run.message()]) for run in some]
            async with self._answer():
                try:
                    await self._send(messages, [queue])
                except ChannelClosed as error:
                    # If RabbitMQ refuses the copy of a dead letter, hints must still work.
                    self._queues.note(queue, error)

    async def _send(self, messages: Sequence[Messages], names: Sequence[str]) -> None:
        await self._ensure(names)
        connection = await self._client.connection()
        if connection.blocked:
            raise BrokerUnavailable(f"RabbitMQ accepts no messages: {connection.blocked}")
        try:
            gone = await self._publish(messages)
        except ChannelClosed as error:
            if error.code != NOT_FOUND:
                raise
            gone = {some.key for some in messages}
        if gone:
            # The queue or the exchange was deleted after it was declared.
            self._queues.forget(names)
            await self._ensure(names)
            await self._publish([some for some in messages if some.key in gone])

    async def _publish(self, messages: Sequence[Messages]) -> set[str]:
        for pause in _PAUSES:
            try:
                return await self._publish_once(messages)
            except MailRejected:
                # Accepted messages are sent again, too, because a duplicate hint is harmless.
                await self._clock.sleep(pause)
        return await self._publish_once(messages)

    async def _publish_once(self, messages: Sequence[Messages]) -> set[str]:
        async with asyncio.timeout(_PATIENCE / SECOND):
            async with self._opening:
                if self._publisher is None or self._publisher.closed:
                    publisher = Publisher(await (await self._client.connection()).channel())
                    await publisher.start()
                    self._publisher = publisher
            return await self._publisher.publish(messages)

    async def take(self, queue: str, limit: int, wait: Micros) -> list[HintDelivery]:
        return await self._take(queue, self._queues.names(queue), limit, wait)

    async def take_priority(self, queue: str, priority: int, limit: int, wait: Micros) -> list[HintDelivery]:
        return await self._take(queue, self._queues.names(queue, priority), limit, wait)

    async def _take(self, queue: str, names: Sequence[str], limit: int, wait: Micros) -> list[HintDelivery]:
        until = self._clock.monotonic() + wait
        in_vain = False
        while limit > 0:
            async with self._answer():
                consumer = await self._get_consumer(queue, names)
                async with consumer.lock:
                    found = consumer.take_ready(limit)
                    if not found:
                        wanted, at_once = await self._credits(names, limit, in_vain)
                        left = until - self._clock.monotonic()
                        await self._fetch(consumer, names, wanted, None if at_once or left <= 0 else left)
                        found, in_vain = consumer.take_ready(limit), at_once
            if found or (until <= self._clock.monotonic() and not in_vain):
                return [HintDelivery(hint, Receipt(consumer, tag)) for tag, hint in found]
        return []

    async def _get_consumer(self, queue: str, names: Sequence[str]) -> Consumer:
        def read(message: bytes) -> Hint | None:
            hint = self._codec.decode(queue, message)
            self.refused += hint is None
            return hint

        await self._ensure(names)
        async with asyncio.timeout(_PATIENCE / SECOND), self._opening:
            consumer = self._consumers.get((queue, names))
            if consumer is None or consumer.closed:
                channel = await (await self._client.connection()).channel()
                consumer = self._consumers[queue, names] = Consumer(channel, read, self._clock.monotonic, self._lease)
        return consumer

    async def _credits(self, names: Sequence[str], limit: int, in_vain: bool) -> tuple[list[tuple[str, int]], bool]:
        """Return how many messages to request from each queue, and whether only available messages are wanted.

        If none are available, the requests wait for new messages.
        """
        if len(names) > 1 and not in_vain:
            async with asyncio.timeout(_PATIENCE / SECOND):
                counts = await self._queues.counts(names)
            wanted, left = [], limit
            for name, number in zip(names, counts, strict=True):
                if number and left:
                    wanted.append((name, min(number, left)))
                    left -= wanted[-1][1]
            if wanted:
                return wanted, True
        return [(name, -(-limit // len(names))) for name in names], False

    async def _fetch(
        self, consumer: Consumer, names: Sequence[str], wanted: Sequence[tuple[str, int]], wait: Micros | None
    ) -> None:
        try:
            await consumer.fetch(wanted, wait, _PATIENCE)
        except ChannelClosed as error:
            if error.code != NOT_FOUND:
                raise
            consumer.cancelled_by_broker = True
        if consumer.cancelled_by_broker:
            # The queue was deleted; the next call declares it again.
            self._queues.forget(names)

    async def done(self, deliveries: Sequence[HintDelivery]) -> None:
        tags_by_consumer: defaultdict[Consumer, list[int]] = defaultdict(list)
        for delivery in deliveries:
            receipt = delivery.receipt
            assert isinstance(receipt, Receipt)
            tags_by_consumer[receipt.consumer].append(receipt.tag)
        for consumer, tags in tags_by_consumer.items():
            consumer.done(tags)

    async def depth(self, queue: str) -> int:
        names = self._queues.names(queue)
        async with self._answer():
            async with asyncio.timeout(_PATIENCE / SECOND):
                counts = await self._queues.counts(names)
            there = [name for name, number in zip(names, counts, strict=True) if number is not None]
            if there:
                # This reports queues with unexpected properties.
                await self._ensure(there)
        return sum(number or 0 for number in counts)

    async def warnings(self) -> list[str]:
        async with self._answer():
            connection = await self._client.connection()
        blocked = [f"RabbitMQ accepts no messages: {connection.blocked}"] if connection.blocked else []
        return blocked + [f"{name} has other arguments: {says}" for name, says in self._queues.odd.items()]

    async def _ensure(self, names: Sequence[str]) -> None:
        async with asyncio.timeout(_PATIENCE_TO_MAKE / SECOND):
            while True:
                try:
                    return await self._queues.ensure(names)
                except ConnectionLost as error:
                    # RabbitMQ 3.10 closes one of the connections that declare the same quorum queue at the same time.
                    if _DECLARE_RACE not in str(error):
                        raise

    @asynccontextmanager
    async def _answer(self) -> AsyncIterator[None]:
        if self._expiring is None:
            raise BrokerUnavailable("the connection to RabbitMQ is not open")
        try:
            yield
        except ConnectionRejected as error:
            raise BrokerUnavailable(f"RabbitMQ rejected the connection: {error}") from error
        except TimeoutError as error:
            # The connection may hang, so the next call opens another one.
            self._client.drop("it did not answer in time")
            raise BrokerUnavailable("RabbitMQ does not answer: timeout") from error
        except (AmqpError, OSError) as error:
            raise BrokerUnavailable(f"RabbitMQ does not answer: {error}") from error

    async def _expire(self) -> None:
        while True:
            await self._clock.sleep(min(self._lease, SECOND) // 2)
            for consumer in self._consumers.values():
                if not consumer.closed:
                    consumer.return_expired()


def _build_properties(run: DeadRun) -> commands.Basic.Properties:
    return commands.Basic.Properties(
        content_type="application/json", delivery_mode=_PERSISTENT, message_id=run.id, message_type="run.dead"
    )
