"""Pauses and resumes schedules and queues from an application."""

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
    """Pauses and resumes the application's schedules, and its tenant's runs in a queue."""

    tenant: str
    name: str

    async def backend(self) -> Backend:
        """Return the store or API that calls are submitted to."""
        raise NotImplementedError

    def block_on(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop of a separate thread, and block until it is done."""
        raise NotImplementedError

    async def pause(self, job: str, *, reason: str = "", until: datetime | None = None) -> None:
        """Pause a schedule by its name: ``await app.pause("nightly", reason="the bank is closed")``.

        Until it is resumed, its ticks are recorded as skipped, with the reason. With ``until`` it resumes by itself
        at that time. Pausing a paused schedule only changes ``until``.
        """
        check_name("job", job)
        await (await self.backend()).pause_job(job, self._author(reason), _end(until))

    async def resume(self, job: str) -> None:
        """Resume a paused schedule."""
        check_name("job", job)
        await (await self.backend()).resume_job(job, self._author())

    async def pause_queue(self, queue: str, *, reason: str = "", until: datetime | None = None) -> None:
        """Stop starting runs of this application's tenant from a queue. Active runs continue, and new runs wait."""
        check_queue("queue", queue)
        await (await self.backend()).pause_queue(queue, self._author(reason), _end(until))

    async def resume_queue(self, queue: str) -> None:
        """Resume a queue for this application's tenant.

        A pause for every tenant, set by an administrator, stays in force.
        """
        check_queue("queue", queue)
        await (await self.backend()).resume_queue(queue, self._author())

    def pause_sync(self, job: str, *, reason: str = "", until: datetime | None = None) -> None:
        """Pause a schedule like ``pause``, from blocking code."""
        self.block_on(self.pause(job, reason=reason, until=until))

    def resume_sync(self, job: str) -> None:
        """Resume a schedule like ``resume``, from blocking code."""
        self.block_on(self.resume(job))

    def pause_queue_sync(self, queue: str, *, reason: str = "", until: datetime | None = None) -> None:
        """Pause a queue like ``pause_queue``, from blocking code."""
        self.block_on(self.pause_queue(queue, reason=reason, until=until))

    def resume_queue_sync(self, queue: str) -> None:
        """Resume a queue like ``resume_queue``, from blocking code."""
        self.block_on(self.resume_queue(queue))

    def _author(self, reason: str = "") -> Author:
        if reason:
            check_words("reason", reason, MAX_WHY)
        return Author(self.name, self.tenant, reason)


def _end(until: datetime | None) -> Instant | None:
    return None if until is None else from_datetime(until, "until")
