"""The ASGI application: authenticates, decodes and dispatches every request."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import parse_qsl

import msgspec

from mainspring.core.model.access.access import Principal
from mainspring.core.model.access.token_rules import is_loopback
from mainspring.core.model.base.errors import Invalid, MainspringError
from mainspring.core.ports.clock import Clock
from mainspring.core.runtime.log import get_logger
from mainspring.http.asgi_types import ASGIApp, Receive, Scope, Send
from mainspring.http.calling import refuse_unless_allowed
from mainspring.http.context import Api
from mainspring.http.docs.openapi import document
from mainspring.http.docs.page import render
from mainspring.http.operation import Answer, Call, Operation, Resource
from mainspring.http.problems import MEDIA_TYPE, Problem, Refused, UnknownPath, problem_of, with_names_as_written
from mainspring.http.routing import Routes

if TYPE_CHECKING:
    from mainspring.core.runtime.tracing.spans import Tracing

_log = get_logger("mainspring.api")
Door: TypeAlias = Callable[["Asked", Send], Awaitable[None]]
RawHeaders: TypeAlias = list[tuple[bytes, bytes]]
_encoder = msgspec.json.Encoder()
#: A slow sender holds memory that others need: limits for one piece of the body, and for the whole body.
_PIECE_BYTES = 256 * 1024
_PIECE_SECONDS = 5
_BODY_SECONDS = 30
#: This much of a body is not counted, so that small requests succeed while others send large ones.
_UNCOUNTED = 64 * 1024
#: How long to wait for a client that was refused and does not read.
_GOODBYE_SECONDS = 1
_HEADERS = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}


def make_app(api: Api, resources: Sequence[Resource]) -> ASGIApp:
    api.openapi, api.docs = described(tuple(resources))
    by_path: dict[str, list[Operation]] = {}
    for resource in resources:
        for operation in resource.operations:
            by_path.setdefault(operation.path, []).append(operation)
    routes = Routes({path: _entry(api, operations) for path, operations in by_path.items()})
    literal = [path for path in by_path if "{" not in path]

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _answer_lifespan(receive, send)
            return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close"})
            return
        path = scope["path"].removeprefix(scope.get("root_path", "").rstrip("/"))
        if found := routes.find(path):
            entry, scope["path_params"] = found
            await entry(scope, receive, send)
        else:
            api.metrics.count("none", 404)
            problem, headers = problem_of(UnknownPath(path, literal))
            await _send(send, 404, _raw({**_HEADERS, **headers}, MEDIA_TYPE), _encoder.encode(problem))

    return app


async def _answer_lifespan(receive: Receive, send: Send) -> None:
    """Answer the lifespan messages.

    The process that created the application starts and stops the services behind it.
    """
    for phase in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{phase}.complete"})


@cache
def described(resources: tuple[Resource, ...]) -> tuple[bytes, bytes]:
    """Return the OpenAPI document and the HTML page that is rendered from it."""
    made = document(resources, metadata.version("mainspring"))
    return msgspec.json.encode(made), render(made)


class Gone(Refused):
    """The body ended early: the client hung up, or sent invalid HTTP. A client that hung up reads no answer."""

    def __init__(self) -> None:
        super().__init__(400, "Bad request", "the body is incomplete, or not encoded as its headers say")


class Asked:
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
                raise Gone
            self._more = message.get("more_body", False)
            yield message.get("body", b"")

    async def left(self) -> None:
        """Return when the client has hung up."""
        with suppress(Gone):
            async for _ in self.chunks():
                pass
            while (await self._receive())["type"] != "http.disconnect":
                pass


def _entry(api: Api, operations: list[Operation]) -> ASGIApp:
    """Return the application for one path, which dispatches by method."""
    doors: dict[str, Door] = {operation.method: _door(api, operation) for operation in operations}
    allowed = ", ".join(sorted(doors))

    # Probes may send HEAD.
    is_probe = any(operation.method == "GET" and operation.permission is None for operation in operations)

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        asked = Asked(scope, receive)
        door = doors.get(scope["method"])
        if scope["method"] == "HEAD" and is_probe:
            door, send = doors["GET"], _without_body(send)
        if door is None:
            api.metrics.count("none", 405)
            problem = Problem(title="Method not allowed", status=405, hint=allowed)
            await _send(send, 405, _raw({**_HEADERS, "allow": allowed}, MEDIA_TYPE), _encoder.encode(problem))
        else:
            await door(asked, send)

    return handle


def _door(api: Api, operation: Operation) -> Door:
    """Return the request handler of one operation: authenticate, authorize, decode, then call its handler."""
    latency = api.metrics.latency(operation.name)
    usual_headers = _raw(_HEADERS, operation.media_type)

    async def enter(asked: Asked, send: Send) -> None:
        began = api.clock.monotonic()
        try:
            try:
                async with asyncio.timeout(operation.within) as limit:
                    answer = await let_in(asked)
            except TimeoutError:
                if not limit.expired():
                    raise
                raise _late(operation) from None
            content = (
                answer.raw if answer.raw is not None else b"" if operation.streams else _encoder.encode(answer.body)
            )
        except Exception as error:
            problem, headers = _told(asked, error)
            api.metrics.count(operation.name, problem.status)
            await _send(send, problem.status, _raw(headers, MEDIA_TYPE), _encoder.encode(problem))
            return
        api.metrics.count(operation.name, answer.status)
        raw = usual_headers if not answer.headers else _raw({**_HEADERS, **answer.headers}, operation.media_type)
        if operation.streams:
            await stream(send, asked, raw, answer.body, api.auth.no_longer(lambda: api.auth.principal(asked.headers)))
            return
        latency.add(api.clock.monotonic() - began)
        await _send(send, answer.status, raw, content)

    async def let_in(asked: Asked) -> Answer:
        principal = api.nobody
        if operation.permission is not None:
            principal = await _principal(api, asked)
            refuse_unless_allowed(operation, principal)
        length = asked.headers.get("content-length", "")
        if length.isdigit() and int(length[:20]) > operation.largest_body:
            raise _too_large(operation)
        held = _Bytes(api, principal)
        try:
            try:
                if operation.permission is not None:
                    api.buckets.take(principal.name)
                data = await _body(asked, operation, held)
            except Refused as refused:
                if refused.problem.status in (429, 503):
                    await _pass_over(asked)
                raise
            given = asked.scope["query_string"]
            query = operation.read_query(parse_qsl(given.decode("latin-1"), keep_blank_values=True) if given else [])
            written: dict[str, str] = {}
            body = operation.read_body(data, written)
            call = Call(
                operation.permission, principal, asked.scope["path_params"], query, body, asked.headers, asked.left
            )
            try:
                return await operation.handler(api, call)
            except Invalid as error:
                raise with_names_as_written(error, written) from None
        finally:
            held.give_back()

    # Probes would be most of the spans, and a stream has no end.
    if api.tracing is None or not operation.traced:
        return enter
    return _recorded(enter, operation, api.tracing, api.clock)


def _recorded(enter: Door, operation: Operation, tracing: "Tracing", clock: Clock) -> Door:
    """Wrap a request handler in a span, which continues the trace of the caller if there is one."""

    async def enter_recorded(asked: Asked, send: Send) -> None:
        with tracing.serving(operation.method, operation.path, operation.name, asked.headers, clock) as answered:

            async def send_on(message: Any) -> None:
                if message["type"] == "http.response.start":
                    answered(message["status"])
                await send(message)

            await enter(asked, send_on)

    return enter_recorded


class _Bytes:
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
        more = max(self._size - _UNCOUNTED, 0) - self._taken
        if more:
            self._api.bodies.take(self._principal, more)
            self._taken += more
        return self._size

    def give_back(self) -> None:
        if self._taken:
            self._api.bodies.give_back(self._principal, self._taken)


def _too_large(operation: Operation) -> Refused:
    return Refused(413, "Content too large", f"at most {operation.largest_body} bytes")


def _late(operation: Operation) -> Refused:
    return Refused(
        503,
        "Not done in time",
        f"it took longer than {operation.within:g} s; what was asked may or may not have happened",
        hint="ask again, with the same idempotency key if you submit",
        retry_after=1,
    )


async def _principal(api: Api, asked: Asked) -> Principal:
    if not api.auth.required:
        refuse_other_sites(asked)
    try:
        return await api.auth.principal(asked.headers)
    except Refused:
        client = asked.scope.get("client")
        api.refuse_guessing(client[0] if client else "", asked.headers.get("x-forwarded-for"))
        raise


def refuse_other_sites(asked: Asked) -> None:
    """Refuse requests that a foreign web page sends through a browser on this machine.

    Without authentication, a page could reach this server through a name that resolves to it (DNS rebinding), or by
    a cross-site request (CSRF).
    """
    host = asked.headers.get("host", "")
    if not is_loopback(_name_in(host)):
        raise Refused(
            403,
            "Forbidden",
            f"without authentication only local names are answered, not {host[:100]!r}",
            hint="ask localhost, or set auth.mode = keys",
        )
    origin = asked.headers.get("origin")
    if origin is not None and asked.scope["method"] != "GET" and origin.partition("://")[2] != host:
        raise Refused(
            403,
            "Forbidden",
            f"without authentication nothing is changed for pages of {origin[:100]!r}",
            hint="set auth.mode = keys",
        )


def _name_in(host: str) -> str:
    """Return the host name or address in a ``Host`` header, without the port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()


