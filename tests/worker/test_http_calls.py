"""The task ``http``: bodies with references, signatures, secrets, and retries by status."""

import hashlib
import hmac
from collections.abc import Iterator

import msgspec
import pytest

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import DAY, MINUTE, SECOND
from mainspring.core.model.base.secrets import SecretRules
from mainspring.core.model.runs.handler_errors import GiveUp, RetryLater
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.ports.egress import Answer, NoAnswer, OutgoingRequest
from mainspring.core.runtime.masking import masks
from mainspring.core.worker.builtin.tasks import BuiltinTasks
from mainspring.core.worker.handler import AsyncHandler
from mainspring.core.worker.reporting.capture import capture
from mainspring.core.worker.reporting.trace import describe
from mainspring.core.worker.secrets import Keyring
from tests.support.builders import a_held_run

URL = "https://hooks.example/a"
NOW = 1_800_000_000 * SECOND + 999


@pytest.fixture(autouse=True)
def nothing_is_remembered() -> Iterator[None]:
    yield
    masks.forget()
    capture.show()


class Kept:
    """Secrets in a dictionary."""

    def __init__(self, **values: str) -> None:
        self._values = values

    def read(self, name: str) -> str | None:
        return self._values.get(name)


class Receiver:
    """Records the requests."""

    def __init__(self, answer: Answer | Exception | None = None) -> None:
        self.answer = answer or Answer(status=200, headers={}, body=b"ok")
        self.sent: list[OutgoingRequest] = []

    async def send(self, request: OutgoingRequest) -> Answer:
        self.sent.append(request)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def held_for(tenant: str = "default", **payload: object) -> HeldRun:
    return msgspec.structs.replace(a_held_run(attempt=2), payload=msgspec.json.encode(payload), tenant=tenant)


def a_keyring(**values: str) -> Keyring:
    return Keyring(Kept(**values), SecretRules({"default": ("*",), "acme": ("OWN",)}))


async def call(receiver: Receiver, held: HeldRun, **secrets: str) -> bytes | None:
    handler = BuiltinTasks(keyring=a_keyring(**secrets)).handlers(lambda: receiver, now=lambda: NOW)["http"]
    assert isinstance(handler, AsyncHandler)
    return await handler.invoke(held)


async def failure(status: int, retry_on: list[int | str] | None = None, **headers: str) -> BaseException:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    receiver = Receiver(Answer(status=status, headers=named, body=b"why"))
    payload = {"url": URL} if retry_on is None else {"url": URL, "retryOn": retry_on}
    with pytest.raises(Exception, match=f"was answered with {status}") as raised:
        await call(receiver, held_for(**payload))
    return raised.value


# Bodies


async def test_values_of_the_run_and_of_the_data_are_placed_in_the_body() -> None:
    receiver = Receiver()
    wild = {"name": 'a"}, "admin": true', "n": 1.50}
    body = {"run": {"$run": "id"}, "try": {"$run": "attempt"}, "customer": {"$data": "customer"}, "n": 1}
    held = held_for(url=URL, data={"customer": wild}, body=body)
    await call(receiver, held)
    assert msgspec.json.decode(receiver.sent[0].body or b"") == {"run": held.id, "try": 2, "customer": wild, "n": 1}


async def test_a_body_without_references_is_sent_unchanged() -> None:
    receiver = Receiver()
    text = b'{"url": "https://hooks.example/a", "body": { "n":1.50,  "e": 1e2}}'
    await call(receiver, msgspec.structs.replace(held_for(), payload=text))
    assert receiver.sent[0].body == b'{ "n":1.50,  "e": 1e2}'


# Signatures


async def test_a_call_is_signed_with_the_time_the_run_the_fence_and_the_body() -> None:
    receiver = Receiver()
    held = held_for(url=URL, body={"n": 1}, sign="HOOK_KEY")
    await call(receiver, held, HOOK_KEY="a long enough key")
    (sent,) = receiver.sent
    signed = f"1800000000.{held.id}.{held.fence}.".encode() + b'{"n":1}'
    expected = hmac.new(b"a long enough key", signed, hashlib.sha256).hexdigest()
    assert sent.headers["X-Mainspring-Signature"] == f"t=1800000000,v1={expected}"


# Secrets


async def test_secrets_are_placed_in_the_url_headers_and_body() -> None:
    receiver = Receiver()
    held = held_for(
        url=URL + "/${secret:TOKEN}?k=${secret:TOKEN}",
        headers={"Authorization": "Bearer ${secret:TOKEN}"},
        body={"deep": [{"password": "<${secret:TOKEN}>"}], "id": {"$run": "id"}},
    )
    await call(receiver, held, TOKEN='a/b "c&d')
    (sent,) = receiver.sent
    assert sent.url == URL + "/a%2Fb%20%22c%26d?k=a%2Fb%20%22c%26d"
    assert sent.headers["Authorization"] == 'Bearer a/b "c&d'
    assert msgspec.json.decode(sent.body or b"") == {"deep": [{"password": '<a/b "c&d>'}], "id": held.id}


