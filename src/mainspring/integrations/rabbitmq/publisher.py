"""Publishes batches of messages, which the broker confirms."""

import asyncio
from collections.abc import Sequence

import msgspec
from pamqp import commands

from mainspring.integrations.rabbitmq import wire
from mainspring.integrations.rabbitmq.channel import Channel
from mainspring.integrations.rabbitmq.errors import AmqpError


class Messages(msgspec.Struct, frozen=True):
    """Messages with the same exchange, routing key and properties."""

    exchange: str
    key: str
    properties: commands.Basic.Properties
    bodies: Sequence[bytes]


class _Batch:
    __slots__ = ("answered", "left", "refused", "unroutable")

    def __init__(self, left: int) -> None:
        self.left = left
        self.refused = 0
        self.unroutable: set[str] = set()
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class MailRejected(AmqpError):
    """The broker refused some messages."""


class Publisher:
    """A channel in confirm mode. Batches may overlap."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._sent = 0
        #: In the order in which they were sent.
        self._open: dict[int, _Batch] = {}
        channel.on_confirm = self._confirmed
        channel.on_return = self._returned
        channel.on_close = self._closed

    @property
    def closed(self) -> bool:
        return self._channel.closed is not None

    async def start(self) -> None:
        await self._channel.ask(commands.Confirm.Select())

    async def publish(self, messages: Sequence[Messages]) -> set[str]:
        """Publish messages, and return when the broker has all of them.

        Returns the routing keys of unroutable messages.
        """
        batch = _Batch(sum(len(some.bodies) for some in messages))
        if not batch.left:
            return set()
        number = self._channel.number
        frames: list[bytes] = []
        for some in messages:
            method = commands.Basic.Publish(exchange=some.exchange, routing_key=some.key, mandatory=True)
            to, size, before, after = wire.method_frame(number, method), -1, b"", b""
            for body in some.bodies:
                if len(body) != size:
                    size = len(body)
                    before, after = wire.build_body_frame(number, size)
                    before = to + wire.header_frame(number, size, some.properties) + before
                frames += (before, body, after)
        self._channel.write(b"".join(frames))
        for tag in range(self._sent + 1, self._sent + batch.left + 1):
            self._open[tag] = batch
        self._sent += batch.left
        await batch.answered
        if batch.refused:
            raise MailRejected(f"{batch.refused} messages were not taken")
        return batch.unroutable

    def _confirmed(self, tag: int, multiple: bool, good: bool) -> None:
        if multiple:
            tags = []
            for sent in self._open:
                if sent > tag:
                    break
                tags.append(sent)
        else:
            tags = [tag]
        for sent in tags:
            batch = self._open.pop(sent, None)
            if batch is not None:
                batch.left -= 1
                batch.refused += not good
                if not batch.left and not batch.answered.done():
                    batch.answered.set_result(None)

    def _returned(self, key: str) -> None:
        # A return arrives before its confirm, so its batch is still open. Marking other open batches is harmless.
        for batch in set(self._open.values()):
            batch.unroutable.add(key)

    def _closed(self, error: AmqpError) -> None:
        batches, self._open = set(self._open.values()), {}
        for batch in batches:
            if not batch.answered.done():
                batch.answered.set_exception(error)
                batch.answered.exception()