async def _pass_over(asked: Asked) -> None:
    """Read and discard the body, because a client that is still sending would not see the answer."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_BODY_SECONDS):
            async for _ in asked.chunks():
                pass


async def _body(asked: Asked, operation: Operation, held: _Bytes) -> bytes:
    encoding = asked.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise Refused(415, "Unsupported media type", f"bodies in {encoding[:20]} are not read", hint="send it as it is")
    body = await _whole(asked, operation, held)
    if body and operation.method in ("POST", "PUT", "PATCH"):
        kind = asked.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Refused(415, "Unsupported media type", f"a body of type {kind[:40]!r}", hint="application/json")
    return body


async def _whole(asked: Asked, operation: Operation, held: _Bytes) -> bytes:
    parts: list[bytes] = []
    expected = _PIECE_BYTES
    time = asyncio.get_running_loop().time
    end = time() + _BODY_SECONDS
    try:
        async with asyncio.timeout(_PIECE_SECONDS) as pace:
            async for chunk in asked.chunks():
                size = held.add(len(chunk))
                if size > operation.largest_body:
                    raise _too_large(operation)
                parts.append(chunk)
                if size >= expected:
                    expected = size + _PIECE_BYTES
                    pace.reschedule(min(time() + _PIECE_SECONDS, end))
    except TimeoutError:
        raise Refused(
            408,
            "Request timeout",
            f"the body did not come within {_BODY_SECONDS} s, or {_PIECE_BYTES >> 10} KiB of it within "
            f"{_PIECE_SECONDS} s",
        ) from None
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def _send(send: Send, status: int, headers: RawHeaders, content: bytes) -> None:
    length = (b"content-length", str(len(content)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": content, "more_body": False})


async def stream(
    send: Send, asked: Asked, headers: RawHeaders, source: AsyncIterator[bytes], no_longer: Coroutine[Any, Any, None]
) -> None:
    """Stream until the source ends, the listener leaves, or its credentials become invalid."""
    last: Any = {"type": "http.response.body", "body": b"", "more_body": False}

    async def pump() -> None:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for chunk in source:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send(last)

    refused = asyncio.create_task(no_longer)
    tasks = [asyncio.create_task(pump()), asyncio.create_task(asked.left()), refused]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception):
                _log.warning("a stream broke off", path=asked.scope["path"], error=repr(error))
    if refused.done() and not refused.cancelled():
        with suppress(Exception):
            await asyncio.wait_for(send(last), _GOODBYE_SECONDS)


def _without_body(send: Send) -> Send:
    async def send_head(message: Any) -> None:
        if message["type"] == "http.response.body":
            message["body"] = b""
        await send(message)

    return send_head


def _told(asked: Asked, error: Exception) -> tuple[Problem, Mapping[str, str]]:
    """Return the problem and the headers that answer an error."""
    problem, headers = problem_of(error)
    if not isinstance(error, MainspringError):
        _log.exception("a request failed", path=asked.scope["path"], exc_info=error)
    if problem.status == 401:
        headers = {**headers, "www-authenticate": "Bearer"}
    return problem, {**_HEADERS, **headers}


def _raw(headers: Mapping[str, str], media_type: str) -> RawHeaders:
    named = {"content-type": media_type, **headers}
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in named.items()]
