"""Finds a node of the broker that answers, and keeps the connection to it."""

import asyncio
import ssl
from random import Random

from mainspring.core.model.base.instant import SECOND, Micros
from mainspring.core.ports.clock import Clock
from mainspring.integrations.rabbitmq.address import RabbitMqAddress
from mainspring.integrations.rabbitmq.connection import Connection, connect
from mainspring.integrations.rabbitmq.errors import AmqpError, ConnectionLost, ConnectionRejected
from mainspring.integrations.tls import build_tls_context


class Client:
    """A single connection that is opened on use. After a loss the next node is tried first."""

    def __init__(self, broker: RabbitMqAddress, clock: Clock, patience: Micros) -> None:
        self._broker = broker
        self._clock = clock
        self._patience = patience
        self._nodes = list(broker.nodes)
        # Distribute the processes over the nodes of a cluster.
        Random().shuffle(self._nodes)
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._context: ssl.SSLContext | None = None

    async def connection(self) -> Connection:
        """Return the connection. Concurrent callers wait for the same attempt to connect."""
        if self._connection is not None and self._connection.lost is None:
            return self._connection
        async with self._connecting:
            if self._connection is None or self._connection.lost is not None:
                self._connection = await self._connect()
            return self._connection

    async def _connect(self) -> Connection:
        problem: Exception = ConnectionLost("no node is known")
        for _ in range(len(self._nodes)):
            node = self._nodes[0]
            self._nodes.append(self._nodes.pop(0))
            try:
                async with asyncio.timeout(self._patience / SECOND):
                    return await connect(self._clock, self._broker, node, self._tls())
            except (AmqpError, OSError, TimeoutError) as error:
                # A rejection by one node explains more than a failed connection to another.
                problem = problem if isinstance(problem, ConnectionRejected) else error
        raise problem

    def _tls(self) -> ssl.SSLContext | None:
        if self._context is None:
            self._context = build_tls_context(self._broker.tls, "dispatch.broker")
        return self._context

    def drop(self, why: str) -> None:
        """Drop a connection that does not answer, so that the next caller opens another."""
        if self._connection is not None:
            self._connection.drop(why)

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
