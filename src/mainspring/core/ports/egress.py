"""The port for HTTP requests to addresses that users provide."""

from collections.abc import Mapping
from typing import Protocol

import msgspec

from mainspring.core.model.base.instant import SECOND, Micros


class OutgoingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request. The headers that frame it (``Host``, ``Content-Length`` …) cannot be set by the caller."""

    method: str
    url: str
    headers: Mapping[str, str] = {}
    body: bytes | None = None
    #: The limit for everything together: resolving the address, connecting, sending, reading.
    timeout: Micros = 30 * SECOND


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The response, whatever its status."""

    status: int
    #: Names in lower case. The values of repeated headers are joined by commas.
    headers: Mapping[str, str]
    #: Unchanged, up to the read limit; never decompressed.
    body: bytes
    #: The body was longer than the read limit.
    cut: bool = False


class NoAnswer(Exception):
    """No connection, too slow, or not HTTP. The request may or may not have arrived."""


class Egress(Protocol):
    """Sends requests for users, and only to allowed addresses.

    Every call to an address that came in a payload or through the API must use this port, so that the address check
    cannot be bypassed.
    """

    async def send(self, request: OutgoingRequest) -> Answer:
        """Send once: no redirect is followed, no proxy used, nothing repeated.

        Raises ``Invalid`` before anything is sent if the URL or a header is refused, and ``NoAnswer``.
        """
        ...
