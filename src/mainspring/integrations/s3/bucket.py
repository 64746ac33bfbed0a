"""Objects in a bucket, through obstore.

Its blocking calls run on threads of ours instead of its coroutines. The threads of its coroutines may use the
interpreter after shutdown and abort the process (PyO3/pyo3-async-runtimes, issue 40).
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

import obstore
from obstore.exceptions import BaseError
from obstore.store import from_url

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import Micros, from_datetime
from mainspring.core.ports.blobs import Blob, BlobsUnavailable
from mainspring.integrations.files.threaded_blobs import ThreadedBlobs
from mainspring.integrations.s3.address import BlobAddress

_T = TypeVar("_T")

_LISTED = 1_000
_TIMEOUT = timedelta(seconds=10)
#: The number of bytes that a request transfers in that time at least. Larger objects are read in pieces of this
#: size, and written with a time limit that grows with the size.
_PIECE = 1_000_000
#: The callers retry failures later.
_RETRY: Any = {"max_retries": 1, "retry_timeout": _TIMEOUT}
#: The error code in the XML of an answer.
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
_NO_BUCKET = "NoSuchBucket"
_BEYOND = "416 Range Not Satisfiable"


class BucketBlobs(ThreadedBlobs):
    """Stores objects in a bucket.

    ``credentials``: values by the names of environment variables, such as ``AWS_ACCESS_KEY_ID``. Missing ones come
    from the environment, or from the machine's role.
    """

    def __init__(self, address: BlobAddress, credentials: Mapping[str, str]) -> None:
        super().__init__(address.shown)
        config: Any = {name.lower(): value for name, value in credentials.items()}
        client: Any = {"connect_timeout": timedelta(seconds=3)}
        if address.endpoint:
            config["aws_endpoint"] = address.endpoint
            client["allow_http"] = address.endpoint.startswith("http://")
        if address.region:
            config["aws_region"] = address.region

        def store(pieces: int) -> Any:
            options = client | {"timeout": pieces * _TIMEOUT}
            return from_url(address.shown, config=config, client_options=options, retry_config=_RETRY)

        try:
            self._store = store(1)
        except (BaseError, ValueError) as error:
            # The first line names the key of the configuration without its value.
            raise Invalid(address.shown, str(error).partition("\n")[0][:200]) from None
        self._patient = cache(store)

    async def list(self, prefix: str) -> AsyncIterator[Sequence[Blob]]:
        batches = iter(obstore.list(self._store, prefix, chunk_size=_LISTED))
        while batch := await self._do(lambda: next(batches, None)):
            yield [
                Blob(name=found["path"], size=found["size"], changed_at=from_datetime(found["last_modified"]))
                for found in batch
            ]

    async def folders(self, prefix: str) -> Sequence[str]:
        found = await self._do(lambda: obstore.list_with_delimiter(self._store, prefix))
        return sorted(path.rpartition("/")[2] for path in found["common_prefixes"])

    async def signed_url(self, name: str, valid_for: Micros) -> str | None:
        url: str = await self._do(lambda: obstore.sign(self._store, "GET", name, timedelta(microseconds=valid_for)))
        return url

    async def _do(self, work: Callable[[], _T]) -> _T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except (BaseError, OSError, ValueError) as error:
            raise BlobsUnavailable(f"{self.shown}: {_explain(str(error))}") from None

    def _put(self, name: str, data: bytes) -> None:
        # A single request, because a multipart upload could be left incomplete.
        store = self._patient(_split(len(data))) if len(data) > _PIECE else self._store
        obstore.put(store, name, data, use_multipart=False)

    def _get(self, name: str, first: int, size: int | None) -> bytes | None:
        end = None if size is None else first + size
        found: list[bytes] = []
        while not found or (len(found[-1]) == _PIECE and first != end):
            upto = first + _PIECE if end is None else min(first + _PIECE, end)
            piece = self._piece(name, first, upto)
            if piece is None:
                return None
            found.append(piece)
            first = upto
        return b"".join(found)

    def _piece(self, name: str, first: int, end: int) -> bytes | None:
        try:
            return bytes(obstore.get(self._store, name, options={"range": (first, end)}).bytes())
        except FileNotFoundError as error:
            if _NO_BUCKET in str(error):
                raise
            return None
        except BaseError as error:
            if _BEYOND in str(error):
                return b""
            raise

    def _delete(self, names: Collection[str]) -> None:
        try:
            obstore.delete(self._store, [*names])
        except FileNotFoundError as error:
            # Google and Azure report a missing object like this; the others of the batch were deleted.
            if _NO_BUCKET in str(error):
                raise


def _split(size: int) -> int:
    """Return the number of pieces, rounded up to a power of two, because each number has its own client."""
    return 1 << (-(-size // _PIECE) - 1).bit_length()


def _explain(said: str) -> str:
    """Return a short reason. The whole message could contain key ids and signatures."""
    first = said.partition("\n")[0]
    if code := _CODE.search(said):
        return code[1]
    return first.rpartition(" - ")[2][:200]
