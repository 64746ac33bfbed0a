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
from mainspring.http.context import Api
from mainspring.http.docs.openapi import build_document
from mainspring.http.docs.page import render
from mainspring.http.operation import Answer, Call, Operation, Resource
from mainspring.http.problems import MEDIA_TYPE, Problem, RequestError, UnknownPath, build_problem, restore_names
from mainspring.http.requests import BodyReservation, Request, discard_body, read_body, refuse_large_body
from mainspring.http.routing import Routes

if TYPE_CHECKING:
    from mainspring.core.runtime.tracing.spans import Tracing

_log = get_logger("mainspring.api")
RequestHandler: TypeAlias = Callable[["Request", Send], Awaitable[None]]
RawHeaders: TypeAlias = list[tuple[bytes, bytes]]
_encoder = msgspec.json.Encoder()
#: How long to wait for a client that was refused and does not read.
_GOODBYE_SECONDS = 1
_HEADERS = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}


def make_app(api: Api, resources: Sequence[Resource]) -> ASGIApp:
    api.openapi, api.docs = render_documents(tuple(resources))
    by_path: dict[str, list[Operation]] = {}
    for resource in resources:
        for operation in resource.operations:
            by_path.setdefault(operation.path, []).append(operation)
    routes = Routes({path: _make_path_app(api, operations) for path, operations in by_path.items()})
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
            problem, headers = build_problem(UnknownPath(path, literal))
            await _send(send, 404, _encode_headers({**_HEADERS, **headers}, MEDIA_TYPE), _encoder.encode(problem))

    return app


async def _answer_lifespan(receive: Receive, send: Send) -> None:
    """Answer the lifespan messages.

    The process that created the application starts and stops the services behind it.
    """
    for phase in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{phase}.complete"})


@cache
def render_documents(resources: tuple[Resource, ...]) -> tuple[bytes, bytes]:
    """Return the OpenAPI document and the HTML page that is rendered from it."""
    made = build_document(resources, metadata.version("mainspring"))
    return msgspec.json.encode(made), render(made)


def _make_path_app(api: Api, operations: list[Operation]) -> ASGIApp:
    """Return the application for one path, which dispatches by method."""
    handlers: dict[str, RequestHandler] = {operation.method: _make_handler(api, operation) for operation in operations}
    allowed = ", ".join(sorted(handlers))

    # Probes may send HEAD.
    accepts_head = any(operation.method == "GET" and operation.permission is None for operation in operations)

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        handler = handlers.get(scope["method"])
        if scope["method"] == "HEAD" and accepts_head:
            handler, send = handlers["GET"], _drop_body(send)
        if handler is None:
            api.metrics.count("none", 405)
            problem = Problem(title="Method not allowed", status=405, hint=allowed)
            await _send(
                send, 405, _encode_headers({**_HEADERS, "allow": allowed}, MEDIA_TYPE), _encoder.encode(problem)
            )
        else:
            await handler(request, send)

    return handle


def _make_handler(api: Api, operation: Operation) -> RequestHandler:
    """Return the request handler of one operation: authenticate, authorize, decode, then call its handler."""
    latency = api.metrics.latency(operation.name)
    usual_headers = _encode_headers(_HEADERS, operation.media_type)

    async def handle_request(request: Request, send: Send) -> None:
        began = api.clock.monotonic()
        try:
            try:
                async with asyncio.timeout(operation.within) as limit:
                    answer = await handle_call(request)
            except TimeoutError:
                if not limit.expired():
                    raise
                raise _refuse_late(operation) from None
            content = (
                answer.raw if answer.raw is not None else b"" if operation.streams else _encoder.encode(answer.body)
            )
        except Exception as error:
            problem, headers = _describe_error(request, error)
            api.metrics.count(operation.name, problem.status)
            await _send(send, problem.status, _encode_headers(headers, MEDIA_TYPE), _encoder.encode(problem))
            return
        api.metrics.count(operation.name, answer.status)
        raw = (
            usual_headers
            if not answer.headers
            else _encode_headers({**_HEADERS, **answer.headers}, operation.media_type)
        )
        if operation.streams:
            await send_stream(
                send,
                request,
                raw,
                answer.body,
                api.auth.wait_for_revocation(lambda: api.auth.principal(request.headers)),
            )
            return
        latency.add(api.clock.monotonic() - began)
        await _send(send, answer.status, raw, content)

    async def handle_call(request: Request) -> Answer:
        principal = api.anonymous
        if operation.permission is not None:
            principal = await _authenticate(api, request)
            operation.check_permission(principal)
        length = request.headers.get("content-length", "")
        if length.isdigit() and int(length[:20]) > operation.largest_body:
            raise refuse_large_body(operation)
        reservation = BodyReservation(api, principal)
        try:
            try:
                if operation.permission is not None:
                    api.buckets.take(principal.name)
                data = await read_body(request, operation, reservation)
            except RequestError as refused:
                if refused.problem.status in (429, 503):
                    await discard_body(request)
                raise
            given = request.scope["query_string"]
            query = operation.read_query(parse_qsl(given.decode("latin-1"), keep_blank_values=True) if given else [])
            written: dict[str, str] = {}
            body = operation.read_body(data, written)
            call = Call(
                operation.permission,
                principal,
                request.scope["path_params"],
                query,
                body,
                request.headers,
                request.wait_for_disconnect,
            )
            try:
                return await operation.handler(api, call)
            except Invalid as error:
                raise restore_names(error, written) from None
        finally:
            reservation.release()

    # Probes would be most of the spans, and a stream has no end.
    if api.tracing is None or not operation.traced:
        return handle_request
    return _trace(handle_request, operation, api.tracing, api.clock)


