"""One reader of logs for all who follow one."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Protocol

import msgspec

from mainspring.core.logs.run_logs import RunLogs
from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import SECOND, Micros
from mainspring.core.model.runs.run import ENDED, RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.ports.blobs import BlobsUnavailable
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.storage.catalog import LOG_END, Catalog, LogLine
from mainspring.core.runtime.log import get_logger
from mainspring.core.store import Views
from mainspring.http.schemas.runs import line_out
from mainspring.http.streams.sse import event, keep_alive

_log = get_logger("mainspring.api.logs")

#: How often the store is asked, once for all logs that are followed.
LOOK_EVERY: Micros = SECOND
_QUIET: Micros = 15 * SECOND
#: Lines of one run that are read at once.
_LINES = 500


class TailStore(Catalog, Views, Protocol):
    """The part of the store that is read here."""


class LogReader:
    """Lines of a run, wherever they are: in the store until some time after its end, then where logs are kept."""

    def __init__(self, store: Catalog, kept: RunLogs | None) -> None:
        self._store = store
        self._kept = kept
        #: Seconds after which a read of kept logs fails.
        self.kept_timeout: float = 5

    async def lines(self, run: RunView, after: int, limit: int) -> list[LogLine]:
        # In this order: whoever takes them away from the store puts them there first.
        store = self._store.seen_by(run.tenant)
        found = await store.log(run.id, after, limit)
        if found or self._kept is None or run.state not in ENDED or run.finished_at is None:
            return found
        # All lines of a run leave together: as long as some are there, there are no others elsewhere.
        if after and await store.log(run.id, 0, 1):
            return []
        async with self._in_time():
            return await self._kept.read(run, after, limit)

    async def lines_before(self, run: RunView, before: int, limit: int) -> list[LogLine]:
        """The last ones before a position."""
        store = self._store.seen_by(run.tenant)
        found = await store.log_before(run.id, before, limit)
        if found or self._kept is None or run.state not in ENDED or run.finished_at is None:
            return found
        if before < LOG_END and await store.log(run.id, 0, 1):
            return []
        async with self._in_time():
            return await self._kept.read_before(run, before, limit)

    async def may_be_elsewhere(self, runs: Collection[RunId]) -> set[RunId]:
        """Those of these, which have ended, whose lines are not in the store, or not any more."""
        if self._kept is None or not runs:
            return set()
        return set(runs) - (await self._store.logs_after(dict.fromkeys(runs, 0), 1)).keys()

    async def url(self, run: RunView) -> str | None:
        """Where all of it can be read for some minutes. None: it is in the store, or on a disk."""
        if self._kept is None or run.state not in ENDED or run.finished_at is None:
            return None
        async with self._in_time():
            return await self._kept.url(run)

    async def delete(self, run: RunView) -> None:
        """What is not in the store."""
        if self._kept is not None and run.finished_at is not None:
            async with self._in_time():
                await self._kept.delete([run])

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        """Whoever asks gets an answer, and not the end of what a request may take."""
        try:
            async with asyncio.timeout(self.kept_timeout):
                yield
        except TimeoutError:
            raise BlobsUnavailable(f"where logs are kept did not answer in {self.kept_timeout:g} s") from None


class _Follower:
    __slots__ = ("bell", "ended", "gone", "waiting")

    def __init__(self) -> None:
        #: Messages are shared by all followers of a run, and its log is bounded: so is this.
        self.waiting: deque[tuple[int, bytes]] = deque()
        self.bell = asyncio.Event()
        #: Nothing comes after what waits.
        self.gone = False
        #: Nor here, but there may be more elsewhere, to be read by whoever follows.
        self.ended: RunView | None = None


class _Followed:
    """A run: where its log was read to, and who follows it."""

    __slots__ = ("followers", "position")

    def __init__(self, position: int) -> None:
        self.position = position
        self.followers: dict[_Follower, None] = {}

    def send(self, position: int, message: bytes) -> None:
        for follower in self.followers:
            follower.waiting.append((position, message))
            follower.bell.set()

    def end(self) -> None:
        for follower in self.followers:
            follower.gone = True
            follower.bell.set()

    def leave(self, run: RunView) -> None:
        """To each follower, and to what it takes to read where logs are kept: nobody else waits for that."""
        for follower in self.followers:
            follower.ended = run
            follower.bell.set()


class LogTail:
    """Asks nothing of the store while nobody follows."""

    def __init__(self, store: TailStore, clock: Clock, reader: LogReader) -> None:
        self._store = store
        self._reader = reader
        self._clock = clock
        self._followed: dict[RunId, _Followed] = {}
        self._leaving = False
        self._reading: asyncio.Task[None] | None = None

    def let_go(self) -> None:
        """End all streams, also those that begin after this."""
        self._leaving = True
        for followed in self._followed.values():
            followed.end()

    async def follow(self, run: RunView, after: int) -> AsyncIterator[bytes]:
        """What a run prints after a position, until it has ended."""
        follower = _Follower()
        try:
            while not self._leaving:
                try:
                    lines = await self._reader.lines(run, after, _LINES)
                except BlobsUnavailable as error:
                    # No end is told of, so whoever follows comes again.
                    _log.warning("a log cannot be read", run=run.id, error=str(error))
                    return
                for line in lines:
                    after = line.position
                    yield _line(line)
                if len(lines) == _LINES:
                    continue
                if run.state in ENDED:
                    yield _end(run.state, after)
                    return
                # Nothing was awaited since, so nothing is lost: what comes after this is sent to everybody.
                if not self._join(run.id, follower, after, read_all=not lines):
                    continue
                while not self._leaving:
                    follower.bell.clear()
                    while follower.waiting:
                        position, message = follower.waiting.popleft()
                        # The reader may be behind of what was read here.
                        if position > after:
                            after = position
                            yield message
                        elif not position:
                            yield message
                    if follower.gone:
                        return
                    if follower.ended is not None:
                        run = follower.ended
                        break
                    await follower.bell.wait()
        finally:
            followed = self._followed.get(run.id)
            if followed is not None:
                followed.followers.pop(follower, None)
                if not followed.followers:
                    del self._followed[run.id]

    def _join(self, run: RunId, follower: _Follower, position: int, *, read_all: bool) -> bool:
        """False: the reader is further by now, so what lies between is to be read first."""
        followed = self._followed.get(run)
        if followed is None:
            followed = self._followed[run] = _Followed(position)
        elif followed.position > position:
            if not read_all:
                return False
            # There is nothing in between: somebody named a place that does not exist yet.
            followed.position = position
        followed.followers[follower] = None
        if self._reading is None:
            self._reading = asyncio.create_task(self._read(), name="api.logs")
        return True

    async def _read(self) -> None:
        told_at = self._clock.monotonic()
        try:
            while self._followed and not self._leaving:
                try:
                    await self._turn()
                except StoreUnavailable as error:
                    _log.warning("logs cannot be read", error=str(error))
                if self._clock.monotonic() - told_at > _QUIET:
                    told_at = self._clock.monotonic()
                    for followed in self._followed.values():
                        followed.send(0, keep_alive())
                await self._clock.sleep(LOOK_EVERY)
        except Exception as error:
            # Whoever follows comes again.
            _log.exception("logs are not read any more", exc_info=error)
            for followed in self._followed.values():
                followed.end()
        finally:
            self._reading = None

    async def _turn(self) -> None:
        places = {run: followed.position for run, followed in self._followed.items()}
        # First how they are: what has ended has printed everything.
        runs = dict(zip(places, await self._store.runs(list(places)), strict=True))
        found = await self._store.logs_after(places, _LINES)
        over = [run for run, seen in runs.items() if seen is not None and seen.state in ENDED and run not in found]
        elsewhere = await self._reader.may_be_elsewhere(over)
        for run, position in places.items():
            followed = self._followed.get(run)
            if followed is None or followed.position != position:
                # Somebody joined at another place meanwhile: the next turn reads from there.
                continue
            lines, seen = found.get(run, []), runs[run]
            for line in lines:
                followed.position = line.position
                followed.send(line.position, _line(line))
            if seen is None:
                followed.end()
            elif run in elsewhere:
                followed.leave(seen)
            elif seen.state in ENDED and len(lines) < _LINES:
                followed.send(0, _end(seen.state, followed.position))
                followed.end()


def _line(line: LogLine) -> bytes:
    return event("line", msgspec.json.encode(line_out(line)), str(line.position))


def _end(state: RunState, after: int) -> bytes:
    return event("end", msgspec.json.encode({"status": state.value}), str(after))
