"""The common part of folders and buckets: blocking calls on a few threads."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar
from uuid import uuid4

from mainspring.core.ports.blobs import BlobsUnavailable

_T = TypeVar("_T")
#: Separate from the event loop's threads, because a hanging disk or server must not occupy those.
_THREADS = 8


class ThreadedBlobs(ABC):
    def __init__(self, shown: str) -> None:
        self.shown = shown
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="blobs")

    async def put(self, name: str, data: bytes) -> None:
        await self._do(lambda: self._put(name, data))

    async def put_all(self, objects: Sequence[tuple[str, bytes]]) -> None:
        """Distribute the objects over the threads, because one task per object costs as much time as sending it.

        A thread stops at its first object that fails.
        """

        def put_part(part: Sequence[tuple[str, bytes]]) -> None:
            for name, data in part:
                self._put(name, data)

        parts = [part for first in range(_THREADS) if (part := objects[first::_THREADS])]
        await asyncio.gather(*(self._do(partial(put_part, part)) for part in parts))

    async def get(self, name: str, first: int = 0, size: int | None = None) -> bytes | None:
        return await self._do(lambda: self._get(name, first, size))

    async def delete(self, names: Collection[str]) -> None:
        if names:
            await self._do(lambda: self._delete(names))

    async def check(self) -> None:
        # Processes in different containers may have the same process id.
        name = f"check-{uuid4().hex}"
        await self.put(name, b"mainspring")
        if await self.get(name) != b"mainspring":
            raise BlobsUnavailable(f"{self.shown}: what was written is not what is read")
        await self.delete([name])

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    @abstractmethod
    async def _do(self, work: Callable[[], _T]) -> _T:
        """Call a function on one of the threads. Raises ``BlobsUnavailable`` for its errors."""

    @abstractmethod
    def _put(self, name: str, data: bytes) -> None: ...

    @abstractmethod
    def _get(self, name: str, first: int, size: int | None) -> bytes | None: ...

    @abstractmethod
    def _delete(self, names: Collection[str]) -> None: ...
