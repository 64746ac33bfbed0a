"""The API and the dashboard inside an ASGI application of yours."""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from types import TracebackType
from typing import Any, Self

from mainspring.config.loading import load
from mainspring.config.node import Node, Role
from mainspring.core.model.base.errors import Invalid

_NOT_OPEN = b'{"title":"Not open","status":503,"detail":"Mounted is to be entered in the lifespan of the application"}'


class Mounted:
    """An ASGI application: mount it where you like, and enter it in the lifespan of yours.

    ``settings`` are those of ``mainspring.toml``, by their names. Callers who reach your application reach this
    one, too: with ``auth.mode`` none it is refused, unless ``open_to_all`` says that others see to that.
    """

    def __init__(self, settings: Mapping[str, object] | None = None, *, open_to_all: bool = False) -> None:
        loaded = load(settings)
        if loaded.auth.mode == "none" and not open_to_all:
            raise Invalid("auth.mode", "none would let everybody in who reaches your application", "keys")
        self._node = Node(loaded, {Role.HTTP}, listens=False)

    async def __aenter__(self) -> Self:
        await self._node.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._node.stop()
        await self._node.runtime.close()

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ) -> None:
        if self._node.asgi is not None:
            await self._node.asgi(scope, receive, send)
        elif scope["type"] == "http":
            headers = [(b"content-type", b"application/problem+json")]
            await send({"type": "http.response.start", "status": 503, "headers": headers})
            await send({"type": "http.response.body", "body": _NOT_OPEN})
