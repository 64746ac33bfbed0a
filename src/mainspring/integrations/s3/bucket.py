"""Objects in a bucket of S3 and alike, by obstore.

By threads of ours and not by its coroutines: the threads that end those ask for the interpreter when it may be gone
already, and abort the process as it ends (PyO3/pyo3-async-runtimes, issue 40).
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
from mainspring.integrations.files.parts import ThreadedBlobs
from mainspring.integrations.s3.address import BlobAddress

_T = TypeVar("_T")

_LISTED = 1_000
_TIMEOUT = timedelta(seconds=10)
#: What a request carries in that time at least. More is read in pieces, and sent in one of as many times that.
_PIECE = 1_000_000
#: What failed is tried again by whoever asked, later.
_RETRY: Any = {"max_retries": 1, "retry_timeout": _TIMEOUT}
#: What servers call an error, in the XML that they send.
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
_NO_BUCKET = "NoSuchBucket"
_BEYOND = "416 Range Not Satisfiable"


class BucketBlobs(ThreadedBlobs):
    """``credentials``: by the names that the environment would have them under, such as ``AWS_ACCESS_KEY_ID``. What
    is not among them comes from the environment, or from the machine's role."""

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
            # Its first line names a key of the configuration, and no value.
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
            raise BlobsUnavailable(f"{self.shown}: {_why(str(error))}") from None

    def _put(self, name: str, data: bytes) -> None:
        # In one request: an object of several parts could be left unfinished.
        store = self._patient(_pieces(len(data))) if len(data) > _PIECE else self._store
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
            # Google's and Azure's say so of an object that is gone; the others of the batch were deleted.
            if _NO_BUCKET in str(error):
                raise


def _pieces(size: int) -> int:
    """How many there are, in few steps: each has a client of its own."""
    return 1 << (-(-size // _PIECE) - 1).bit_length()


def _why(said: str) -> str:
    """One line. Whole, it would hold what was sent: names of keys, signatures."""
    first = said.partition("\n")[0]
    if code := _CODE.search(said):
        return code[1]
    return first.rpartition(" - ")[2][:200]
