"""Takes hints from one Mainspring queue: a consumer exists while a taker waits, with the prefetch count it wants."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from itertools import count

from pamqp import commands
from pamqp.base import Frame

from mainspring.core.model.base.instant import SECOND, Micros
from mainspring.core.model.cluster.hints import Hint
from mainspring.integrations.rabbitmq import wire
from mainspring.integrations.rabbitmq.channel import Channel
from mainspring.integrations.rabbitmq.errors import AmqpError

#: How long a hint without a waiting taker is kept for the next one before it is returned to the broker.
_KEPT: Micros = SECOND
_MAX_PREFETCH = 65_535


class Consumer:
    """A consumer on its own channel.

    When the channel closes, the broker delivers all unacknowledged hints to others.
    """

    def __init__(
        self, channel: Channel, read: Callable[[bytes], Hint | None], now: Callable[[], Micros], lease: Micros
    ) -> None:
        #: The broker ended a consumer, because its queue was deleted or moved.
        self.cancelled_by_broker = False
        #: One taker at a time.
        self.lock = asyncio.Lock()
        self._channel = channel
        self._read = read
        self._now = now
        self._lease = lease
        #: Unacknowledged hints in order of arrival, with the time until which they are kept.
        self._open: dict[int, Micros] = {}
        #: Hints that have arrived and are not taken.
        self._ready: dict[int, Hint] = {}
        self._arrived = asyncio.Event()
        self._consumers = count(1)
        channel.on_message = self._message
        channel.on_cancel = self._cancelled
        channel.on_close = self._closed

    @property
    def closed(self) -> bool:
        return self._channel.closed is not None

    def _message(self, tag: int, body: bytes) -> None:
        hint = self._read(body)
        if hint is None:
            self._channel.write(wire.reject_frame(self._channel.number, tag))
            return
        self._open[tag] = self._now() + _KEPT
        self._ready[tag] = hint
        self._arrived.set()

    def _cancelled(self, consumer: str) -> None:
        self.cancelled_by_broker = True
        self._arrived.set()

    def _closed(self, error: AmqpError) -> None:
        self._open.clear()
        self._ready.clear()
        self._arrived.set()

    def take_ready(self, limit: int) -> list[tuple[int, Hint]]:
        """Return the most urgent available hints."""
        if not self._ready:
            return []
        best = sorted(self._ready.items(), key=lambda item: item[1].rank)[:limit]
        until = self._now() + self._lease
        for tag, _ in best:
            del self._ready[tag]
            self._open[tag] = until
        return best

    async def fetch(self, wanted: Sequence[tuple[str, int]], wait: Micros | None, patience: Micros) -> None:
        """Consume up to the wanted counts until a hint arrives, for at most ``wait``. None: only available hints."""
        channel = self._channel
        self._arrived.clear()
        self.cancelled_by_broker = False
        consumers = [str(next(self._consumers)) for _ in wanted]
        ended: list[asyncio.Future[Frame]] = []
        try:
            asked: list[asyncio.Future[Frame]] = []
            for consumer, (name, credit) in zip(consumers, wanted, strict=True):
                asked.append(channel.ask(commands.Basic.Qos(prefetch_count=min(credit, _MAX_PREFETCH))))
                asked.append(channel.ask(commands.Basic.Consume(queue=name, consumer_tag=consumer)))
            await self._answers(asked, patience)
            if wait is not None and not self._ready:
                await self._wait(wait)
        finally:
            if not self.closed:
                ended = self._end(consumers, answered=wait is None)
        # Hints that were sent earlier arrive before these answers.
        await self._answers(ended, patience)
        if channel.closed is not None:
            raise channel.closed

    async def _answers(self, asked: Sequence[asyncio.Future[Frame]], patience: Micros) -> None:
        async with asyncio.timeout(patience / SECOND):
            for answer in asked:
                await answer

    async def _wait(self, wait: Micros) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(wait / SECOND):
                await self._arrived.wait()

    def _end(self, consumers: Sequence[str], *, answered: bool) -> list[asyncio.Future[Frame]]:
        if answered:
            return [self._channel.ask(commands.Basic.Cancel(consumer_tag=consumer)) for consumer in consumers]
        for consumer in consumers:
            self._channel.send(commands.Basic.Cancel(consumer_tag=consumer, nowait=True))
        return []

    def done(self, tags: Collection[int]) -> None:
        """Acknowledge hints. Hints that were already returned to the broker are ignored."""
        left = self._open.keys() & tags
        number, frames, last = self._channel.number, [], 0
        for tag in self._open:
            if tag not in left:
                break
            last = tag
        if last:
            # Acknowledge the oldest hints with one frame.
            frames.append(wire.ack_frame(number, last, multiple=True))
        frames += [wire.ack_frame(number, tag, multiple=False) for tag in left if tag > last]
        for tag in left:
            del self._open[tag]
        if frames:
            self._channel.write(b"".join(frames))

    def return_expired(self) -> None:
        """Return hints that were kept too long to the broker."""
        now, number = self._now(), self._channel.number
        over = [tag for tag, until in self._open.items() if until <= now]
        for tag in over:
            del self._open[tag]
            self._ready.pop(tag, None)
        if over:
            self._channel.write(b"".join([wire.nack_frame(number, tag) for tag in over]))
