"""The client of the HTTP API: retries safe requests and turns problems into exceptions."""

from collections.abc import AsyncGenerator, Mapping
from random import Random
from typing import Any, TypeVar

import httpx2
import msgspec

from mainspring.core.model.base.errors import Conflict, Denied, Invalid, MainspringError, NotFound, StoreUnavailable
from mainspring.core.model.base.instant import MILLISECOND, SECOND, Micros
from mainspring.core.ports.clock import Clock
from mainspring.core.runtime.backoff import Backoff
from mainspring.core.runtime.tracing.current import current_traceparent
from mainspring.http.problems import Problem

T = TypeVar("T")

#: How long requests to an unavailable API are retried, and the delays between retries.
PATIENCE: Micros = 30 * SECOND
_FIRST_PAUSE: Micros = 100 * MILLISECOND
_LONGEST_PAUSE: Micros = 5 * SECOND
_TIMEOUT = httpx2.Timeout(30, connect=5)
_AGAIN = frozenset({429, 502, 503, 504})
_encode = msgspec.json.Encoder().encode


class ApiClient:
    """A client that belongs to one event loop."""

    def __init__(
        self,
        url: str,
        key: str | None,
        clock: Clock,
        *,
        transport: httpx2.AsyncBaseTransport | None = None,
        patience: Micros | None = None,
    ) -> None:
        """``transport``: sends the requests; the default uses the network."""
        self.clock = clock
        self._patience = PATIENCE if patience is None else patience
        self._random = Random()
        headers = {} if key is None else {"authorization": f"Bearer {_check_key(key)}"}
        self._http = httpx2.AsyncClient(
            base_url=check_url(url), headers=headers, timeout=_TIMEOUT, transport=transport, follow_redirects=False
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def ask(
        self,
        method: str,
        path: str,
        kind: type[T],
        *,
        body: Any = None,
        query: Mapping[str, object] | None = None,
        repeatable: bool | None = None,
    ) -> T:
        """Send a request and decode its answer.

        Requests that only read are retried. ``repeatable`` allows retries of a change that has an idempotency key
        or has the same effect when it is repeated.
        """
        content = None if body is None else _encode(body)
        answer = await self._send(method, path, content, query, method == "GET" if repeatable is None else repeatable)
        try:
            return msgspec.json.decode(answer.content, type=kind)
        except msgspec.MsgspecError as error:
            raise StoreUnavailable(f"{self._http.base_url}: not an answer of this API: {error}") from None

    async def lines(
        self, path: str, query: Mapping[str, object] | None = None, headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[str, None]:
        """Yield the lines of a stream as they arrive. Use ``contextlib.aclosing`` if you may stop early."""
        try:
            async with self._http.stream(
                "GET", path, params=_build_query(query), headers=headers, timeout=httpx2.Timeout(60, connect=5)
            ) as answer:
                if answer.status_code >= 400:
                    await answer.aread()
                    raise _build_error(answer)
                async for line in answer.aiter_lines():
                    yield line
        except httpx2.TransportError as error:
            raise StoreUnavailable(f"{self._http.base_url}: {str(error) or type(error).__name__}") from error

    async def _send(
        self, method: str, path: str, content: bytes | None, query: Mapping[str, object] | None, repeatable: bool
    ) -> httpx2.Response:
        headers = {} if content is None else {"content-type": "application/json"}
        if traceparent := current_traceparent():
            headers["traceparent"] = traceparent
        give_up_at = self.clock.monotonic() + self._patience
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while True:
            wait = pause = backoff.next()
            try:
                answer = await self._http.request(
                    method, path, content=content, params=_build_query(query), headers=headers
                )
            except httpx2.TransportError as error:
                # Without a connection nothing was sent, so a retry is safe.
                safe = repeatable or isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
                if not safe or self.clock.monotonic() + pause > give_up_at:
                    raise StoreUnavailable(f"{self._http.base_url}: {str(error) or type(error).__name__}") from error
            else:
                if answer.status_code < 400:
                    return answer
                said = answer.headers.get("retry-after", "")
                wait = max(pause, int(said) * SECOND if said.isdecimal() else 0)
                # The request was refused before anything was done, or is safe to repeat.
                again = answer.status_code == 429 or (answer.status_code in _AGAIN and repeatable)
                if not again or self.clock.monotonic() + wait > give_up_at:
                    raise _build_error(answer)
            await self.clock.sleep(round(wait * (1 + self._random.random() / 4)))


def _check_key(key: str) -> str:
    # The key is not shown: it may be valid except for a trailing line break.
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise Invalid("key", "is not a key", "letters, digits and signs of ASCII, without spaces and line ends")
    return key


def check_url(url: str) -> str:
    try:
        read = httpx2.URL(url)
    except httpx2.InvalidURL:
        read = httpx2.URL("")
    if read.scheme not in ("http", "https") or not read.host:
        raise Invalid("url", f"{url[:60]!r} is not the address of an API", "for example http://127.0.0.1:7070")
    return url.rstrip("/")


def _build_query(given: Mapping[str, object] | None) -> dict[str, str]:
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in (given or {}).items()
        if value is not None
    }


def _build_error(answer: httpx2.Response) -> MainspringError:
    status = answer.status_code
    try:
        problem = msgspec.json.decode(answer.content, type=Problem)
    except msgspec.MsgspecError:
        return StoreUnavailable(f"{answer.url.host} answered {status}, and not as this API does")
    detail = problem.detail or problem.title
    match status:
        case 400 | 413 | 415:
            reason = detail.removeprefix(f"{problem.field}: ")
            return Invalid(problem.field or "request", reason, problem.hint)
        case 401 | 403:
            return Denied(f"{detail} ({problem.hint})" if problem.hint else detail)
        case 404:
            return NotFound(detail)
        case 409:
            return Conflict(detail, problem.existing_id)
        case _:
            return StoreUnavailable(f"the API answered {status}: {detail}")
