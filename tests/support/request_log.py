"""A log of requests for jobs in memory. A reader that starts again receives unfinished requests again."""

import asyncio
from collections.abc import Sequence

from mainspring.core.model.base.errors import BrokerUnavailable
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import SECOND, Instant, Micros
from mainspring.core.model.events.record_mapping import Record
from mainspring.core.ports.ingest import JobRequest, Rejection


class MemoryLog:
    def __init__(self, sent_at: Instant) -> None:
        self.away = False
        #: Rejected requests with their reasons.
        self.dead: list[tuple[JobRequest, Rejection]] = []
        self._sent_at = sent_at
        self._records: list[JobRequest] = []
        self._done: set[int] = set()
        self._next = 0
        self._came = asyncio.Event()

    async def accept(self, body: bytes, *, key: str, tenant: str, run: RunId, author: str) -> None:
        self._here()
        self.send(body, key, tenant, run, author)

    def send(
        self,
        body: bytes,
        key: str = "",
        tenant: str | None = None,
        run: str | None = None,
        author: str | None = None,
        topic: str = "",
    ) -> None:
        """``topic``: one whose records are mapped. Then the key is the record's own."""
        place = len(self._records)
        self._records.append(
            JobRequest(
                body=body,
                key=key if key and not topic else f"log/{place}",
                tenant=tenant,
                run=run,
                author=author,
                sent_at=self._sent_at,
                topic=topic,
                record=Record(key.encode() or None, {}, body) if topic else None,
                receipt=place,
            )
        )
        self._came.set()

    @property
    def keys(self) -> list[str]:
        """The keys of all records, in order."""
        return [ask.key for ask in self._records]

    @property
    def open(self) -> int:
        """How many requests are neither done nor rejected."""
        return len(self._records) - len(self._done)

    def rewind(self, *, forget: bool = False) -> None:
        """Let the reader start again with unfinished requests, or with all of them (``forget``)."""
        if forget:
            self._done.clear()
        self._next = 0

    async def close(self) -> None: ...

    async def take(self, limit: int, wait: Micros) -> list[JobRequest]:
        self._here()
        if self._next >= len(self._records):
            self._came.clear()
            try:
                async with asyncio.timeout(wait / SECOND):
                    await self._came.wait()
            except TimeoutError:
                return []
        found = self._records[self._next : self._next + limit]
        self._next += len(found)
        return [ask for ask in found if ask.receipt not in self._done]

    async def done(self, asks: Sequence[JobRequest]) -> None:
        self._here()
        for ask in asks:
            assert isinstance(ask.receipt, int)
            self._done.add(ask.receipt)

    async def refuse(self, refused: Sequence[tuple[JobRequest, Rejection]]) -> None:
        self._here()
        self.dead += refused
        await self.done([ask for ask, _ in refused])

    def _here(self) -> None:
        if self.away:
            raise BrokerUnavailable("it is away for the test")
