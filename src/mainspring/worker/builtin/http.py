"""The task ``http``: call a URL, and succeed if the answer is as expected."""

from collections.abc import Callable
from http import HTTPStatus
from typing import Literal

import msgspec

from mainspring.domain.errors import Invalid
from mainspring.domain.instant import HOUR, MILLISECOND, Micros, isoformat, parse_duration
from mainspring.domain.run import MAX_RESULT, HeldRun
from mainspring.ports.egress import Answer, Egress, NoAnswer, Outgoing
from mainspring.worker.builtin.text import head, readable
from mainspring.worker.handler import AsyncHandler
from mainspring.worker.trace import Told

TASK = "http"
_SHOWN = 2_000
_KEPT_HEADERS = ("content-type", "date", "etag", "last-modified", "location", "retry-after", "x-request-id")
_MAX_HEADER = 500
#: What a receiver may tell its caller to come back for. Any other 4xx stays as it is however often one asks.
_WORTH_ANOTHER_TRY = (408, 425, 429)
_SET_BY_US = frozenset(
    {"idempotency-key", "x-mainspring-run", "x-mainspring-attempt", "x-mainspring-fence", "x-mainspring-tick"}
)


class HttpFailed(Told):
    """There was no answer, or another one than expected, or the call was refused."""


class HttpCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The payload."""

    url: str
    #: POST if there is a body, else GET.
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] | None = None
    headers: dict[str, str] = {}
    #: A string is sent as it is, anything else as JSON.
    body: msgspec.Raw = msgspec.Raw()
    timeout: int | float | str = "30s"
    #: None named: every 2xx.
    expect_status: list[int] = []

    @property
    def verb(self) -> str:
        return self.method or ("POST" if bytes(self.body) else "GET")

    def expects(self, status: int) -> bool:
        return status in self.expect_status if self.expect_status else 200 <= status < 300

    def limit(self) -> Micros:
        limit = parse_duration(self.timeout, "timeout")
        if not MILLISECOND <= limit <= HOUR:
            raise Invalid("timeout", "is out of range", "1ms to 1h")
        return limit


_decode = msgspec.json.Decoder(HttpCall).decode


def read_call(payload: bytes) -> HttpCall:
    """A payload, checked as far as that goes without asking anybody."""
    try:
        call = _decode(payload)
    except msgspec.MsgspecError as error:
        raise Invalid("payload", str(error), 'for example {"url": "https://example.org/hook"}') from None
    if not call.url.lower().startswith(("http://", "https://")):
        raise Invalid("payload.url", "is not HTTP", "http:// or https://")
    for name in call.headers:
        if name.lower() in _SET_BY_US:
            raise Invalid("payload.headers", f"{name} is set by Mainspring")
    if not all(100 <= status <= 599 for status in call.expect_status):
        raise Invalid("payload.expectStatus", "holds what is no status", "100 to 599")
    call.limit()
    return call


def http_handler(egress: Callable[[], Egress]) -> AsyncHandler:
    """``egress`` is asked when the first call is made: most workers never make one."""

    async def invoke(held: HeldRun) -> bytes:
        try:
            call = read_call(held.payload)
            answer = await egress().send(_request(call, held))
        except (Invalid, NoAnswer) as error:
            raise HttpFailed(str(error)) from None
        if not call.expects(answer.status):
            raise HttpFailed(_complaint(call, answer))
        return _result(answer)

    return AsyncHandler(TASK, invoke, harmless=True)


def _request(call: HttpCall, held: HeldRun) -> Outgoing:
    body: bytes | None = bytes(call.body) or None
    kind = "application/json"
    if body is not None and body.startswith(b'"'):
        body, kind = msgspec.json.decode(body, type=str).encode("utf-8", "replace"), "text/plain; charset=utf-8"
    headers = dict(call.headers)
    given = {name.lower() for name in headers}
    if body is not None and "content-type" not in given:
        headers["Content-Type"] = kind
    if "user-agent" not in given:
        headers["User-Agent"] = "mainspring"
    headers["Idempotency-Key"] = headers["X-Mainspring-Run"] = held.id
    headers["X-Mainspring-Attempt"] = str(held.attempt)
    headers["X-Mainspring-Fence"] = str(held.fence)
    if held.scheduled_at is not None:
        headers["X-Mainspring-Tick"] = isoformat(held.scheduled_at)
    return Outgoing(method=call.verb, url=call.url, headers=headers, body=body, timeout=call.limit())


def _result(answer: Answer) -> bytes:
    kept = {name: answer.headers[name][:_MAX_HEADER] for name in _KEPT_HEADERS if name in answer.headers}
    found: dict[str, object] = {"status": answer.status, "headers": kept, "body": ""}
    text = _text(answer)
    shown = head(text, MAX_RESULT - len(msgspec.json.encode(found)) - 100)
    found["body"] = shown
    if answer.cut or len(shown) < len(text):
        found["truncated"] = True
    return msgspec.json.encode(found)


def _text(answer: Answer) -> str:
    """Packed answers are asked not to come; one that comes all the same is not unpacked: it may be a bomb."""
    return "" if answer.headers.get("content-encoding", "identity") != "identity" else readable(answer.body)


def _complaint(call: HttpCall, answer: Answer) -> str:
    """The start of the body, then the status as the last line, by which failures are grouped."""
    lines = [_text(answer)[:_SHOWN].strip()]
    # Without the query: it may hold a secret.
    where = call.url.partition("?")[0].partition("#")[0]
    line = f"{call.verb} {where} was answered with {answer.status} {_phrase(answer.status)}".rstrip()
    if 300 <= answer.status < 400:
        line += "; redirects are not followed"
    elif 400 <= answer.status < 500 and answer.status not in _WORTH_ANOTHER_TRY:
        line += "; another try is unlikely to change that"
    lines.append(line)
    return "\n".join(filter(None, lines))


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
