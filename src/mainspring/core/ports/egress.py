"""The one way out: an HTTP request to somewhere that a user named."""

from collections.abc import Mapping
from typing import Protocol

import msgspec

from mainspring.core.model.base.instant import SECOND, Micros


class Outgoing(msgspec.Struct, frozen=True, kw_only=True):
    """A request. The headers that frame it (``Host``, ``Content-Length`` …) are not the caller's to choose."""

    method: str
    url: str
    headers: Mapping[str, str] = {}
    body: bytes | None = None
    #: For everything together: finding the address, connecting, sending, reading.
    timeout: Micros = 30 * SECOND


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What came back, whatever the status."""

    status: int
    #: Names in lower case. Of one that came more than once, the values joined by commas.
    headers: Mapping[str, str]
    #: As it came, up to what is read at most; never unpacked.
    body: bytes
    #: There was more.
    cut: bool = False


class NoAnswer(Exception):
    """Nobody there, too slow, or not HTTP. Whether the request arrived is not known."""


class Egress(Protocol):
    """Sends requests for users, and only to where users may send them. Everything that calls an address which came in
    by a payload or by the API goes through here: a second way would be a forgotten one."""

    async def send(self, request: Outgoing) -> Answer:
        """Send once. No redirect is followed, no proxy used, nothing repeated.

        Raises ``Invalid`` before anything is sent if the URL or a header is refused, and ``NoAnswer``.
        """
        ...
