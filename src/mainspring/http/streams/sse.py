"""Server-sent events."""

from collections.abc import AsyncIterator
from typing import Self

from mainspring.core.model.access.access import Principal
from mainspring.http.limits import CapacityLimit


def format_event(kind: str, data: bytes, identifier: str = "") -> bytes:
    """Encode one event. The data is JSON, which has no line breaks."""
    head = f"id: {identifier}\n" if identifier else ""
    return f"{head}event: {kind}\ndata: ".encode() + data + b"\n\n"


def keep_alive() -> bytes:
    """Return a comment, so that no proxy closes the connection as idle."""
    return b": \n\n"


class Stream(AsyncIterator[bytes]):
    """A stream that occupies a slot of a limit until it ends."""

    def __init__(self, source: AsyncIterator[bytes], room: CapacityLimit, listener: Principal) -> None:
        self._room: CapacityLimit | None = None
        self._source = source
        self._listener = listener
        room.take(listener)
        self._room = room

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await anext(self._source)
        except BaseException:
            self._end()
            raise

    def __del__(self) -> None:
        # A listener that leaves before the first event, or between two, is not reported here.
        self._end()

    def _end(self) -> None:
        room, self._room = self._room, None
        if room is not None:
            room.release(self._listener)
