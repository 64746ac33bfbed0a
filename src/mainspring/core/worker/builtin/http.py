"""The task ``http``: calls a URL, and succeeds if the answer is as expected."""

import re
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Literal
from urllib.parse import quote

import msgspec

from mainspring.core.model.alerts.outgoing import check_url, checked_headers
from mainspring.core.model.base.decode_errors import explain_payload_error
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import (
    DAY,
    HOUR,
    MILLISECOND,
    SECOND,
    Instant,
    Micros,
    isoformat,
    parse_duration,
)
from mainspring.core.model.base.secrets import check_secret_name, fill, fill_json
from mainspring.core.model.runs.names import MAX_RESULT
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.ports.egress import Answer, Egress, NoAnswer, OutgoingRequest
from mainspring.core.runtime.masking import masks
from mainspring.core.runtime.tracing.current import current_traceparent
from mainspring.core.worker.builtin import signature
from mainspring.core.worker.builtin.failures import HttpFailed, for_good, for_now
from mainspring.core.worker.builtin.template import check_template, fill_template, is_template
from mainspring.core.worker.builtin.text import head, readable
from mainspring.core.worker.handler import AsyncHandler
from mainspring.core.worker.reporting.attempt_reporter import current
from mainspring.core.worker.reporting.trace import ReportedError
from mainspring.core.worker.secrets import NO_SECRETS, Keyring

TASK = "http"
_SHOWN = 2_000
_KEPT_HEADERS = ("content-type", "date", "etag", "last-modified", "location", "retry-after", "x-request-id")
_MAX_HEADER = 500
#: Other 4xx statuses would not change on a retry, and redirects are not followed.
_RETRY_ON: tuple[int | str, ...] = ("5xx", 408, 425, 429)
_CLASS = re.compile("[1-5]xx")
_LONGEST_PAUSE: Micros = DAY
_SET_BY_US = frozenset(
    {"idempotency-key", "x-mainspring-run", "x-mainspring-attempt", "x-mainspring-fence", "x-mainspring-tick"}
    | {signature.HEADER.lower()}
)


class HttpCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The payload."""

    url: str
    #: POST if there is a body, else GET.
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] | None = None
    headers: dict[str, str] = {}
    #: A string is sent unchanged, any other value as JSON.
    body: msgspec.Raw = msgspec.Raw()
    #: Values for the placeholders of the body.
    data: msgspec.Raw = msgspec.Raw(b"null")
    #: The name of the secret that signs the request.
    sign: str = ""
    timeout: int | float | str = "30s"
    #: Empty: every 2xx.
    expect_status: list[int] = []
    #: Statuses, and classes such as 5xx, that are retried.
    retry_on: list[int | str] = msgspec.field(default_factory=lambda: list(_RETRY_ON))

    @property
    def verb(self) -> str:
        return self.method or ("POST" if bytes(self.body) else "GET")

    def expects(self, status: int) -> bool:
        return status in self.expect_status if self.expect_status else 200 <= status < 300

    def retries(self, status: int) -> bool:
        return status in self.retry_on or f"{status // 100}xx" in self.retry_on

    def limit(self) -> Micros:
        limit = parse_duration(self.timeout, "timeout")
        if not MILLISECOND <= limit <= HOUR:
            raise Invalid("timeout", "is out of range", "1ms to 1h")
        return limit


_decode = msgspec.json.Decoder(HttpCall).decode


def read_call(payload: bytes) -> HttpCall:
    """Decode and check a payload, as far as that is possible without other services."""
    try:
        call = _decode(payload)
    except msgspec.MsgspecError as error:
        raise explain_payload_error(
            error, HttpCall, payload, 'for example {"url": "https://example.org/hook"}'
        ) from None
    check_url(call.url, "payload.url")
    checked_headers(call.headers, "payload.headers")
    for name in call.headers:
        if name.lower() in _SET_BY_US:
            raise Invalid("payload.headers", f"{name} is set by Mainspring")
    if not all(100 <= status <= 599 for status in call.expect_status):
        raise Invalid("payload.expectStatus", "holds what is no status", "100 to 599")
    for status in call.retry_on:
        known = 100 <= status <= 599 if isinstance(status, int) else _CLASS.fullmatch(status) is not None
        if not known:
            raise Invalid("payload.retryOn", f"{status!r:.40} is no status", "100 to 599, or a class as in 5xx")
    if call.sign:
        check_secret_name("payload.sign", call.sign)
    if is_template(bytes(call.body)):
        check_template(msgspec.json.decode(call.body), msgspec.json.decode(call.data))
    call.limit()
    return call


def http_handler(
    egress: Callable[[], Egress], keyring: Keyring = NO_SECRETS, now: Callable[[], Instant] = lambda: 0
) -> AsyncHandler:
    """Build the handler. ``egress`` is called for the first request: most workers never send one."""

    async def invoke(held: HeldRun) -> bytes:
        try:
            call = read_call(held.payload)
            request = _request(call, held, keyring, now)
        except Invalid as error:
            raise for_good(HttpFailed, str(error)) from None
        return _result(await send(call, request, egress(), held.tenant), held.tenant)

    return AsyncHandler(TASK, invoke, harmless=True)


async def send(call: HttpCall, request: OutgoingRequest, egress: Egress, tenant: str) -> Answer:
    """Return an expected answer. Otherwise raise a failure that says whether it is retried."""
    try:
        answer = await egress.send(request)
    except Invalid as error:
        # A refused address. The name may resolve differently later.
        raise HttpFailed(str(error)) from None
    except NoAnswer as error:
        raise HttpFailed(str(error)) from None
    _log_answer(call, answer)
    if not call.expects(answer.status):
        raise read_status_error(call, answer, tenant)
    return answer


def read_status_error(call: HttpCall, answer: Answer, tenant: str = "") -> ReportedError:
    """Return the failure for an unexpected status, either final or to be retried.

    Its text is the start of the body, with the status as the last line, which is the headline.
    """
    again = call.retries(answer.status)
    line = _line(call, answer)
    if 300 <= answer.status < 400:
        line += "; redirects are not followed"
    elif not again:
        line += "; it is not tried again"
    message = "\n".join(filter(None, [_text(answer, tenant)[:_SHOWN].strip(), line]))
    if not again:
        return for_good(HttpFailed, message)
    pause = retry_after(answer)
    return HttpFailed(message) if pause is None else for_now(HttpFailed, message, pause)


def retry_after(answer: Answer) -> Micros | None:
    """Return the pause that the receiver asks for, at most a day. Dates are relative to the receiver's own clock."""
    asked = answer.headers.get("retry-after", "").strip()
    if re.fullmatch("[0-9]{1,9}", asked):
        return min(int(asked) * SECOND, _LONGEST_PAUSE)
    try:
        pause = parsedate_to_datetime(asked) - parsedate_to_datetime(answer.headers.get("date", ""))
    except (ValueError, TypeError):
        return None
    return max(0, min(round(pause.total_seconds() * SECOND), _LONGEST_PAUSE))


