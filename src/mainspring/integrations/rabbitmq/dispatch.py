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
from mainspring.integrations.rabbitmq.address import read_broker
from mainspring.integrations.rabbitmq.client import Client
from mainspring.integrations.rabbitmq.errors import NOT_FOUND, AmqpError, ChannelClosed, ConnectionLost, Refused
from mainspring.integrations.rabbitmq.lane import Lane
from mainspring.integrations.rabbitmq.publisher import Letters, MailRejected, Publisher
from mainspring.integrations.rabbitmq.queues import Queues

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
    lane: Lane
    tag: int


_STUMBLED = "INTERNAL_ERROR"


class RabbitDispatch:
    kind = "rabbitmq"

    def __init__(self, url: str, clock: Clock, sealer: HintCodec, lease: Micros = LEASE) -> None:
        self.refused = 0
        self._broker = read_broker(url, "dispatch.broker")
        self._clock = clock
        self._sealer = sealer
        self._lease = lease
        self.by_priority = self._broker.by_priority
        self._client = Client(self._broker, clock, _PATIENCE_TO_CONNECT)
        self._queues = Queues(self._client, self._broker, "")
        self._publisher: Publisher | None = None
        #: Channels are opened one at a time.
        self._opening = asyncio.Lock()
        #: By Mainspring queue and the names of its queues in the broker.
        self._lanes: dict[tuple[str, Sequence[str]], Lane] = {}
        self._expiring: asyncio.Task[None] | None = None

    async def open(self, namespace: str) -> None:
        self._queues = Queues(self._client, self._broker, namespace)
        self._expiring = asyncio.create_task(self._expire(), name="rabbitmq-leases")

    async def close(self) -> None:
        expiring, self._expiring = self._expiring, None
        if expiring is not None:
            await cancel_and_wait(expiring)
        await self._client.close()

    async def publish(self, hints: Sequence[Hint]) -> None:
        for start in range(0, len(hints), _BATCH):
            places: defaultdict[tuple[str, int], list[bytes]] = defaultdict(list)
            for hint in hints[start : start + _BATCH]:
                places[self._queues.place(hint)].append(self._sealer.seal(hint))
            letters = [
                Letters("", name, commands.Basic.Properties(delivery_mode=_TRANSIENT, priority=priority), bodies)
                for (name, priority), bodies in places.items()
            ]
            async with self._answer():
                await self._send(letters, [some.key for some in letters])

    async def publish_dead(self, dead: Sequence[DeadRun]) -> None:
        place = self._queues.dead
        for start in range(0, len(dead), _BATCH):
            some = dead[start : start + _BATCH]
            letters = [Letters(place, "run.dead", _about(run), [run.message()]) for run in some]
            async with self._answer():
                try:
                    await self._send(letters, [place])
                except ChannelClosed as error:
                    # If RabbitMQ refuses the copy of a dead letter, hints must still work.
                    self._queues.note(place, error)

    async def _send(self, letters: Sequence[Letters], names: Sequence[str]) -> None:
        await self._ensure(names)
        connection = await self._client.connection()
        if connection.blocked:
            raise BrokerUnavailable(f"RabbitMQ takes no messages: {connection.blocked}")
        try:
            gone = await self._publish(letters)
        except ChannelClosed as error:
            if error.code != NOT_FOUND:
                raise
            gone = {some.key for some in letters}
        if gone:
            # The queue or the exchange was deleted after it was declared.
            self._queues.forget(names)
            await self._ensure(names)
            await self._publish([some for some in letters if some.key in gone])

    async def _publish(self, letters: Sequence[Letters]) -> set[str]:
        for pause in _PAUSES:
            try:
                return await self._publish_once(letters)
            except MailRejected:
                # Accepted messages are sent again, too, because a duplicate hint is harmless.
                await self._clock.sleep(pause)
        return await self._publish_once(letters)

    async def _publish_once(self, letters: Sequence[Letters]) -> set[str]:
        async with asyncio.timeout(_PATIENCE / SECOND):
            async with self._opening:
                if self._publisher is None or self._publisher.closed:
                    publisher = Publisher(await (await self._client.connection()).channel())
                    await publisher.start()
                    self._publisher = publisher
            return await self._publisher.publish(letters)

    async def take(self, queue: str, limit: int, wait: Micros) -> list[HintDelivery]:
        return await self._take(queue, self._queues.names(queue), limit, wait)

    async def take_priority(self, queue: str, priority: int, limit: int, wait: Micros) -> list[HintDelivery]:
        return await self._take(queue, self._queues.names(queue, priority), limit, wait)

    async def _take(self, queue: str, names: Sequence[str], limit: int, wait: Micros) -> list[HintDelivery]:
        until = self._clock.monotonic() + wait
        in_vain = False
        while limit > 0:
            async with self._answer():
                lane = await self._lane(queue, names)
                async with lane.lock:
                    found = lane.pick(limit)
                    if not found:
                        wanted, at_once = await self._credits(names, limit, in_vain)
                        left = until - self._clock.monotonic()
                        await self._fetch(lane, names, wanted, None if at_once or left <= 0 else left)
                        found, in_vain = lane.pick(limit), at_once
            if found or (until <= self._clock.monotonic() and not in_vain):
                return [HintDelivery(hint, Receipt(lane, tag)) for tag, hint in found]
        return []

    async def _lane(self, queue: str, names: Sequence[str]) -> Lane:
        def read(message: bytes) -> Hint | None:
            hint = self._sealer.open(queue, message)
            self.refused += hint is None
            return hint

        await self._ensure(names)
        async with asyncio.timeout(_PATIENCE / SECOND), self._opening:
            lane = self._lanes.get((queue, names))
            if lane is None or lane.closed:
                channel = await (await self._client.connection()).channel()
                lane = self._lanes[queue, names] = Lane(channel, read, self._clock.monotonic, self._lease)
        return lane

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
        self, lane: Lane, names: Sequence[str], wanted: Sequence[tuple[str, int]], wait: Micros | None
    ) -> None:
        try:
            await lane.fetch(wanted, wait, _PATIENCE)
        except ChannelClosed as error:
            if error.code != NOT_FOUND:
                raise
            lane.deserted = True
        if lane.deserted:
            # The queue was deleted; the next call declares it again.
            self._queues.forget(names)

    async def done(self, deliveries: Sequence[HintDelivery]) -> None:
        lanes: defaultdict[Lane, list[int]] = defaultdict(list)
        for delivery in deliveries:
            receipt = delivery.receipt
            assert isinstance(receipt, Receipt)
            lanes[receipt.lane].append(receipt.tag)
        for lane, tags in lanes.items():
            lane.done(tags)

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
        blocked = [f"RabbitMQ takes no messages: {connection.blocked}"] if connection.blocked else []
        return blocked + [f"{name} is not as it should be: {says}" for name, says in self._queues.odd.items()]

    async def _ensure(self, names: Sequence[str]) -> None:
        async with asyncio.timeout(_PATIENCE_TO_MAKE / SECOND):
            while True:
                try:
                    return await self._queues.ensure(names)
                except ConnectionLost as error:
                    # RabbitMQ 3.10 closes one of the connections that declare the same quorum queue at the same time.
                    if _STUMBLED not in str(error):
                        raise

    @asynccontextmanager
    async def _answer(self) -> AsyncIterator[None]:
        if self._expiring is None:
            raise BrokerUnavailable("the connection to RabbitMQ is not open")
        try:
            yield
        except Refused as error:
            raise BrokerUnavailable(f"RabbitMQ refuses to talk to us: {error}") from error
        except TimeoutError as error:
            # The connection may hang, so the next call opens another one.
            self._client.drop("it did not answer in time")
            raise BrokerUnavailable("RabbitMQ does not answer: timeout") from error
        except (AmqpError, OSError) as error:
            raise BrokerUnavailable(f"RabbitMQ does not answer: {error}") from error

    async def _expire(self) -> None:
        while True:
            await self._clock.sleep(min(self._lease, SECOND) // 2)
            for lane in self._lanes.values():
                if not lane.closed:
                    lane.expire()


def _about(run: DeadRun) -> commands.Basic.Properties:
    return commands.Basic.Properties(
        content_type="application/json", delivery_mode=_PERSISTENT, message_id=run.id, message_type="run.dead"
    )
