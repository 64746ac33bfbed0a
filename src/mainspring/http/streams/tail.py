"""Reads logs once for all followers of a run."""

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
from mainspring.core.ports.storage.reads import RunViews
from mainspring.core.runtime.log import get_logger
from mainspring.http.rendering.runs import render_line
from mainspring.http.streams.sse import format_event, keep_alive

_log = get_logger("mainspring.api.logs")

#: How often the store is polled, once for all followed logs.
LOOK_EVERY: Micros = SECOND
_QUIET: Micros = 15 * SECOND
#: The largest number of lines of one run per read.
_LINES = 500


class TailStore(Catalog, RunViews, Protocol):
    """The part of the store that the log tail uses."""


class LogReader:
    """Reads the log lines of a run from the store, or, some time after its end, from the log storage."""

    def __init__(self, store: Catalog, kept: RunLogs | None) -> None:
        self._store = store
        self._kept = kept
        #: Seconds after which a read of the log storage fails.
        self.kept_timeout: float = 5

    async def lines(self, run: RunView, after: int, limit: int) -> list[LogLine]:
        # The store is read first: lines are written to the log storage before they are deleted from the store.
        store = self._store.seen_by(run.tenant)
        found = await store.log(run.id, after, limit)
        if found or self._kept is None or run.state not in ENDED or run.finished_at is None:
            return found
        # All lines of a run move together. If the store has some, the log storage has none.
        if after and await store.log(run.id, 0, 1):
            return []
        async with self._in_time():
            return await self._kept.read(run, after, limit)

    async def lines_before(self, run: RunView, before: int, limit: int) -> list[LogLine]:
        """Return the last lines before a position."""
        store = self._store.seen_by(run.tenant)
        found = await store.log_before(run.id, before, limit)
        if found or self._kept is None or run.state not in ENDED or run.finished_at is None:
            return found
        if before < LOG_END and await store.log(run.id, 0, 1):
            return []
        async with self._in_time():
            return await self._kept.read_before(run, before, limit)

    async def may_be_elsewhere(self, runs: Collection[RunId]) -> set[RunId]:
        """Return the ended runs among ``runs`` whose lines are not, or no longer, in the store."""
        if self._kept is None or not runs:
            return set()
        return set(runs) - (await self._store.logs_after(dict.fromkeys(runs, 0), 1)).keys()

    async def url(self, run: RunView) -> str | None:
        """Return a temporary URL of the whole log. None: the log is in the store, or on a disk."""
        if self._kept is None or run.state not in ENDED or run.finished_at is None:
            return None
        async with self._in_time():
            return await self._kept.url(run)

    async def delete(self, run: RunView) -> None:
        """Delete the log of a run from the log storage."""
        if self._kept is not None and run.finished_at is not None:
            async with self._in_time():
                await self._kept.delete([run])

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        """Fail with a clear error before the time limit of the request ends."""
        try:
            async with asyncio.timeout(self.kept_timeout):
                yield
        except TimeoutError:
            raise BlobsUnavailable(f"where logs are kept did not answer in {self.kept_timeout:g} s") from None


class _Follower:
    __slots__ = ("ended", "gone", "waiting", "wakeup")

    def __init__(self) -> None:
        #: Messages are shared by all followers of a run, and a log is bounded, so this queue is bounded.
        self.waiting: deque[tuple[int, bytes]] = deque()
        self.wakeup = asyncio.Event()
        #: No message follows those in ``waiting``.
        self.gone = False
        #: Set when the run has ended. The log storage may have more lines, which the follower reads itself.
        self.ended: RunView | None = None


class _Followed:
    """A followed run: the position up to which its log was read, and its followers."""

    __slots__ = ("followers", "position")

    def __init__(self, position: int) -> None:
        self.position = position
        self.followers: dict[_Follower, None] = {}

    def send(self, position: int, message: bytes) -> None:
        for follower in self.followers:
            follower.waiting.append((position, message))
            follower.wakeup.set()

    def end(self) -> None:
        for follower in self.followers:
            follower.gone = True
            follower.wakeup.set()

    def leave(self, run: RunView) -> None:
        """Pass the ended run to each follower.

        Each one reads the log storage itself, so that the others do not wait for it.
        """
        for follower in self.followers:
            follower.ended = run
            follower.wakeup.set()


class LogTail:
    """Streams logs. It does not query the store while there are no followers."""

    def __init__(self, store: TailStore, clock: Clock, reader: LogReader) -> None:
        self._store = store
        self._reader = reader
        self._clock = clock
        self._followed: dict[RunId, _Followed] = {}
        self._leaving = False
        self._reading: asyncio.Task[None] | None = None

    def let_go(self) -> None:
        """End all streams, including those that begin later."""
        self._leaving = True
        for followed in self._followed.values():
            followed.end()

    async def follow(self, run: RunView, after: int) -> AsyncIterator[bytes]:
        """Yield the log lines of a run after a position, until the run has ended."""
        follower = _Follower()
        try:
            while not self._leaving:
                try:
                    lines = await self._reader.lines(run, after, _LINES)
                except BlobsUnavailable as error:
                    # No end event is sent, so the client connects again.
                    _log.warning("run log unavailable", run=run.id, error=str(error))
                    return
                for line in lines:
                    after = line.position
                    yield _line(line)
                if len(lines) == _LINES:
                    continue
                if run.state in ENDED:
                    yield _end(run.state, after)
                    return
                # Nothing was awaited since, so nothing is lost: later lines are sent to every follower.
                if not self._join(run.id, follower, after, read_all=not lines):
                    continue
                while not self._leaving:
                    follower.wakeup.clear()
                    while follower.waiting:
                        position, message = follower.waiting.popleft()
                        # The shared reader may be behind the lines that were read here.
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
                    await follower.wakeup.wait()
        finally:
            followed = self._followed.get(run.id)
            if followed is not None:
                followed.followers.pop(follower, None)
                if not followed.followers:
                    del self._followed[run.id]

    def _join(self, run: RunId, follower: _Follower, position: int, *, read_all: bool) -> bool:
        """Add a follower. Return False if the shared reader is ahead, so the lines in between must be read first."""
        followed = self._followed.get(run)
        if followed is None:
            followed = self._followed[run] = _Followed(position)
        elif followed.position > position:
            if not read_all:
                return False
            # There are no lines in between: the client named a position that does not exist yet.
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
                    _log.warning("run logs unavailable", error=str(error))
                if self._clock.monotonic() - told_at > _QUIET:
                    told_at = self._clock.monotonic()
                    for followed in self._followed.values():
                        followed.send(0, keep_alive())
                await self._clock.sleep(LOOK_EVERY)
        except Exception as error:
            # The clients connect again.
            _log.exception("log reader stopped", exc_info=error)
            for followed in self._followed.values():
                followed.end()
        finally:
            self._reading = None

    async def _turn(self) -> None:
        positions = {run: followed.position for run, followed in self._followed.items()}
        # Read the states first: a run that has ended writes no more lines.
        runs = dict(zip(positions, await self._store.runs(list(positions)), strict=True))
        found = await self._store.logs_after(positions, _LINES)
        over = [run for run, seen in runs.items() if seen is not None and seen.state in ENDED and run not in found]
        elsewhere = await self._reader.may_be_elsewhere(over)
        for run, position in positions.items():
            followed = self._followed.get(run)
            if followed is None or followed.position != position:
                # A follower joined at another position meanwhile. The next turn reads from there.
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
    return format_event("line", msgspec.json.encode(render_line(line)), str(line.position))


def _end(state: RunState, after: int) -> bytes:
    return format_event("end", msgspec.json.encode({"status": state.value}), str(after))