def _trace(handle_request: RequestHandler, operation: Operation, tracing: "Tracing", clock: Clock) -> RequestHandler:
    """Wrap a request handler in a span, which continues the trace of the caller if there is one."""

    async def traced(request: Request, send: Send) -> None:
        with tracing.serving(operation.method, operation.path, operation.name, request.headers, clock) as answered:

            async def send_on(message: Any) -> None:
                if message["type"] == "http.response.start":
                    answered(message["status"])
                await send(message)

            await handle_request(request, send_on)

    return traced


def _refuse_late(operation: Operation) -> RequestError:
    return RequestError(
        503,
        "Not done in time",
        f"it took longer than {operation.within:g} s; what was asked may or may not have happened",
        hint="ask again, with the same idempotency key if you submit",
        retry_after=1,
    )


async def _authenticate(api: Api, request: Request) -> Principal:
    if not api.auth.required:
        refuse_other_sites(request)
    try:
        return await api.auth.principal(request.headers)
    except RequestError:
        client = request.scope.get("client")
        api.count_wrong_credentials(client[0] if client else "", request.headers.get("x-forwarded-for"))
        raise


def refuse_other_sites(request: Request) -> None:
    """Refuse requests that a foreign web page sends through a browser on this machine.

    Without authentication, a page could reach this server through a name that resolves to it (DNS rebinding), or by
    a cross-site request (CSRF).
    """
    host = request.headers.get("host", "")
    if not is_loopback(_parse_host(host)):
        raise RequestError(
            403,
            "Forbidden",
            f"without authentication only local names are answered, not {host[:100]!r}",
            hint="ask localhost, or set auth.mode = keys",
        )
    origin = request.headers.get("origin")
    if origin is not None and request.scope["method"] != "GET" and origin.partition("://")[2] != host:
        raise RequestError(
            403,
            "Forbidden",
            f"without authentication nothing is changed for pages of {origin[:100]!r}",
            hint="set auth.mode = keys",
        )


def _parse_host(host: str) -> str:
    """Return the host name or address in a ``Host`` header, without the port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()


async def _send(send: Send, status: int, headers: RawHeaders, content: bytes) -> None:
    length = (b"content-length", str(len(content)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": content, "more_body": False})


async def send_stream(
    send: Send, request: Request, headers: RawHeaders, source: AsyncIterator[bytes], revoked: Coroutine[Any, Any, None]
) -> None:
    """Stream until the source ends, the listener leaves, or its credentials become invalid."""
    last: Any = {"type": "http.response.body", "body": b"", "more_body": False}

    async def pump() -> None:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for chunk in source:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send(last)

    refused = asyncio.create_task(revoked)
    tasks = [asyncio.create_task(pump()), asyncio.create_task(request.wait_for_disconnect()), refused]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception):
                _log.warning("stream interrupted", path=request.scope["path"], error=repr(error))
    if refused.done() and not refused.cancelled():
        with suppress(Exception):
            await asyncio.wait_for(send(last), _GOODBYE_SECONDS)


def _drop_body(send: Send) -> Send:
    async def send_head(message: Any) -> None:
        if message["type"] == "http.response.body":
            message["body"] = b""
        await send(message)

    return send_head


def _describe_error(request: Request, error: Exception) -> tuple[Problem, Mapping[str, str]]:
    """Return the problem and the headers that answer an error."""
    problem, headers = build_problem(error)
    if not isinstance(error, MainspringError):
        _log.exception("request failed", path=request.scope["path"], exc_info=error)
    if problem.status == 401:
        headers = {**headers, "www-authenticate": "Bearer"}
    return problem, {**_HEADERS, **headers}


def _encode_headers(headers: Mapping[str, str], media_type: str) -> RawHeaders:
    named = {"content-type": media_type, **headers}
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in named.items()]