def _request(call: HttpCall, held: HeldRun, keyring: Keyring, now: Callable[[], Instant]) -> OutgoingRequest:
    def read(name: str) -> str:
        return keyring.read(held.tenant, name)

    secret = keyring.needed(held.tenant, held.payload)
    body, kind = _body(call, held, read if secret else None)
    url, headers = call.url, dict(call.headers)
    if secret:
        # In a URL a value is percent-encoded, so that it cannot change the URL's structure.
        url = fill(url, lambda name: quote(read(name), safe=""))
        headers = {name: fill(value, read) for name, value in headers.items()}
    given = {name.lower() for name in headers}
    if body is not None and "content-type" not in given:
        headers["Content-Type"] = kind
    if "user-agent" not in given:
        headers["User-Agent"] = "mainspring"
    if "traceparent" not in given and (trace := current_traceparent()):
        headers["traceparent"] = trace
    headers |= marks(held, read(call.sign) if call.sign else "", now, body or b"")
    return OutgoingRequest(method=call.verb, url=url, headers=headers, body=body, timeout=call.limit())


def marks(held: HeldRun, secret: str, now: Callable[[], Instant], body: bytes) -> dict[str, str]:
    """Return the headers that identify the attempt and run to the receiver; signed if there is a secret."""
    headers = {
        "Idempotency-Key": held.id,
        "X-Mainspring-Run": held.id,
        "X-Mainspring-Attempt": str(held.attempt),
        "X-Mainspring-Fence": str(held.fence),
    }
    if held.scheduled_at is not None:
        headers["X-Mainspring-Tick"] = isoformat(held.scheduled_at)
    if secret:
        headers[signature.HEADER] = signature.signature(secret, now(), held.id, held.fence, body)
    return headers


def _body(call: HttpCall, held: HeldRun, read: Callable[[str], str] | None) -> tuple[bytes | None, str]:
    """Return the body and its content type. Inserted values are not scanned for placeholders again."""
    body: bytes | None = bytes(call.body) or None
    if body is None:
        return None, ""
    if body.startswith(b'"'):
        text = msgspec.json.decode(body, type=str)
        return (fill(text, read) if read else text).encode("utf-8", "replace"), "text/plain; charset=utf-8"
    if is_template(body) or read is not None:
        value = fill_template(msgspec.json.decode(body), msgspec.json.decode(call.data), held)
        body = msgspec.json.encode(value if read is None else fill_json(value, read))
    return body, "application/json"


def _result(answer: Answer, tenant: str) -> bytes:
    kept = {
        name: masks.text(tenant, answer.headers[name])[:_MAX_HEADER] for name in _KEPT_HEADERS if name in answer.headers
    }
    found: dict[str, object] = {"status": answer.status, "headers": kept, "body": ""}
    text = _text(answer, tenant)
    shown = head(text, MAX_RESULT - len(msgspec.json.encode(found)) - 100)
    found["body"] = shown
    if answer.cut or len(shown) < len(text):
        found["truncated"] = True
    return msgspec.json.encode(found)


def _text(answer: Answer, tenant: str) -> str:
    """Return the body of an answer as text.

    Requests ask for uncompressed answers. A compressed one is not decompressed: it may be a decompression bomb. The
    text is masked before it is cut. If the body was cut on reading, its end is removed, where half a secret could
    remain.
    """
    if answer.headers.get("content-encoding", "identity") != "identity":
        return ""
    text = masks.text(tenant, readable(answer.body))
    return text[: max(0, len(text) - masks.longest(tenant))] if answer.cut else text


def _line(call: HttpCall, answer: Answer) -> str:
    # Without the query: it may hold a secret.
    where = call.url.partition("?")[0].partition("#")[0]
    return f"{call.verb} {where} was answered with {answer.status} {_phrase(answer.status)}".rstrip()


def _log_answer(call: HttpCall, answer: Answer) -> None:
    reporter = current.get()
    if reporter is not None:
        reporter.print(f"{_line(call, answer)}, {len(answer.body)} bytes")


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
