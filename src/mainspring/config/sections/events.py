"""The sections of events, alerts and jobs that arrive from Kafka."""

import msgspec

from mainspring.config.sections.addresses import hide_secrets
from mainspring.config.sections.values import Span, Table, Tables
from mainspring.core.model.access.access import DEFAULT_TENANT
from mainspring.core.model.alerts.notification_rules import NotificationRules, read_notifications
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import DAY, SECOND
from mainspring.core.model.events.webhooks import read_webhooks
from mainspring.core.model.runs.names import ALL_TENANTS, check_tenant


class EventsSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    kafka: str = ""
    """Publish events to topics of this Kafka: ``kafka://host:9092``, or several hosts with commas between
    them."""
    status_updates: str = ""
    """A topic of short messages on the status of runs, as in ``kafka://host:9092/status_updates``."""
    redis: str = ""
    """Publish events to streams of this Redis: ``redis://…``, ``redis+sentinel://…`` or
    ``redis+cluster://…``."""
    redis_length: int = 100_000
    """The approximate number of events in each stream."""
    webhooks: Table = msgspec.field(default_factory=dict)
    """Webhooks that receive events, as in ``billing=https://… secret=NAME type=run.dead task=charge
    tenant=acme``."""
    keep: Span = DAY
    """How long events wait in the store for an unavailable sink."""

    def check(self) -> None:
        read_webhooks(self.webhooks)

    def __repr__(self) -> str:
        return f"EventsSection(redis={hide_secrets(self.redis)!r}, webhooks={', '.join(self.webhooks)!r}, …)"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("redis", hide_secrets(self.redis)), ("webhooks", ", ".join(self.webhooks))]


class NotificationsSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    channels: Table = msgspec.field(default_factory=dict)
    """The channels of alerts, as in ``ops=slack secret=SLACK_URL quiet=22:00-07:00 zone=Europe/Paris``."""
    rules: Table = msgspec.field(default_factory=dict)
    """The rules of alerts, as in ``bad=on=dead on=recovered to=ops task=charge* urgent``."""
    owners: Table = msgspec.field(default_factory=dict)
    """The channel of each owner of jobs, for rules with ``to=owner``; ``*`` for all others."""
    recovered_after: Span = 30 * SECOND
    """A problem is over after a success, if nothing has failed for this long."""
    url: str = ""
    """The address of the dashboard for users. With it, messages contain links."""

    def read(self) -> NotificationRules:
        return read_notifications(
            self.channels, self.rules, self.owners, recovered_after=self.recovered_after, url=self.url
        )

    def __repr__(self) -> str:
        return f"NotificationsSection(channels={', '.join(self.channels)!r}, rules={', '.join(self.rules)!r}, …)"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("channels", ", ".join(self.channels)), ("rules", ", ".join(self.rules))]


class IngestSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    kafka: str = ""
    """A topic of requests for jobs, as in ``kafka://host:9092/job-requests``."""
    tenant: str = DEFAULT_TENANT
    """The tenant of the requests; ``*``: each request names its tenant."""
    topics: Tables = msgspec.field(default_factory=dict)
    """Topics of other programs, and the job that is made of each record: templates over ``{key}``,
    ``{headers.…}`` and ``{value.…}``, as in ``{task = "encode", ordering_key = "{value.videoId}"}``."""

    @property
    def bound_to(self) -> str | None:
        return None if self.tenant == ALL_TENANTS else self.tenant

    def check(self) -> None:
        if self.topics and not self.kafka:
            raise Invalid("ingest.topics", "has no server of Kafka", "set ingest.kafka = kafka://host:9092")
        if self.bound_to is not None:
            check_tenant("ingest.tenant", self.bound_to)

    def __repr__(self) -> str:
        return f"IngestSection(kafka={hide_secrets(self.kafka)!r}, …)"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("kafka", hide_secrets(self.kafka))]
