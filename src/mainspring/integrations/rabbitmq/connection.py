"""A connection to one node of a broker: handshake, heartbeats and channels."""

import asyncio
import ssl
from itertools import count
from typing import Any, TypeVar, cast

from pamqp import commands
from pamqp.base import Frame
from pamqp.exceptions import PAMQPException

from mainspring.core.model.base.instant import SECOND
from mainspring.core.ports.clock import Clock
from mainspring.integrations.rabbitmq import wire
from mainspring.integrations.rabbitmq.address import RabbitMqAddress
from mainspring.integrations.rabbitmq.channel import Channel
from mainspring.integrations.rabbitmq.errors import AmqpError, ConnectionLost, ConnectionRejected

Expected = TypeVar("Expected", bound=Frame)

#: In seconds, as brokers count: a side that receives nothing for two of these considers the other one dead.
_HEARTBEAT = 10
_ABOUT_US = {
    "product": "Mainspring",
    "capabilities": {
        # The broker then reports a wrong password, a deleted queue, and that it accepts no messages for now.
        "authentication_failure_close": True,
        "consumer_cancel_notify": True,
        "connection.blocked": True,
        "basic.nack": True,
        "publisher_confirms": True,
    },
}


class Connection(asyncio.Protocol):
    """A connection, created by ``connect``."""

    def __init__(self, clock: Clock) -> None:
        #: The version that the broker reports.
        self.version = ""
        #: Why the broker accepts no messages; empty if it does.
        self.blocked = ""
        self.lost: ConnectionLost | None = None
        self._clock = clock
        self._reader = wire.FrameReader()
        self._transport: asyncio.Transport | None = None
        self._channels: dict[int, Channel] = {}
        #: The methods on channel 0 during the handshake; None after it.
        self._greeting: asyncio.Queue[Frame | None] | None = asyncio.Queue()
        self._heard = self._said = False
        self._beating: asyncio.Task[None] | None = None

    async def greet(self, broker: RabbitMqAddress) -> None:
        self._write(wire.PROTOCOL)
        start = await self._answer(commands.Connection.Start)
        self.version = str((start.server_properties or {}).get("version", ""))
        properties = cast("Any", _ABOUT_US)
        response = f"\0{broker.user}\0{broker.password}"
        self._say(commands.Connection.StartOk(client_properties=properties, mechanism="PLAIN", response=response))
        tune = await self._answer(commands.Connection.Tune)
        beat = min(tune.heartbeat or _HEARTBEAT, _HEARTBEAT)
        frame_max = min(tune.frame_max or wire.FRAME_MAX, wire.FRAME_MAX)
        self._say(commands.Connection.TuneOk(tune.channel_max, frame_max, beat))
        self._say(commands.Connection.Open(virtual_host=broker.vhost))
        await self._answer(commands.Connection.OpenOk)
        self._greeting = None
        self._beating = asyncio.create_task(self._beat(beat), name="amqp-heartbeat")

    async def channel(self) -> Channel:
        self._check()
        number = next(number for number in count(1) if number not in self._channels)
        channel = self._channels[number] = Channel(number, self._write)
        await channel.ask(commands.Channel.Open())
        return channel

    async def close(self) -> None:
        """Close the connection properly. The broker delivers unacknowledged messages to other consumers."""
        if self.lost is None:
            self._say(commands.Connection.Close(reply_code=200, reply_text="", class_id=0, method_id=0))
            if self._transport is not None:
                self._transport.close()
        self._end(ConnectionLost("the connection is closed"))

    def drop(self, why: str) -> None:
        """Abort the connection without a closing handshake, because the broker does not respond."""
        if self._transport is not None:
            self._transport.abort()
        self._end(ConnectionLost(why))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._heard = True
        try:
            for kind, number, payload in self._reader.feed(data):
                if number:
                    channel = self._channels.get(number)
                    if channel is not None:
                        channel.received(kind, payload)
                        if channel.closed is not None:
                            self._channels.pop(number, None)
                elif kind == wire.METHOD:
                    self._control(wire.read_method(payload))
        except (PAMQPException, AmqpError, ValueError, LookupError) as error:
            self.drop(str(error) or "what came is not AMQP")

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(ConnectionLost(str(exc or "the connection was closed")))

    def _control(self, method: Frame) -> None:
        match method:
            case commands.Connection.Close():
                self._say(commands.Connection.CloseOk())
                refused = self._greeting is not None
                self._end(ConnectionRejected(method.reply_text) if refused else ConnectionLost(method.reply_text))
                if self._transport is not None:
                    self._transport.close()
            case commands.Connection.Blocked():
                self.blocked = method.reason or "it is short of something"
            case commands.Connection.Unblocked():
                self.blocked = ""
            case _:
                if self._greeting is not None:
                    self._greeting.put_nowait(method)

    async def _answer(self, kind: type[Expected]) -> Expected:
        greeting = self._greeting
        method = None if greeting is None else await greeting.get()
        self._check()
        if not isinstance(method, kind):
            raise ConnectionLost(f"expected {kind.name}, not what came")
        return method

    async def _beat(self, seconds: int) -> None:
        silent = 0
        while self.lost is None:
            await self._clock.sleep(seconds * SECOND // 2)
            silent = 0 if self._heard else silent + 1
            if silent >= 4:
                self.drop("it does not answer any more")
            elif not self._said:
                self._write(wire.heartbeat_frame())
            self._heard = self._said = False

    def _say(self, method: Frame) -> None:
        self._write(wire.method_frame(0, method))

    def _write(self, frames: bytes) -> None:
        self._said = True
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frames)

    def _check(self) -> None:
        if self.lost is not None:
            raise self.lost

    def _end(self, error: ConnectionLost) -> None:
        if self.lost is not None:
            return
        self.lost = error
        if self._greeting is not None:
            self._greeting.put_nowait(None)
        if self._beating is not None and self._beating is not asyncio.current_task():
            self._beating.cancel()
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.fail(error)


async def connect(
    clock: Clock, broker: RabbitMqAddress, node: tuple[str, int], context: ssl.SSLContext | None
) -> Connection:
    host, port = node
    name = host if context is not None else None
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(
        lambda: Connection(clock), host, port, ssl=context, server_hostname=name
    )
    try:
        await connection.greet(broker)
    except BaseException:
        connection.drop("the greeting was not finished")
        raise
    return connection
