"""Pausing schedules and queues from an application."""

from collections.abc import Coroutine
from datetime import datetime
from typing import Any, TypeVar

from mainspring.core.model.base.checks import check_words
from mainspring.core.model.base.instant import Instant, from_datetime
from mainspring.core.model.runs.names import MAX_WHY, check_name, check_queue
from mainspring.core.ports.storage.access import Author
from mainspring.sdk.backends.embedded import Backend

T = TypeVar("T")


class Pausing:
    """What an application can do about its own schedules, and its tenant's runs in a queue."""

    tenant: str
    name: str

    async def backend(self) -> Backend:
        """Where the work goes."""
        raise NotImplementedError

    def block_on(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait here for something that happens on the loop of a thread of its own."""
        raise NotImplementedError

    async def pause(self, job: str, *, reason: str = "", until: datetime | None = None) -> None:
        """Pause a schedule, by its name: ``await app.pause("nightly", reason="the bank is closed")``.

        Its ticks are recorded as skipped, with the reason, until it is resumed; with ``until`` it goes on by itself
        then. What is paused stays as it is, unless it is to go on at another time.
        """
        check_name("job", job)
        await (await self.backend()).pause_job(job, self._author(reason), _end(until))

    async def resume(self, job: str) -> None:
        """Let a paused schedule go on."""
        check_name("job", job)
        await (await self.backend()).resume_job(job, self._author())

    async def pause_queue(self, queue: str, *, reason: str = "", until: datetime | None = None) -> None:
        """Start no more runs of this application's tenant from a queue; what runs goes on, and what comes waits."""
        check_queue("queue", queue)
        await (await self.backend()).pause_queue(queue, self._author(reason), _end(until))

    async def resume_queue(self, queue: str) -> None:
        """Let it go on. A pause of the queue for every tenant, which an administrator has made, stays."""
        check_queue("queue", queue)
        await (await self.backend()).resume_queue(queue, self._author())

    def pause_sync(self, job: str, *, reason: str = "", until: datetime | None = None) -> None:
        """As ``pause``, for code that blocks."""
        self.block_on(self.pause(job, reason=reason, until=until))

    def resume_sync(self, job: str) -> None:
        """As ``resume``, for code that blocks."""
        self.block_on(self.resume(job))

    def pause_queue_sync(self, queue: str, *, reason: str = "", until: datetime | None = None) -> None:
        """As ``pause_queue``, for code that blocks."""
        self.block_on(self.pause_queue(queue, reason=reason, until=until))

    def resume_queue_sync(self, queue: str) -> None:
        """As ``resume_queue``, for code that blocks."""
        self.block_on(self.resume_queue(queue))

    def _author(self, reason: str = "") -> Author:
        if reason:
            check_words("reason", reason, MAX_WHY)
        return Author(self.name, self.tenant, reason)


def _end(until: datetime | None) -> Instant | None:
    return None if until is None else from_datetime(until, "until")
