"""Claims that wait for work: of all that wait for the same, one looks for the others too."""

import asyncio
from collections.abc import Sequence
from weakref import WeakValueDictionary

from mainspring.core.model.base.instant import Micros


class Line:
    """Those who wait for work of the same queues and tenant, and have the same labels."""

    def __init__(self) -> None:
        #: One looks at a time.
        self.turn = asyncio.Lock()
        #: How many there are.
        self.length = 0
        #: When somebody began to look, and found nothing.
        self.empty_at: Micros = -1


class Lines:
    """A line is there as long as somebody stands in it."""

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
