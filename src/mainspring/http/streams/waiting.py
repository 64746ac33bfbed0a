"""Claims that wait for work: one claim polls for all claims that wait for the same work."""

import asyncio
from collections.abc import Sequence
from weakref import WeakValueDictionary

from mainspring.core.model.base.instant import Micros


class Line:
    """The claims that wait for work of the same queues and tenant, with the same labels."""

    def __init__(self) -> None:
        #: One claim polls at a time.
        self.turn = asyncio.Lock()
        #: The number of waiting claims.
        self.length = 0
        #: When the last poll that found nothing began.
        self.empty_at: Micros = -1


class Lines:
    """The lines by queues, labels and tenant. A line exists while a claim waits in it."""

    def __init__(self) -> None:
        self._lines: WeakValueDictionary[tuple[tuple[str, ...], tuple[str, ...], str | None], Line] = (
            WeakValueDictionary()
        )

    def of(self, queues: Sequence[str], labels: Sequence[str], tenant: str | None) -> Line:
        key = (tuple(queues), tuple(labels), tenant)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = Line()
        return line
