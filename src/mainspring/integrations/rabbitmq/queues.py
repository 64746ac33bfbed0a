"""The RabbitMQ queues of a Mainspring queue: their names, declarations and message counts.

classic   mainspring.<store>.queue.<queue>         one, with priorities 0 to 9
quorum    mainspring.<store>.p1.<queue>, p2, p3    one for each band of priorities, which quorum queues lack
template  such as <queue>.priority.<1 to 10>       one for each priority if it has {priority}, of either kind
dead      mainspring.<store>.dead                  an exchange, and a queue of that name that is bound to it
"""

import asyncio
import re
from collections.abc import Sequence
from hashlib import blake2b

from pamqp import commands
from pamqp.base import Frame

from mainspring.core.model.cluster.hints import Hint
from mainspring.core.model.runs.rank import DEFAULT_PRIORITY, IDLE
from mainspring.core.runtime.log import get_logger
from mainspring.integrations.rabbitmq.address import RabbitMqAddress
from mainspring.integrations.rabbitmq.channel import Channel
from mainspring.integrations.rabbitmq.client import Client
from mainspring.integrations.rabbitmq.connection import Connection
from mainspring.integrations.rabbitmq.errors import ACCESS_REFUSED, NOT_FOUND, PRECONDITION_FAILED, ChannelClosed

_log = get_logger("mainspring.rabbitmq")

#: RabbitMQ's priorities rise to 9; ours range from 1, the most urgent, to 10.
_MAX_PRIORITY = 9
#: The last priority of each band.
_BANDS = (3, 6, IDLE)
#: A hint that was returned this often is moved to the dead letters; the sweeper publishes a new one.
_DELIVERIES = 10
#: The oldest dead letters are dropped beyond this number.
_DEAD_KEPT = 100_000
#: Names that are used unchanged; pamqp only allows ASCII, and at most 127 bytes.
_PLAIN = re.compile(r"[A-Za-z0-9_.:@-]{1,64}")


class QueueDeclarer:
    """Declares queues.

    Its knowledge is valid for one connection. Requests run one at a time: an error closes the channel.
    """

    def __init__(self, client: Client, broker: RabbitMqAddress, namespace: str) -> None:
        #: Queues with other properties than declared, with the broker's message about each.
        self.odd: dict[str, str] = {}
        self.dead = f"mainspring.{namespace}.dead"
        self._client = client
        self._kind = broker.kind
        self._broker = broker
        self._namespace = namespace
        self._prefix = f"mainspring.{namespace}"
        self._connection: Connection | None = None
        self._channel: Channel | None = None
        self._known: set[str] = set()
        self._asking = asyncio.Lock()

    def names(self, queue: str, priority: int | None = None) -> tuple[str, ...]:
        """Return the names of the broker's queues, the most urgent first.

        ``priority``: only the queue of this priority.
        """
        plain = queue if _PLAIN.fullmatch(queue) else "#" + blake2b(queue.encode(), digest_size=16).hexdigest()
        if template := self._broker.queues:
            filled = template.replace("{store}", self._namespace).replace("{queue}", plain)
            priorities = range(1, IDLE + 1) if priority is None else (priority,)
            return tuple(dict.fromkeys(filled.replace("{priority}", str(one)) for one in priorities))
        if self._kind == "classic":
            return (f"{self._prefix}.queue.{plain}",)
        return tuple(f"{self._prefix}.p{band}.{plain}" for band in range(1, len(_BANDS) + 1))

    def find(self, hint: Hint) -> tuple[str, int]:
        """Return the queue and the priority for a hint."""
        # A hint without a priority gets the default.
        priority = hint.priority or DEFAULT_PRIORITY
        if self._broker.by_priority:
            return self.names(hint.queue, priority)[0], 0
        names = self.names(hint.queue)
        if len(names) == 1:
            return names[0], min(max(IDLE - priority, 0), _MAX_PRIORITY)
        return next(name for name, last in zip(names, _BANDS, strict=True) if priority <= last or last == IDLE), 0

    async def ensure(self, names: Sequence[str]) -> None:
        """Declare the queues that are not yet declared on the current connection."""
        connection = await self._client.connection()
        if connection is self._connection and self._known.issuperset((self.dead, *names)):
            return
        async with self._asking:
            await self._renew()
            if self.dead not in self._known:
                await self._make(commands.Exchange.Declare(exchange=self.dead, exchange_type="fanout", durable=True))
                await self._make_queue(self.dead, {"x-max-length": _DEAD_KEPT})
                await self._ask(commands.Queue.Bind(queue=self.dead, exchange=self.dead))
                self._known.add(self.dead)
            for name in names:
                if name not in self._known:
                    await self._make_queue(name, self._arguments())
                    self._known.add(name)

    def forget(self, names: Sequence[str]) -> None:
        """Forget queues that seem to have been deleted."""
        self._known.difference_update(names)

    async def counts(self, names: Sequence[str]) -> list[int | None]:
        """Return the number of ready messages of each queue, or None if the queue does not exist."""
        async with self._asking:
            await self._renew()
            try:
                asked = [self._open().ask(commands.Queue.Declare(queue=name, passive=True)) for name in names]
                return [_read_count(await answer) for answer in asked]
            except ChannelClosed as error:
                if error.code != NOT_FOUND:
                    raise
            found: list[int | None] = []
            for name in names:
                try:
                    found.append(_read_count(await self._ask(commands.Queue.Declare(queue=name, passive=True))))
                except ChannelClosed as error:
                    if error.code != NOT_FOUND:
                        raise
                    found.append(None)
            return found

    def _arguments(self) -> dict[str, object]:
        if self._kind == "classic":
            ordered = {} if self._broker.by_priority else {"x-max-priority": _MAX_PRIORITY}
            return {**ordered, "x-dead-letter-exchange": self.dead}
        return {"x-delivery-limit": _DELIVERIES, "x-dead-letter-exchange": self.dead}

    async def _make_queue(self, name: str, arguments: dict[str, object]) -> None:
        if self._kind == "quorum":
            arguments = {**arguments, "x-queue-type": "quorum"}
        await self._make(commands.Queue.Declare(queue=name, durable=True, arguments=arguments))  # type: ignore[arg-type]

    async def _make(self, declare: commands.Queue.Declare | commands.Exchange.Declare) -> None:
        """Declare a queue or exchange.

        Use an existing one if it has other properties or may not be declared by this user.
        """
        try:
            await self._ask(declare)
        except ChannelClosed as error:
            if error.code not in (ACCESS_REFUSED, PRECONDITION_FAILED):
                raise
            declare.passive = True
            await self._ask(declare)
            name = declare.queue if isinstance(declare, commands.Queue.Declare) else declare.exchange
            if error.code == PRECONDITION_FAILED:
                self.note(name, error)

    def note(self, name: str, error: ChannelClosed) -> None:
        """Record that a queue or exchange has other properties than declared, and log it once."""
        if name not in self.odd:
            _log.warning("queue has other arguments", name=name, reason=str(error))
        self.odd[name] = str(error)

    async def _renew(self) -> None:
        connection = await self._client.connection()
        if connection is not self._connection:
            self._connection, self._channel = connection, None
            self._known.clear()
        if self._channel is None or self._channel.closed is not None:
            self._channel = await connection.channel()

    def _open(self) -> Channel:
        assert self._channel is not None
        return self._channel

    async def _ask(self, method: Frame) -> Frame:
        await self._renew()
        return await self._open().ask(method)


def _read_count(answer: Frame) -> int:
    assert isinstance(answer, commands.Queue.DeclareOk)
    return answer.message_count or 0