async def test_secrets_echoed_by_the_receiver_are_masked_even_in_a_truncated_answer() -> None:
    value = "hidden-value-0123456789"
    body = b"x" * 1_400 + value.encode() * 200
    receiver = Receiver(Answer(status=500, headers={"location": value}, body=body, cut=True))
    held = held_for(url=URL, headers={"X": "${secret:TOKEN}"})
    with pytest.raises(Exception, match="500") as raised:
        await call(receiver, held, TOKEN=value)
    shown = describe(raised.value)
    assert "***" in shown
    assert "hidden-v" not in shown
    receiver.answer = Answer(status=200, headers={"location": value}, body=body + value[:15].encode(), cut=True)
    result = await call(receiver, held, TOKEN=value) or b""
    assert b"***" in result
    assert b"hidden" not in result


@pytest.mark.parametrize(
    ("tenant", "payload", "words"),
    [
        ("default", {"headers": {"X": "${secret:ABSENT}"}}, "there is no ABSENT here"),
        ("acme", {"headers": {"X": "${secret:TOKEN}"}}, "tenant 'acme' may not use the secret TOKEN"),
        ("default", {"headers": {"X": "${secret:SHORT}"}}, "SHORT: the secret has 3 characters"),
        ("acme", {"sign": "TOKEN"}, "tenant 'acme' may not use the secret TOKEN"),
    ],
)
async def test_an_unavailable_secret_fails_the_run_and_is_named(
    tenant: str, payload: dict[str, object], words: str
) -> None:
    receiver = Receiver()
    with pytest.raises(GiveUp, match=words):
        await call(receiver, held_for(tenant, url=URL, **payload), TOKEN="long enough", SHORT="abc")
    assert receiver.sent == []


def test_a_secret_that_a_tenant_may_not_use_is_rejected_at_submit() -> None:
    tasks = BuiltinTasks(keyring=a_keyring(), commands=True, env=["A"])
    for task, payload in {
        "http": {"url": URL, "headers": {"X": "${secret:TOKEN}"}},
        "shell": {"command": ["true"], "env": {"A": "${secret:TOKEN}"}},
    }.items():
        encoded = msgspec.json.encode(payload)
        with pytest.raises(Invalid, match="tenant 'acme' may not use the secret TOKEN"):
            tasks.check(task, encoded, "acme")
        tasks.check(task, encoded, "default")
        tasks.check(task, encoded.replace(b"TOKEN", b"OWN"), "acme")
    with pytest.raises(Invalid, match=r"payload\.sign: tenant 'acme'"):
        tasks.check("http", msgspec.json.encode({"url": URL, "sign": "TOKEN"}), "acme")
    with pytest.raises(Invalid, match="without its end"):
        tasks.check("http", msgspec.json.encode({"url": URL, "headers": {"X": "${secret:A"}}))


# Retries by status


@pytest.mark.parametrize("status", [400, 401, 404, 410, 422, 301, 304])
async def test_a_permanent_error_status_is_not_retried(status: int) -> None:
    assert isinstance(await failure(status), GiveUp)


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 599])
async def test_a_temporary_error_status_is_retried_by_the_policy(status: int) -> None:
    assert not isinstance(await failure(status), GiveUp | RetryLater)


async def test_the_payload_can_list_the_statuses_to_retry() -> None:
    assert isinstance(await failure(503, [429]), GiveUp)
    assert not isinstance(await failure(404, [404, "5xx"]), GiveUp)
    assert not isinstance(await failure(418, ["4xx"]), GiveUp)


async def test_a_call_without_an_answer_is_retried() -> None:
    with pytest.raises(Exception, match="connection refused") as raised:
        await call(Receiver(NoAnswer("connection refused")), held_for(url=URL))
    assert not isinstance(raised.value, GiveUp | RetryLater)


@pytest.mark.parametrize(
    ("headers", "delay"),
    [
        ({"retry_after": "120"}, 2 * MINUTE),
        ({"retry_after": "0"}, 0),
        ({"retry_after": "999999999"}, DAY),
        ({"retry_after": "Thu, 01 Jan 2026 00:05:00 GMT", "date": "Thu, 01 Jan 2026 00:00:00 GMT"}, 5 * MINUTE),
        ({"retry_after": "Thu, 01 Jan 2026 00:00:00 GMT", "date": "Thu, 01 Jan 2026 00:05:00 GMT"}, 0),
    ],
)
async def test_a_retry_after_header_sets_the_delay(headers: dict[str, str], delay: int) -> None:
    error = await failure(429, None, **headers)
    assert isinstance(error, RetryLater)
    assert error.delay == delay


@pytest.mark.parametrize("asked", ["soon", "-1", "Thu, 01 Jan 2026 00:05:00 GMT", ""])
async def test_an_unreadable_retry_after_header_is_ignored(asked: str) -> None:
    assert not isinstance(await failure(503, retry_after=asked), RetryLater)
