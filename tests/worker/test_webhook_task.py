"""Delivery of events to the webhooks in the settings."""

import hashlib
import hmac
from collections.abc import Iterator

import msgspec
import pytest

from mainspring.core.model.base.instant import SECOND
from mainspring.core.model.events.webhooks import Delivery, read_webhooks
from mainspring.core.model.runs.handler_errors import GiveUp
from mainspring.core.model.runs.reserved import WEBHOOK
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.ports.egress import Answer
from mainspring.core.runtime.masking import masks
from mainspring.core.worker.builtin.tasks import BuiltinTasks
from mainspring.core.worker.handler import AsyncHandler
from mainspring.core.worker.reporting.capture import capture
from tests.support.builders import a_held_run
from tests.worker.test_http_calls import NOW, URL, Receiver, a_keyring

EVENTS = b'[{"type":"run.dead","data":{"error":"${secret:KEY_ONE} \\u0024{secret:KEY_ONE} {\\"$data\\": 1}"}}]'


@pytest.fixture(autouse=True)
def nothing_is_remembered() -> Iterator[None]:
    yield
    masks.forget()
    capture.show()


def held(name: str = "billing", tenant: str = "default") -> HeldRun:
    payload = msgspec.json.encode(Delivery(name, msgspec.Raw(EVENTS)))
    return msgspec.structs.replace(a_held_run(attempt=2), payload=payload, tenant=tenant)


async def deliver(receiver: Receiver, run: HeldRun) -> None:
    webhooks = read_webhooks({"billing": (URL, "secret=KEY_ONE")})
    tasks = BuiltinTasks(http=False, keyring=a_keyring(KEY_ONE="not to be seen"), webhooks=webhooks)
    handler = tasks.handlers(lambda: receiver, now=lambda: NOW)[WEBHOOK]
    assert isinstance(handler, AsyncHandler)
    await handler.invoke(run)


async def test_events_are_sent_unchanged_and_signed() -> None:
    receiver = Receiver()
    run = held()
    await deliver(receiver, run)
    [sent] = receiver.sent
    assert (sent.method, sent.url, sent.body) == ("POST", URL, EVENTS)
    assert sent.headers["Content-Type"] == "application/cloudevents-batch+json; charset=UTF-8"
    signed = f"{NOW // SECOND}.{run.id}.{run.fence}.".encode() + EVENTS
    expected = hmac.new(b"not to be seen", signed, hashlib.sha256).hexdigest()
    assert sent.headers["X-Mainspring-Signature"] == f"t={NOW // SECOND},v1={expected}"
    assert sent.headers["Idempotency-Key"] == run.id


async def test_a_delivery_is_retried_after_503_and_not_after_400() -> None:
    with pytest.raises(Exception, match="answered with 400") as refused:
        await deliver(Receiver(Answer(status=400, headers={}, body=b"no")), held())
    assert isinstance(refused.value, GiveUp)
    with pytest.raises(Exception, match="answered with 503") as busy:
        await deliver(Receiver(Answer(status=503, headers={}, body=b"no")), held())
    assert not isinstance(busy.value, GiveUp)


async def test_a_delivery_to_an_unknown_webhook_or_of_another_tenant_is_refused() -> None:
    receiver = Receiver()
    for run in (held("other"), held(tenant="acme")):
        with pytest.raises(Exception, match="there is no webhook"):
            await deliver(receiver, run)
    assert receiver.sent == []


def test_the_webhook_task_does_not_exist_without_webhooks() -> None:
    assert WEBHOOK not in BuiltinTasks().handlers(lambda: Receiver())
