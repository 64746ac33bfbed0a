"""Webhook subscriptions as configured in the settings: which events go to which URL."""

from collections.abc import Mapping
from fnmatch import fnmatchcase

import msgspec

from mainspring.core.model.alerts.outgoing import check_url
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.secrets import check_secret_name
from mainspring.core.model.events.events import Event, find_kind
from mainspring.core.model.runs.names import ALL_TENANTS, check_name, check_tenant

#: Deliveries are runs in this queue. Their own events go to no webhook, which would create deliveries without end.
QUEUE = "webhooks"
_MAX_NAME = 100
_HINT = "name = https://… secret=NAME type=run.dead task=charge tenant=acme"


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    url: str
    #: The name of the secret that signs deliveries.
    secret: str
    #: Patterns for event types and tasks; empty matches all.
    types: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    #: The tenant of the events; ``*``: all tenants, and worker events.
    tenant: str = "default"

    def may_want(self, kind: str, tenant: str) -> bool:
        """Return whether an outbox row of this kind and tenant may contain events for this webhook."""
        return self.tenant in (ALL_TENANTS, tenant) and any(
            _matches(self.types, name) for name in find_kind(kind).types
        )

    def demands(self, event: Event) -> bool:
        return (
            self.tenant in (ALL_TENANTS, event.tenant)
            and event.queue != QUEUE
            and _matches(self.types, event.type)
            and _matches(self.tasks, event.task)
        )

    @property
    def owner(self) -> str:
        """The tenant that owns the delivery runs."""
        return "default" if self.tenant == ALL_TENANTS else self.tenant


class Delivery(msgspec.Struct, frozen=True):
    """The payload of a run that delivers events to a webhook."""

    webhook: str
    #: A list of CloudEvents.
    events: msgspec.Raw


def read_webhooks(table: Mapping[str, tuple[str, ...]], field: str = "events.webhooks") -> list[Webhook]:
    for name in table:
        check_name(field, name)
        if len(name) > _MAX_NAME:
            raise Invalid(field, f"{name[:40]}… is too long a name", f"at most {_MAX_NAME} characters")
    return [_read(name, words, field) for name, words in table.items()]


def _read(name: str, words: tuple[str, ...], field: str) -> Webhook:
    if not words:
        raise Invalid(field, f"{name} names no URL", _HINT)
    check_url(words[0], field)
    found: dict[str, list[str]] = {"secret": [], "type": [], "task": [], "tenant": []}
    for word in words[1:]:
        key, is_pair, value = word.partition("=")
        if not is_pair or key not in found or not value:
            raise Invalid(field, f"{name} has {word!r:.60}", _HINT)
        found[key].append(value)
    if len(found["secret"]) != 1:
        raise Invalid(field, f"{name} needs one secret to sign with", _HINT)
    tenants = found["tenant"] or ["default"]
    if len(tenants) > 1:
        raise Invalid(field, f"{name} has two tenants", "one webhook for each, or tenant=*")
    if tenants[0] != ALL_TENANTS:
        check_tenant(field, tenants[0])
    return Webhook(
        name=name,
        url=words[0],
        secret=check_secret_name(field, found["secret"][0]),
        types=tuple(found["type"]),
        tasks=tuple(found["task"]),
        tenant=tenants[0],
    )


def _matches(patterns: tuple[str, ...], word: str) -> bool:
    return not patterns or any(fnmatchcase(word, pattern) for pattern in patterns)
