"""Things too large or too old for the store: objects by name, in a folder or in a bucket."""

from collections.abc import AsyncIterator, Collection, Sequence
from typing import Protocol

import msgspec

from mainspring.core.model.base.errors import MainspringError
from mainspring.core.model.base.instant import Instant, Micros


class Blob(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    size: int
    changed_at: Instant


class BlobsUnavailable(MainspringError):
    """The folder or bucket is missing, full, slow or forbidden; what was asked may or may not have happened. The
    message is one line that names where, and no secret."""


class Blobs(Protocol):
    """Names are parts with slashes between them, as in ``logs/default/long/2026-11-16/….jsonl.gz``. A part holds
    letters, digits and ``._=-``, and does not begin with a dot. Everything here raises ``BlobsUnavailable``."""

    #: Where it is, without secrets.
    shown: str

    async def put(self, name: str, data: bytes) -> None:
        """When it returns, all of the object is there for good; until then its predecessor, or nothing."""
        ...

    async def put_all(self, objects: Sequence[tuple[str, bytes]]) -> None:
        """Several, which costs less than one by one. If it raises, some of them may be there."""
        ...

    async def get(self, name: str, first: int = 0, size: int | None = None) -> bytes | None:
        """The bytes from ``first``: ``size`` of them, or as many as there are. None: there is no such object."""
        ...

    async def delete(self, names: Collection[str]) -> None:
        """One that is not there is no error."""
        ...

    def list(self, prefix: str) -> AsyncIterator[Sequence[Blob]]:
        """What lies below, in batches and in no order. ``prefix`` is whole parts: ``logs/a`` finds no ``logs/ab/c``."""
        ...

    async def folders(self, prefix: str) -> Sequence[str]:
        """The parts that follow ``prefix`` and have something below them."""
        ...

    async def signed_url(self, name: str, valid_for: Micros) -> str | None:
        """An address that anybody can read the object by for a while. None: there is no such thing here."""
        ...

    async def check(self) -> None:
        """Put, read and delete a small object: raises what would be in the way."""
        ...

    async def close(self) -> None: ...
