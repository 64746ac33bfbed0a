"""Wake-ups by LISTEN and NOTIFY, coalesced per process; on a quiet system the submit itself notifies."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress

import asyncpg

from mainspring.core.model.base.instant import SECOND, Micros
from mainspring.core.ports.clock import Clock
from mainspring.core.runtime.local_wakeups import LocalWakeup, LocalWakeups
from mainspring.core.runtime.log import get_logger
from mainspring.core.runtime.tasks import cancel_and_wait
from mainspring.stores.postgres.servers import UNREACHABLE, get_servers

_log = get_logger("mainspring.wakeups")

#: NOTIFY locks the whole database at commit, so one process sends it at most this often.
_PAUSE = SECOND // 100
#: The separator of the topics in a message, and the longest list of topics in one message.
_SEPARATOR, _LONGEST = "\n", 7_000

#: Seconds between checks whether the listener's server is still the primary.
_LOOK_AT_SERVERS = 1


class PostgresWakeups:
    """Notifies every process on the same store.

    Behind a transaction pooler no notification arrives. That is logged once, and processes poll.
    """

    def __init__(self, dsn: str, clock: Clock, schema: str = "mainspring", local: LocalWakeups | None = None) -> None:
        """``local``: wake-ups of this process to use, if other components share them."""
        self._servers = get_servers(dsn)
        self._clock = clock
        self._channel = f"{schema}_wakeups"
        self._local = LocalWakeups() if local is None else local
        #: Whether the notifier is connected, so that notifications reach other processes.
        self.reaches_others = False
        self._waiting: set[str] = set()
        #: When this process sent its last message, and when it received the last message of another process.
        self._sent_at: Micros = -_PAUSE
        self._received_at: Micros = -_PAUSE
        #: Topics that the last commit has notified already.
        self._sent_along: set[str] = set()
        self._more = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._me = f"{random.getrandbits(48):012x}"
        self._received_own = asyncio.Event()
        self._has_warned = False

    async def open(self) -> None:
        self._tasks = [asyncio.create_task(self._keep(self._listen), name="wakeups-listen")]
        self._tasks.append(asyncio.create_task(self._keep(self._notify), name="wakeups-notify"))

    async def close(self) -> None:
        await cancel_and_wait(*self._tasks)
        self._tasks = []
        await self._local.close()

    def notify(self, topics: Collection[str]) -> None:
        self._local.notify(topics)
        unsent = set(topics) - self._sent_along
        self._sent_along = set()
        if unsent:
            self._waiting |= unsent
            self._more.set()

    def take_along(self, topics: Collection[str]) -> tuple[str, str] | None:
        """Return channel and message for a transaction that makes work: its commit notifies, without a second commit.

        None if any process sent a message a moment ago: commits that notify wait for each other, so under load one
        message covers many.
        """
        now = self._clock.monotonic()
        if self._waiting or now - max(self._sent_at, self._received_at) < _PAUSE:
            return None
        self._sent_at = now
        return self._channel, self._message(topics)

    def has_notified(self, topics: Collection[str]) -> bool:
        """Whether the last commit has notified all of these topics."""
        return self._sent_along.issuperset(topics)

    def was_taken_along(self, topics: Collection[str]) -> None:
        """Note that the transaction of ``take_along`` has committed.

        The notification of the same topics that follows at once only needs to reach this process.
        """
        self._sent_along = set(topics)

    def listen(self, topics: Collection[str]) -> LocalWakeup:
        return self._local.listen(topics)

    async def _keep(self, work: Callable[[], Awaitable[None]]) -> None:
        """Repeat the work forever, over connections that come and go."""
        while True:
            try:
                await work()
            except UNREACHABLE as error:
                _log.debug("wakeup connection lost", error=str(error))
                await self._clock.sleep(SECOND // 2)

    async def _connect(self) -> "asyncpg.Connection[asyncpg.Record]":
        # No prepared statements: a pooler may be in between.
        settings = {"application_name": "mainspring wakeups"}
        return await self._servers.connect(timeout=5, statement_cache_size=0, server_settings=settings)

    async def _listen(self) -> None:
        connection = await self._connect()
        generation = self._servers.generation
        gone = asyncio.Event()
        connection.add_termination_listener(lambda _: gone.set())
        try:
            if await self._servers.is_pooled(connection):
                # It would listen on a connection that serves another client the next moment.
                connection.terminate()
                self._warn_of_polling()
                await asyncio.Event().wait()
            await connection.add_listener(self._channel, self._receive)
            # Notifications may have been missed while nothing listened: check everything once.
            self._local.notify_all()
            self._received_own.clear()
            await connection.execute("SELECT pg_notify($1, $2)", self._channel, f"probe {self._me}")
            try:
                async with asyncio.timeout(5):
                    await self._received_own.wait()
            except TimeoutError:
                self._warn_of_polling()
            while not gone.is_set() and generation == self._servers.generation:
                # This server may be an old primary that was left up, while all others use the promoted one.
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_AT_SERVERS):
                        await gone.wait()
        finally:
            connection.terminate()

    def _warn_of_polling(self) -> None:
        if not self._has_warned:
            _log.warning("no notifications arrive: polling", advice="a transaction pooler may be in between")
        self._has_warned = True

    def _receive(self, _connection: object, _pid: object, _channel: object, message: object) -> None:
        sender, _, topics = str(message).partition(" ")
        if sender == "probe":
            if topics == self._me:
                self._received_own.set()
        elif sender != self._me:
            self._received_at = self._clock.monotonic()
            self._local.notify(topics.split(_SEPARATOR))

    async def _notify(self) -> None:
        connection = await self._connect()
        try:
            self.reaches_others = True
            while True:
                await self._more.wait()
                left = self._sent_at + _PAUSE - self._clock.monotonic()
                if left > 0:
                    await self._clock.sleep(left)
                self._more.clear()
                topics, self._waiting = self._waiting, set()
                self._sent_at = self._clock.monotonic()
                await connection.execute("SELECT pg_notify($1, $2)", self._channel, self._message(topics))
        finally:
            self.reaches_others = False
            connection.terminate()

    def _message(self, topics: Collection[str]) -> str:
        return f"{self._me} {_SEPARATOR.join(sorted(topics))[:_LONGEST]}"
