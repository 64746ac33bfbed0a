"""Finds a node of the broker that answers, and stays with it while it does."""

import asyncio
import ssl
from random import Random

from mainspring.core.model.base.instant import SECOND, Micros
from mainspring.core.ports.clock import Clock
from mainspring.integrations.rabbitmq.address import Broker
from mainspring.integrations.rabbitmq.connection import Connection, connect
from mainspring.integrations.rabbitmq.errors import AmqpError, ConnectionLost, Refused
from mainspring.integrations.tls import context_of


class Client:
    """One connection at a time, made when somebody needs it. After a loss the next node is tried first."""

    def __init__(self, broker: Broker, clock: Clock, patience: Micros) -> None:
        self._broker = broker
        self._clock = clock
        self._patience = patience
        self._nodes = list(broker.nodes)
        # Not all processes of a cluster on its first node.
        Random().shuffle(self._nodes)
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._context: ssl.SSLContext | None = None

    async def connection(self) -> Connection:
        """Whoever comes while one is being made waits for that."""
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
                # What one node refuses is worth more than that another one is not there.
                problem = problem if isinstance(problem, Refused) else error
        raise problem

    def _tls(self) -> ssl.SSLContext | None:
        if self._context is None:
            self._context = context_of(self._broker.tls, "dispatch.engine")
        return self._context

    def drop(self, why: str) -> None:
        """It does not answer: the next who needs one gets another."""
        if self._connection is not None:
            self._connection.drop(why)

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
