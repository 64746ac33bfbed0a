"""Wake-ups by LISTEN and NOTIFY, coalesced: one notifier a process, and on a quiet system the submit itself."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress

import asyncpg

from mainspring.core.model.base.instant import SECOND, Micros
from mainspring.core.ports.clock import Clock
from mainspring.core.runtime.local_wakeups import LocalBell, LocalWakeups
from mainspring.core.runtime.log import get_logger
from mainspring.core.runtime.tasks import cancel_and_wait
from mainspring.stores.postgres.servers import UNREACHABLE, servers_of

_log = get_logger("mainspring.wakeups")

#: NOTIFY takes a lock over the whole database at commit: this is the most often that one process does it.
_PAUSE = SECOND // 100
#: What several topics are joined with in one message, and how long a message may be.
_SEPARATOR, _LONGEST = "\n", 7_000

#: How many seconds a listener may stay with a server that is not the primary any more.
_LOOK_AT_SERVERS = 1


class PostgresWakeups:
    """Reaches every process on the same store. Behind a transaction pooler nothing arrives: it says so, once."""

    def __init__(self, dsn: str, clock: Clock, schema: str = "mainspring", local: LocalWakeups | None = None) -> None:
        """``local``: where rings are heard in this process, if others are heard there, too."""
        self._servers = servers_of(dsn)
        self._clock = clock
        self._channel = f"{schema}_wakeups"
        self._local = LocalWakeups() if local is None else local
        #: Somebody hears what is rung here.
        self.reaches_others = False
        self._waiting: set[str] = set()
        #: When this process sent its last message, and when it heard the last one of another.
        self._sent_at: Micros = -_PAUSE
        self._heard_at: Micros = -_PAUSE
        #: What the last commit has told already.
        self._told: set[str] = set()
        self._more = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._me = f"{random.getrandbits(48):012x}"
        self._heard_myself = asyncio.Event()
        self._told_of_polling = False

    async def open(self) -> None:
        self._tasks = [asyncio.create_task(self._keep(self._listen), name="wakeups-listen")]
        self._tasks.append(asyncio.create_task(self._keep(self._notify), name="wakeups-notify"))

    async def close(self) -> None:
        await cancel_and_wait(*self._tasks)
        self._tasks = []
        await self._local.close()

    def ring(self, topics: Collection[str]) -> None:
        self._local.ring(topics)
        untold = set(topics) - self._told
        self._told = set()
        if untold:
            self._waiting |= untold
            self._more.set()

    def take_along(self, topics: Collection[str]) -> tuple[str, str] | None:
        """Channel and message for a transaction that is about to make work: its commit rings, and needs no second one.

        None while anybody sent something a moment ago: commits that notify wait for each other, and under load one
        message tells of many.
        """
        now = self._clock.monotonic()
        if self._waiting or now - max(self._sent_at, self._heard_at) < _PAUSE:
            return None
        self._sent_at = now
        return self._channel, self._message(topics)

    def has_told(self, topics: Collection[str]) -> bool:
        """Whether the last commit has told all of this."""
        return self._told.issuperset(topics)

    def was_taken_along(self, topics: Collection[str]) -> None:
        """That transaction has committed: the ring that follows at once need only be heard here."""
        self._told = set(topics)

    def listen(self, topics: Collection[str]) -> LocalBell:
        return self._local.listen(topics)

    async def _keep(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do something for ever, over connections that come and go."""
        while True:
            try:
                await work()
            except UNREACHABLE as error:
                _log.debug("wake-ups interrupted", error=str(error))
                await self._clock.sleep(SECOND // 2)

    async def _connect(self) -> "asyncpg.Connection[asyncpg.Record]":
        # Without prepared statements: a pooler may be in between.
        settings = {"application_name": "mainspring wakeups"}
        return await self._servers.connect(timeout=5, statement_cache_size=0, server_settings=settings)

    async def _listen(self) -> None:
        connection = await self._connect()
        generation = self._servers.generation
        gone = asyncio.Event()
        connection.add_termination_listener(lambda _: gone.set())
        try:
            if await self._servers.is_pooled(connection):
                # It would listen on a connection that is somebody else's the next moment.
                connection.terminate()
                self._tell_of_polling()
                await asyncio.Event().wait()
            await connection.add_listener(self._channel, self._heard)
            # Whatever rang while nobody listened: look once.
            self._local.ring_all()
            self._heard_myself.clear()
            await connection.execute("SELECT pg_notify($1, $2)", self._channel, f"probe {self._me}")
            try:
                async with asyncio.timeout(5):
                    await self._heard_myself.wait()
            except TimeoutError:
                self._tell_of_polling()
            while not gone.is_set() and generation == self._servers.generation:
                # Ours may be a primary that was left up, while everybody else talks to the one that was promoted.
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_AT_SERVERS):
                        await gone.wait()
        finally:
            connection.terminate()

    def _tell_of_polling(self) -> None:
        if not self._told_of_polling:
            _log.warning("no notification arrives (a transaction pooler in between?): polling alone from here on")
        self._told_of_polling = True

    def _heard(self, _connection: object, _pid: object, _channel: object, message: object) -> None:
        sender, _, topics = str(message).partition(" ")
        if sender == "probe":
            if topics == self._me:
                self._heard_myself.set()
        elif sender != self._me:
            self._heard_at = self._clock.monotonic()
            self._local.ring(topics.split(_SEPARATOR))

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
