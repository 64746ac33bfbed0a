"""The task behind webhooks: delivers a signed batch of events, and succeeds if the receiver has accepted it."""

from collections.abc import Callable, Mapping

import msgspec

from mainspring.core.model.base.instant import Instant
from mainspring.core.model.events.webhooks import Delivery, Webhook
from mainspring.core.model.runs.reserved import WEBHOOK
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.ports.egress import Egress, OutgoingRequest
from mainspring.core.worker.builtin.failures import HttpFailed, for_good
from mainspring.core.worker.builtin.http import HttpCall, marks, send
from mainspring.core.worker.handler import AsyncHandler
from mainspring.core.worker.secrets import Keyring

#: A batch of CloudEvents in their HTTP binding.
CONTENT_TYPE = "application/cloudevents-batch+json; charset=UTF-8"


def webhook_handler(
    webhooks: Mapping[str, Webhook], egress: Callable[[], Egress], keyring: Keyring, now: Callable[[], Instant]
) -> AsyncHandler:
    """Build the handler.

    Destination and secret come from the worker's settings: a payload cannot send anything elsewhere.
    """

    async def invoke(held: HeldRun) -> None:
        try:
            delivery = msgspec.json.decode(held.payload, type=Delivery)
        except msgspec.MsgspecError as error:
            raise for_good(HttpFailed, f"this is no delivery: {error}") from None
        webhook = webhooks.get(delivery.webhook)
        if webhook is None or webhook.owner != held.tenant:
            raise HttpFailed(f"there is no webhook {delivery.webhook!r:.60} of {held.tenant} in the settings here")
        call = HttpCall(url=webhook.url, method="POST")
        # Sent as stored, byte for byte: events contain no secret placeholders, even if an error text looks like one.
        body = bytes(delivery.events)
        headers = {"Content-Type": CONTENT_TYPE, "User-Agent": "mainspring"}
        headers |= marks(held, keyring.read(held.tenant, webhook.secret), now, body)
        request = OutgoingRequest(method="POST", url=webhook.url, headers=headers, body=body, timeout=call.limit())
        await send(call, request, egress(), held.tenant)

    return AsyncHandler(WEBHOOK, invoke, harmless=True)
