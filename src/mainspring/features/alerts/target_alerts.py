"""The pending and outgoing alerts of one target."""

from collections.abc import Mapping

import msgspec

from mainspring.core.model.alerts.alert_messages import MAX_LISTED, Alert, AlertProblem, AlertStage
from mainspring.core.model.alerts.channels import Channel, ChannelKind
from mainspring.core.model.base.instant import HOUR, Instant

#: Pending alerts kept in full for one target; the others are counted. Recovery alerts are always kept.
_MAX_PENDING = 200
#: Prefix of the names of stored targets.
TARGET_PREFIX = "target:"


class PendingAlert(msgspec.Struct, frozen=True, omit_defaults=True):
    entry: AlertProblem
    since: Instant
    urgent: bool = False
    #: For a recovery alert: the stages of the problem that the target has received.
    received: tuple[AlertStage, ...] = ()


class AlertMessage(msgspec.Struct, frozen=True):
    """A message that becomes one run. Its number is never used again for the same target."""

    number: int
    alert: Alert = msgspec.field(name="notice")


class TargetAlerts(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The pending and outgoing alerts of one target."""

    #: By problem id.
    pending: dict[str, PendingAlert] = {}
    #: Number of alerts that are only counted, and since when.
    more: int = 0
    more_since: Instant | None = None
    #: Time of the last alert that was only counted. Set while an incident about them is open.
    overflow: Instant | None = None
    #: When messages were sent, within the last hour.
    sent: tuple[Instant, ...] = ()
    outgoing: tuple[AlertMessage, ...] = ()
    number: int = 0

    def is_idle(self) -> bool:
        """Return whether nothing is pending or outgoing."""
        return not (self.pending or self.more or self.overflow or self.outgoing)

    def add(self, entry: AlertProblem, since: Instant, *, urgent: bool, received: tuple[AlertStage, ...] = ()) -> None:
        known = self.pending.get(entry.problem)
        if known is not None:
            # Only the current state of a problem is sent. The target has not received the pending alert yet.
            merged = msgspec.structs.replace(entry, first=known.entry.first)
            self.pending[entry.problem] = PendingAlert(merged, known.since, known.urgent or urgent, received)
        elif len(self.pending) < _MAX_PENDING or entry.stage is AlertStage.RECOVERED:
            self.pending[entry.problem] = PendingAlert(entry, since, urgent, received)
        else:
            self.count_one(since)

    def count_one(self, at: Instant) -> None:
        """Count an alert that is not kept in full."""
        self.more_since = at if self.more_since is None else self.more_since
        self.more += 1
        if self.overflow is not None:
            self.overflow = max(self.overflow, at)

    def list_recent(self, now: Instant) -> tuple[Instant, ...]:
        """Return when messages were sent within the last hour."""
        return tuple(at for at in self.sent if at > now - HOUR)

    def send(self, alert: Alert, now: Instant) -> None:
        self.sent = (*self.list_recent(now), now)
        # The state of an idle target is deleted; taking the number from the clock keeps numbers growing after that.
        self.number = max(now, self.number + 1)
        self.outgoing = (*self.outgoing, AlertMessage(self.number, alert))


def select_entries(channel: Channel, entries: list[AlertProblem]) -> tuple[list[AlertProblem], int, set[str]]:
    """Select the entries of one message.

    Returns them, how many more are only counted, and the ids of the problems that the message covers. PagerDuty gets
    each problem as an event of its own, so entries beyond ``MAX_LISTED`` stay pending.
    """
    if channel.kind is ChannelKind.PAGERDUTY:
        unsent = {entry.problem for entry in entries if entry.recovered_unsent}
        listed = [entry for entry in entries if entry.problem not in unsent][:MAX_LISTED]
        return listed, 0, unsent | {entry.problem for entry in listed}
    # Open problems before recovered ones, each group in order of arrival.
    entries = sorted(entries, key=lambda entry: entry.stage is AlertStage.RECOVERED)
    return entries[:MAX_LISTED], len(entries[MAX_LISTED:]), {entry.problem for entry in entries}


def count_pending(rows: Mapping[str, bytes]) -> dict[str, int]:
    """Count the pending alerts of each target."""
    targets = {
        name.removeprefix(TARGET_PREFIX): msgspec.json.decode(body, type=TargetAlerts)
        for name, body in rows.items()
        if name.startswith(TARGET_PREFIX)
    }
    return {target: len(alerts.pending) + alerts.more for target, alerts in targets.items()}
