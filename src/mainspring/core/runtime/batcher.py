"""Groups single requests into batches without a timer."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from mainspring.core.model.base.errors import Invalid, NotFound, StoreUnavailable

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Batcher(Generic[Item, Answer]):
    """Flushes at once when idle, and gathers items only while a flush is in progress.

    A batch that is rejected as invalid, or because a referenced object is missing, is halved until the culprit is
    alone. Unrelated items do not fail with it.
    """

    def __init__(
        self,
        flush: Callable[[list[Item]], Awaitable[list[Answer]]],
        *,
        largest: int = 1_000,
        most_waiting: int = 100_000,
    ) -> None:
        self._flush = flush
        self._largest = largest
        self._most_waiting = most_waiting
        self._waiting: list[tuple[Item, asyncio.Future[Answer]]] = []
        self._task: asyncio.Task[None] | None = None

    async def add(self, item: Item) -> Answer:
        """Add one item; returns its answer when its batch is done."""
        if len(self._waiting) >= self._most_waiting:
            raise StoreUnavailable(f"{self._most_waiting} requests are waiting for the store already")
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._task is None:
            self._task = asyncio.create_task(self._drain())
        return await future

    async def _drain(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[: self._largest], self._waiting[self._largest :]
                # Skip callers that were cancelled.
                await self._send([entry for entry in batch if not entry[1].cancelled()])
        finally:
            self._task = None

    async def _send(self, batch: list[tuple[Item, asyncio.Future[Answer]]]) -> None:
        if not batch:
            return
        try:
            answers = await self._flush([item for item, _ in batch])
        except (Invalid, NotFound) as error:
            if len(batch) == 1:
                _fail(batch, error)
                return
            middle = len(batch) // 2
            await self._send(batch[:middle])
            await self._send(batch[middle:])
        except Exception as error:
            _fail(batch, error)
        else:
            for (_, future), answer in zip(batch, answers, strict=True):
                if not future.done():
                    future.set_result(answer)


def _fail(batch: list[tuple[Item, asyncio.Future[Answer]]], error: Exception) -> None:
    for _, future in batch:
        if not future.done():
            future.set_exception(error)
