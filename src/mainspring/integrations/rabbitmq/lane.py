"""Taking from one queue of ours: a consumer that is there while somebody takes, with as much credit as is wanted."""

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

#: What came after its taker had gone waits for the next one for so long, then it goes to others.
_KEPT: Micros = SECOND
_MOST_CREDIT = 65_535


class Lane:
    """On a channel of its own: when that is closed the broker gives all that is open to others."""

    def __init__(
        self, channel: Channel, read: Callable[[bytes], Hint | None], now: Callable[[], Micros], lease: Micros
    ) -> None:
        #: The broker has ended a consumer: its queue was deleted, or moved.
        self.deserted = False
        #: One taker at a time.
        self.lock = asyncio.Lock()
        self._channel = channel
        self._read = read
        self._now = now
        self._lease = lease
        #: What is not acknowledged, in the order it came, and until when it is kept.
        self._open: dict[int, Micros] = {}
        #: What nobody has taken yet.
        self._ready: dict[int, Hint] = {}
        self._came = asyncio.Event()
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
        self._came.set()

    def _cancelled(self, consumer: str) -> None:
        self.deserted = True
        self._came.set()

    def _closed(self, error: AmqpError) -> None:
        self._open.clear()
        self._ready.clear()
        self._came.set()

    def pick(self, limit: int) -> list[tuple[int, Hint]]:
        """The best of what is here, by rank."""
        if not self._ready:
            return []
        best = sorted(self._ready.items(), key=lambda item: item[1].rank)[:limit]
        until = self._now() + self._lease
        for tag, _ in best:
            del self._ready[tag]
            self._open[tag] = until
        return best

    async def fetch(self, wanted: Sequence[tuple[str, int]], wait: Micros | None, patience: Micros) -> None:
        """Consume so many of each queue until something came, for ``wait`` at most. None: only what is there now."""
        channel = self._channel
        self._came.clear()
        self.deserted = False
        consumers = [str(next(self._consumers)) for _ in wanted]
        ended: list[asyncio.Future[Frame]] = []
        try:
            asked: list[asyncio.Future[Frame]] = []
            for consumer, (name, credit) in zip(consumers, wanted, strict=True):
                asked.append(channel.ask(commands.Basic.Qos(prefetch_count=min(credit, _MOST_CREDIT))))
                asked.append(channel.ask(commands.Basic.Consume(queue=name, consumer_tag=consumer)))
            await self._answers(asked, patience)
            if wait is not None and not self._ready:
                await self._wait(wait)
        finally:
            if not self.closed:
                ended = self._end(consumers, answered=wait is None)
        # What was sent before comes before these.
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
                await self._came.wait()

    def _end(self, consumers: Sequence[str], *, answered: bool) -> list[asyncio.Future[Frame]]:
        if answered:
            return [self._channel.ask(commands.Basic.Cancel(consumer_tag=consumer)) for consumer in consumers]
        for consumer in consumers:
            self._channel.send(commands.Basic.Cancel(consumer_tag=consumer, nowait=True))
        return []

    def done(self, tags: Collection[int]) -> None:
        """Those that are not open any more came back to others, and nothing is to be said."""
        left = self._open.keys() & tags
        number, frames, last = self._channel.number, [], 0
        for tag in self._open:
            if tag not in left:
                break
            last = tag
        if last:
            # The oldest ones, all with one word.
            frames.append(wire.ack_frame(number, last, multiple=True))
        frames += [wire.ack_frame(number, tag, multiple=False) for tag in left if tag > last]
        for tag in left:
            del self._open[tag]
        if frames:
            self._channel.write(b"".join(frames))

    def expire(self) -> None:
        """What was kept for too long goes to others."""
        now, number = self._now(), self._channel.number
        over = [tag for tag, until in self._open.items() if until <= now]
        for tag in over:
            del self._open[tag]
            self._ready.pop(tag, None)
        if over:
            self._channel.write(b"".join([wire.nack_frame(number, tag) for tag in over]))
