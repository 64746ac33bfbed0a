"""Requests as the server passes them on, and the reading of their bodies."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from mainspring.core.model.access.access import Principal
from mainspring.http.asgi_types import Receive, Scope
from mainspring.http.context import Api
from mainspring.http.operation import Operation
from mainspring.http.problems import RequestError

#: A slow sender holds memory that others need: limits for one piece of the body, and for the whole body.
_PIECE_BYTES = 256 * 1024
_PIECE_SECONDS = 5
_BODY_SECONDS = 30
#: This much of a body is not counted, so that small requests succeed while others send large ones.
_FREE_BYTES = 64 * 1024


class IncompleteBody(RequestError):
    """The body ended early: the client hung up, or sent invalid HTTP. A client that hung up reads no answer."""

    def __init__(self) -> None:
        super().__init__(400, "Bad request", "the body is incomplete, or not encoded as its headers say")


class Request:
    """A request as the server passes it on."""

    __slots__ = ("_more", "_receive", "headers", "scope")

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.scope = scope
        self.headers: dict[str, str] = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        self._receive = receive
        self._more = True

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the parts of the body that have not been read yet."""
        while self._more:
            message: Any = await self._receive()
            if message["type"] == "http.disconnect":
                raise IncompleteBody
            self._more = message.get("more_body", False)
            yield message.get("body", b"")

    async def wait_for_disconnect(self) -> None:
        """Return when the client has hung up."""
        with suppress(IncompleteBody):
            async for _ in self.chunks():
                pass
            while (await self._receive())["type"] != "http.disconnect":
                pass


class BodyReservation:
    """Counts the bytes of one body, and reserves room for them until the request is answered."""

    __slots__ = ("_api", "_principal", "_size", "_taken")

    def __init__(self, api: Api, principal: Principal) -> None:
        self._api = api
        self._principal = principal
        self._size = 0
        self._taken = 0

    def add(self, size: int) -> int:
        """Add received bytes and return the total so far. Raises ``Refused`` if there is no room for them."""
        self._size += size
        more = max(self._size - _FREE_BYTES, 0) - self._taken
        if more:
            self._api.bodies.take(self._principal, more)
            self._taken += more
        return self._size

    def release(self) -> None:
        if self._taken:
            self._api.bodies.release(self._principal, self._taken)


def refuse_large_body(operation: Operation) -> RequestError:
    return RequestError(413, "Content too large", f"at most {operation.largest_body} bytes")


async def discard_body(request: Request) -> None:
    """Read and discard the body, because a client that is still sending would not see the answer."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_BODY_SECONDS):
            async for _ in request.chunks():
                pass


async def read_body(request: Request, operation: Operation, reservation: BodyReservation) -> bytes:
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise RequestError(
            415, "Unsupported media type", f"bodies in {encoding[:20]} are not read", hint="send it uncompressed"
        )
    body = await _read_chunks(request, operation, reservation)
    if body and operation.method in ("POST", "PUT", "PATCH"):
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise RequestError(
                415,
                "Unsupported media type",
                f"the body has the type {kind[:40]!r}" if kind else "the body has no type",
                hint="send the header `Content-Type: application/json`; with curl: --json instead of --data",
            )
    return body


async def _read_chunks(request: Request, operation: Operation, reservation: BodyReservation) -> bytes:
    parts: list[bytes] = []
    expected = _PIECE_BYTES
    time = asyncio.get_running_loop().time
    end = time() + _BODY_SECONDS
    try:
        async with asyncio.timeout(_PIECE_SECONDS) as pace:
            async for chunk in request.chunks():
                size = reservation.add(len(chunk))
                if size > operation.largest_body:
                    raise refuse_large_body(operation)
                parts.append(chunk)
                if size >= expected:
                    expected = size + _PIECE_BYTES
                    pace.reschedule(min(time() + _PIECE_SECONDS, end))
    except TimeoutError:
        raise RequestError(
            408,
            "Request timeout",
            f"the body did not come within {_BODY_SECONDS} s, or {_PIECE_BYTES >> 10} KiB of it within "
            f"{_PIECE_SECONDS} s",
        ) from None
    return parts[0] if len(parts) == 1 else b"".join(parts)
