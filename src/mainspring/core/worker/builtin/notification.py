"""The task behind alerts: sends one message to its channel."""

from collections.abc import Callable, Mapping
from typing import assert_never

import msgspec

from mainspring.core.model.alerts.alert_messages import (
    Message,
    build_text,
    build_title,
    pagerduty_bodies,
    slack_body,
    webhook_body,
)
from mainspring.core.model.alerts.channels import Channel, ChannelKind
from mainspring.core.model.alerts.outgoing import check_url
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.runs.reserved import NOTIFICATION
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.ports.egress import Egress, OutgoingRequest
from mainspring.core.ports.mail import Email, Mail, MailRejected
from mainspring.core.worker.builtin.failures import HttpFailed, MailFailed, for_good
from mainspring.core.worker.builtin.http import HttpCall, marks, send
from mainspring.core.worker.handler import AsyncHandler
from mainspring.core.worker.secrets import Keyring

#: The ``source`` of a problem in PagerDuty.
_SOURCE = "mainspring"


def notification_handler(channels: Mapping[str, Channel], passing: "AlertRelay") -> AsyncHandler:
    """Build the handler.

    Destination and secret come from the worker's settings: a payload cannot send anything elsewhere.
    """

    async def invoke(held: HeldRun) -> None:
        try:
            message = msgspec.json.decode(held.payload, type=Message)
        except msgspec.MsgspecError as error:
            raise for_good(HttpFailed, f"this is no message: {error}") from None
        channel = channels.get(message.channel)
        if channel is None or channel.tenant != held.tenant:
            raise HttpFailed(f"there is no channel {message.channel!r:.60} of {held.tenant} in the settings here")
        await passing.on(channel, message, held)

    return AsyncHandler(NOTIFICATION, invoke, harmless=True)


class AlertRelay:
    """Formats a message for its channel, and sends it."""

    def __init__(
        self, egress: Callable[[], Egress], mail: Mail | None, keyring: Keyring, now: Callable[[], Instant]
    ) -> None:
        self._egress = egress
        self._mail = mail
        self._keyring = keyring
        self._now = now

    async def on(self, channel: Channel, message: Message, held: HeldRun) -> None:
        secret = self._keyring.read(held.tenant, channel.secret) if channel.secret else ""
        match channel.kind:
            case ChannelKind.SLACK:
                try:
                    check_url(secret, channel.secret)
                except Invalid as error:
                    raise for_good(HttpFailed, f"the secret is no URL: {error.reason}") from None
                await self._post(secret, slack_body(message.alert), {}, held, shown="the webhook of Slack")
            case ChannelKind.PAGERDUTY:
                for body in pagerduty_bodies(message.alert, secret, _SOURCE):
                    await self._post(channel.url, body, {}, held)
            case ChannelKind.WEBHOOK:
                body = webhook_body(message.alert)
                await self._post(channel.url, body, marks(held, secret, self._now, body), held)
            case ChannelKind.EMAIL:
                await self._write(channel, message, secret, held)
            case _:
                assert_never(channel.kind)

    async def _post(self, url: str, body: bytes, headers: Mapping[str, str], held: HeldRun, shown: str = "") -> None:
        """Post a body. ``shown``: the text to show for a URL that is itself a secret."""
        call = HttpCall(url=shown or url, method="POST")
        given = {"Content-Type": "application/json", "User-Agent": "mainspring", **headers}
        request = OutgoingRequest(method="POST", url=url, headers=given, body=body, timeout=call.limit())
        await send(call, request, self._egress(), held.tenant)

    async def _write(self, channel: Channel, message: Message, password: str, held: HeldRun) -> None:
        to = (
            (channel.find_owner_address(message.owner),)
            if channel.writes_to_owners
            else channel.list_addresses(message.to)
        )
        if self._mail is None or channel.server is None or not to or not all(to):
            raise for_good(MailFailed, f"channel {channel.name} writes to no such address")
        letter = Email(
            sender=channel.sender,
            to=to,
            subject=build_title(message.alert),
            text=build_text(message.alert) + "\n",
            id=held.id,
        )
        try:
            await self._mail.send(channel.server, password, letter)
        except MailRejected as error:
            raise (for_good(MailFailed, str(error)) if error.for_good else MailFailed(str(error))) from None
