"""The port for objects that are too large or too old for the store, in a folder or a bucket."""

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
    """The folder or bucket is missing, full, slow or forbidden. The operation may or may not have happened.

    The message is one line that names the location, and no secret.
    """


class Blobs(Protocol):
    """Named objects.

    1. Names are parts separated by slashes, as in ``logs/default/long/2026-11-16/….jsonl.gz``.
    2. A part holds letters, digits and ``._=-``, and does not begin with a dot.
    3. Every method raises ``BlobsUnavailable``.
    """

    #: The location, without secrets.
    shown: str

    async def put(self, name: str, data: bytes) -> None:
        """Write an object. When it returns, the whole object is stored; until then its predecessor, or nothing."""
        ...

    async def put_all(self, objects: Sequence[tuple[str, bytes]]) -> None:
        """Write several objects, which costs less than one by one. If it raises, some of them may be written."""
        ...

    async def get(self, name: str, first: int = 0, size: int | None = None) -> bytes | None:
        """Return ``size`` bytes from ``first``, or as many as there are. None: there is no such object."""
        ...

    async def delete(self, names: Collection[str]) -> None:
        """Delete objects. Missing ones are ignored."""
        ...

    def list(self, prefix: str) -> AsyncIterator[Sequence[Blob]]:
        """List the objects below a prefix, in batches, unordered.

        ``prefix`` matches whole parts: ``logs/a`` finds no ``logs/ab/c``.
        """
        ...

    async def folders(self, prefix: str) -> Sequence[str]:
        """Return the parts that directly follow ``prefix`` and have objects below them."""
        ...

    async def signed_url(self, name: str, valid_for: Micros) -> str | None:
        """Return a URL under which anyone can read the object for a while. None: not supported here."""
        ...

    async def check(self) -> None:
        """Write, read and delete a small object; raises any problem with access."""
        ...

    async def close(self) -> None: ...
