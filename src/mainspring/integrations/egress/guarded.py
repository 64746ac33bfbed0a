"""Sends HTTP requests for users without giving them access to internal addresses.

- The name is looked up once, every address of it is checked, and the connection goes to a checked address. A name
  server that changes its answer (DNS rebinding) has no effect. TLS and ``Host`` use the name.
- Each request has its own connection. Two names may share an address, and a connection that was verified for one
  name must not serve the other.
- There are no redirects, proxies, cookies, ``.netrc`` or decompression, because the transport is used without a
  client.
"""

import asyncio
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from ipaddress import ip_address
from typing import TypeAlias

import httpx2

from mainspring.core.model.alerts.outgoing import MAX_URL, checked_headers
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import SECOND
from mainspring.core.ports.egress import Answer, NoAnswer, OutgoingRequest
from mainspring.integrations.egress.addresses import (
    Address,
    explain_refusal,
    parse_literal,
    parse_networks,
    unwrap_ipv4,
)

#: Looks up the addresses of a name.
Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]

MAX_BODY = 1024 * 1024
_CONNECT_SECONDS = 5.0
_MOST_TRIED = 3

_HOST = re.compile(r"[a-z0-9_](?:[a-z0-9_.-]{0,252})")


class GuardedEgress:
    """The implementation of ``Egress``. ``allowed``: networks that may be called besides public addresses."""

    def __init__(
        self, allowed: Sequence[str] = (), *, resolve: Resolve | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self._allowed = parse_networks(allowed, "tasks.http_allow")
        self._resolve = resolve or _resolve
        self._tls = tls

    async def send(self, request: OutgoingRequest) -> Answer:
        url = _check_url(request.url)
        headers = checked_headers(request.headers)
        headers |= {"Host": url.netloc.decode("ascii"), "Accept-Encoding": "identity", "Connection": "close"}
        try:
            async with asyncio.timeout(request.timeout / SECOND):
                addresses = await self._addresses(url)
                for address in addresses[:-1]:
                    try:
                        return await self._exchange(request, url, headers, address)
                    except (httpx2.ConnectError, httpx2.ConnectTimeout):
                        continue
                return await self._exchange(request, url, headers, addresses[-1])
        except TimeoutError:
            raise NoAnswer(f"no complete answer within {request.timeout / SECOND:g} s") from None
        except httpx2.TransportError as error:
            raise NoAnswer(f"{type(error).__name__}: {error}".rstrip(": ")) from None

    async def _addresses(self, url: httpx2.URL) -> Sequence[Address]:
        """Return the addresses to connect to.

        One refused address fails the request, because mixed answers are suspicious.
        """
        host = url.raw_host.decode("ascii")
        found = parse_literal(host) if "%" not in host else None
        if found is not None:
            addresses: Sequence[Address] = [found]
        elif _HOST.fullmatch(host):
            port = url.port or (443 if url.scheme == "https" else 80)
            addresses = [unwrap_ipv4(ip_address(each)) for each in await self._resolve(host, port)]
        else:
            raise Invalid("url", f"{host[:80]!r} is not a host")
        if not addresses:
            raise NoAnswer(f"{host} has no address")
        for address in addresses:
            if (why := explain_refusal(address, self._allowed)) is not None:
                # The address is omitted, because it could reveal internal names.
                raise Invalid("url", f"{host} leads to an address that is {why}", "tasks.http_allow names exceptions")
        return addresses[:_MOST_TRIED]

    async def _exchange(
        self, request: OutgoingRequest, url: httpx2.URL, headers: Mapping[str, str], address: Address
    ) -> Answer:
        limit = request.timeout / SECOND
        sent = httpx2.Request(
            request.method,
            url.copy_with(host=str(address), fragment=None),
            headers=dict(headers),
            content=request.body,
            extensions={
                "sni_hostname": url.raw_host.decode("ascii"),
                "timeout": {"connect": min(_CONNECT_SECONDS, limit), "read": limit, "write": limit, "pool": limit},
            },
        )
        if self._tls is None:
            self._tls = httpx2.create_ssl_context(trust_env=False)
        async with httpx2.AsyncHTTPTransport(verify=self._tls, trust_env=False) as transport:
            response = await transport.handle_async_request(sent)
            try:
                body = bytearray()
                async with aclosing(response.aiter_raw()) as chunks:
                    async for chunk in chunks:
                        body += chunk
                        if len(body) > MAX_BODY:
                            break
            finally:
                await response.aclose()
        return Answer(
            status=response.status_code,
            headers=dict(response.headers),
            body=bytes(body[:MAX_BODY]),
            cut=len(body) > MAX_BODY,
        )


def _check_url(text: str) -> httpx2.URL:
    if len(text) > MAX_URL:
        raise Invalid("url", f"has {len(text)} characters", f"at most {MAX_URL}")
    try:
        url = httpx2.URL(text)
    except httpx2.InvalidURL as error:
        raise Invalid("url", f"cannot be read: {error}") from None
    if url.scheme not in ("http", "https"):
        raise Invalid("url", f"{url.scheme or 'no scheme'!r} is not HTTP", "http:// or https://")
    if url.userinfo:
        raise Invalid("url", "holds credentials", "send them in a header")
    if not url.host:
        raise Invalid("url", "names no host")
    if url.port is not None and not 0 < url.port < 65_536:
        raise Invalid("url", f"there is no port {url.port}")
    return url


async def _resolve(host: str, port: int) -> Sequence[str]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise NoAnswer(f"{host} cannot be found: {error}") from None
    # An IPv6 address may contain the name of an interface.
    return list(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found))
