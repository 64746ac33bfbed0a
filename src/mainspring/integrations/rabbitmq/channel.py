"""An AMQP channel: requests that are answered in order, and messages that arrive in between."""

import asyncio
from collections import deque
from collections.abc import Callable

from pamqp import commands
from pamqp.base import Frame

from mainspring.integrations.rabbitmq import wire
from mainspring.integrations.rabbitmq.errors import AmqpError, ChannelClosed


class _IncomingMessage:
    """A message whose header, or a part of its body, has not arrived yet."""

    __slots__ = ("delivery", "kept", "key", "left", "pieces")

    def __init__(self, delivery: int, key: str) -> None:
        #: 0: a returned message of ours.
        self.delivery = delivery
        self.key = key
        self.left = -1
        self.kept = True
        self.pieces: list[bytes] = []


class Channel:
    """A channel, created by ``Connection.channel``. Its user sets the callbacks, which must not block."""

    def __init__(self, number: int, write: Callable[[bytes], None]) -> None:
        self.number = number
        self.on_message: Callable[[int, bytes], None] = lambda tag, body: None
        #: Called with the routing key of a message that could not be routed.
        self.on_return: Callable[[str], None] = lambda key: None
        self.on_confirm: Callable[[int, bool, bool], None] = lambda tag, multiple, good: None
        #: Called if the broker ended a consumer, for example because its queue was deleted.
        self.on_cancel: Callable[[str], None] = lambda consumer: None
        self.on_close: Callable[[AmqpError], None] = lambda error: None
        self.closed: AmqpError | None = None
        self._write = write
        self._asked: deque[asyncio.Future[Frame]] = deque()
        self._coming: _IncomingMessage | None = None

    def ask(self, method: Frame) -> asyncio.Future[Frame]:
        """Send a request and return its future answer.

        Several may be pending, because the broker answers in order.
        """
        self._check()
        future: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._asked.append(future)
        self._write(wire.method_frame(self.number, method))
        return future

    def send(self, method: Frame) -> None:
        """Send a method that has no answer."""
        self._check()
        self._write(wire.method_frame(self.number, method))

    def write(self, frames: bytes) -> None:
        self._check()
        self._write(frames)

    def _check(self) -> None:
        if self.closed is not None:
            raise self.closed

    def received(self, kind: int, payload: bytes) -> None:
        coming = self._coming
        if kind == wire.METHOD:
            self._method(payload)
        elif coming is None:
            return
        elif kind == wire.HEADER:
            coming.left = wire.read_size(payload)
            # Our messages are smaller. A larger one is handled as if it were empty.
            coming.kept = coming.left <= wire.MOST_KEPT
            if coming.left == 0:
                self._came(coming)
        elif kind == wire.BODY:
            coming.left -= len(payload)
            if coming.kept:
                coming.pieces.append(payload)
            if coming.left <= 0:
                self._came(coming)

    def _came(self, coming: _IncomingMessage) -> None:
        self._coming = None
        if coming.delivery:
            pieces = coming.pieces
            self.on_message(coming.delivery, pieces[0] if len(pieces) == 1 else b"".join(pieces))
        else:
            self.on_return(coming.key)

    def _method(self, payload: bytes) -> None:
        index = wire.read_index(payload)
        if index == wire.DELIVER:
            self._coming = _IncomingMessage(wire.read_deliver(payload), "")
        elif index in (wire.ACK, wire.NACK):
            self.on_confirm(*wire.read_confirm(payload), index == wire.ACK)
        else:
            self._seldom(wire.read_method(payload))

    def _seldom(self, method: Frame) -> None:
        match method:
            case commands.Basic.Return():
                self._coming = _IncomingMessage(0, method.routing_key or "")
            case commands.Basic.Cancel():
                self.on_cancel(method.consumer_tag or "")
            case commands.Channel.Close():
                self._write(wire.method_frame(self.number, commands.Channel.CloseOk()))
                self.fail(ChannelClosed(method.reply_code or 0, method.reply_text))
            case commands.Channel.Flow():
                self._write(wire.method_frame(self.number, commands.Channel.FlowOk(active=method.active)))
            case _:
                future = self._asked.popleft()
                if not future.done():
                    future.set_result(method)

    def fail(self, error: AmqpError) -> None:
        if self.closed is not None:
            return
        self.closed = error
        asked, self._asked = self._asked, deque()
        for future in asked:
            if not future.done():
                future.set_exception(error)
                # Mark the exception as retrieved, because the caller may have been cancelled.
                future.exception()
        self.on_close(error)
