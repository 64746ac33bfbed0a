"""Signals: the first asks the process to leave in good order, the second to leave at once."""

import asyncio
import signal
from types import TracebackType
from typing import Self

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """``async with StopSignals() as stop: await stop.asked.wait()``; ``stop.insisted`` is set by a second signal."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.insisted = asyncio.Event()

    def ask(self) -> None:
        """What a signal does."""
        if self.asked.is_set():
            self.insisted.set()
        self.asked.set()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self.ask)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
