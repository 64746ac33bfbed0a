"""Runs the API on a store in this process: requests go to the same handlers as those of a server."""

import getpass
import re
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qsl, unquote

import httpx2
import msgspec

from mainspring.config.resources import RESOURCES
from mainspring.core.model.access.access import Principal, Role
from mainspring.core.model.base.errors import MainspringError, StoreUnavailable
from mainspring.http.calls import call_operation
from mainspring.http.context import Api
from mainspring.http.operation import Operation
from mainspring.http.problems import MEDIA_TYPE, build_problem

_encode = msgspec.json.Encoder().encode


class LocalTransport(httpx2.AsyncBaseTransport):
    """Passes requests directly to the handlers.

    The ASGI application is not used: importing and building it takes a second, and streams would be buffered.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._principal = Principal(name=_get_author(), role=Role.ADMIN, tenant=None)
        self._operations = [
            (operation, re.compile(re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", operation.path)))
            for resource in RESOURCES
            for operation in resource.operations
        ]

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.raw_path.decode("ascii").partition("?")[0]
        for operation, pattern in self._operations:
            found = pattern.fullmatch(path)
            if found and operation.method == request.method:
                names = {name: unquote(value) for name, value in found.groupdict().items()}
                return await self._answer(operation, names, request)
        raise AssertionError(f"no operation for {request.method} {path}")

    async def _answer(self, operation: Operation, names: dict[str, str], request: httpx2.Request) -> httpx2.Response:
        try:
            answer = await call_operation(
                self._api,
                operation,
                self._principal,
                path=names,
                query=parse_qsl(request.url.query.decode("latin-1"), keep_blank_values=True),
                body=await request.aread(),
                headers={name.lower(): value for name, value in request.headers.items()},
            )
        except StoreUnavailable:
            # Keep the store's own message, which an API would hide.
            raise
        except MainspringError as error:
            problem, more = build_problem(error)
            return httpx2.Response(
                problem.status, headers={**more, "content-type": MEDIA_TYPE}, content=_encode(problem)
            )
        kind = {"content-type": operation.media_type}
        if operation.streams:
            return httpx2.Response(answer.status, headers=kind, stream=_Stream(answer.body))
        content = _encode(answer.body) if answer.raw is None else answer.raw
        return httpx2.Response(answer.status, headers=kind, content=content)


class _Stream(httpx2.AsyncByteStream):
    def __init__(self, source: AsyncIterator[bytes]) -> None:
        self._source: Any = source

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._source:
            yield part


def _get_author() -> str:
    """Return the author for the audit log: people at a shell have a login instead of a key."""
    try:
        return f"cli:{getpass.getuser()}"
    except (OSError, KeyError):
        return "cli"
