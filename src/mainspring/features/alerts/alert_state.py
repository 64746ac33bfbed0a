"""Group failures into problems, and problems into messages for each target. No I/O, no clock.

A problem is one kind of error of one job. It opens with the first failure. It closes when a run has succeeded and
nothing has failed for `recovered_after`. However often the error occurs in between, each target gets one alert for it,
and one more if it gets worse.

Pending alerts are collected by target, so that several of them become one message. The message is sent when the
target's channel allows it: after the channel's grouping time, outside its quiet hours, and within its rate limit.
"""

import hashlib
from collections.abc import Mapping

import msgspec

from mainspring.core.model.alerts.alert_messages import Alert, AlertStage
from mainspring.core.model.alerts.channels import ChannelKind
from mainspring.core.model.alerts.notification_rules import NotificationRules, ProblemEvent, Subscription
from mainspring.core.model.base.instant import DAY, HOUR, MINUTE, Instant
from mainspring.features.alerts.problems import PROBLEM_PREFIX, Problem, Problems, SentAlerts
from mainspring.features.alerts.target_alerts import (
    TARGET_PREFIX,
    AlertMessage,
    PendingAlert,
    TargetAlerts,
    select_entries,
)

#: Kinds of errors kept apart for one job or task; all further kinds are grouped as one. Some error texts contain user
#: input, so that every one of them is different.
MAX_KINDS = 50
_OTHER_KINDS = "others"
#: A problem without a new failure for this long is dropped without an alert. A job may run, and fail, only once a
#: month.
DROPPED_AFTER = 100 * DAY
#: Fingerprint of SLO problems. A successful run does not close them: only meeting the objective again does.
SLO = "slo"


class AlertState:
    """All problems and pending alerts, as held by one process.

    Callers save ``take_changes()`` before they act on one.
    """

    def __init__(self, rules: NotificationRules, source: str, rows: Mapping[str, bytes] | None = None) -> None:
        self.rules = rules
        self._source = source
        self.problems = Problems()
        self.targets: dict[str, TargetAlerts] = {}
        self._changed: dict[str, None] = {}
        for name, body in (rows or {}).items():
            if name.startswith(PROBLEM_PREFIX):
                self.problems.add(msgspec.json.decode(body, type=Problem))
            elif name.startswith(TARGET_PREFIX) and rules.knows(name.removeprefix(TARGET_PREFIX)):
                self.targets[name.removeprefix(TARGET_PREFIX)] = msgspec.json.decode(body, type=TargetAlerts)

    # Incoming events.

    def add_failure(self, event: ProblemEvent) -> None:
        event = self._limit_kinds(event)
        identifier = self._hash(event.tenant, event.subject, event.fingerprint)
        problem = self.problems.get(identifier)
        subscriptions = self.rules.find_subscriptions(event)
        if problem is None:
            if not subscriptions:
                return
            if self.problems.is_full(event.tenant):
                for target in (
                    target for target, subscription in subscriptions.items() if subscription.stage is not None
                ):
                    self._change_target(target).count_one(event.at)
                return
            problem = Problem(
                id=identifier,
                tenant=event.tenant,
                subject=event.subject,
                fingerprint=event.fingerprint,
                stage=event.stage,
                name=event.name,
                since=event.at,
                last=event.at,
            )
            self.problems.add(problem)
        for field in ("name", "task", "queue", "owner", "run", "job", "error"):
            setattr(problem, field, getattr(event, field))
        problem.count += 1
        problem.last = max(problem.last, event.at)
        problem.recovered_at = None
        if event.stage is not AlertStage.FAILED:
            problem.stage = event.stage
        self._mark_changed(PROBLEM_PREFIX + identifier)
        for target, subscription in subscriptions.items():
            self._alert(problem, target, subscription, event.at)

    def add_success(self, tenant: str, subject: str, at: Instant) -> None:
        """Mark the problems of a subject as recovered after a run succeeded. SLO problems stay open."""
        self._mark_recovered(tenant, subject, at, slo=False)

    def add_slo_recovery(self, tenant: str, subject: str, at: Instant) -> None:
        """Mark the SLO problems of a subject as recovered after it met all of its objectives again."""
        self._mark_recovered(tenant, subject, at, slo=True)

    def advance(self, now: Instant) -> None:
        """Apply the passing of time: close and drop problems, and send the messages that are due."""
        for problem in self.problems:
            if problem.recovered_at is not None and now >= problem.last + self.rules.recovered_after:
                self._close(problem, now)
            elif now >= problem.last + DROPPED_AFTER:
                self._drop(problem)
        for target, alerts in list(self.targets.items()):
            if alerts.pending or alerts.more:
                self._send_pending(target, alerts, now)
            elif alerts.overflow is not None:
                self._close_overflow(target, alerts, now)
            elif not alerts.outgoing and (not alerts.sent or alerts.sent[-1] <= now - HOUR):
                del self.targets[target]
                self._mark_changed(TARGET_PREFIX + target)

    def list_outgoing(self) -> dict[str, tuple[AlertMessage, ...]]:
        """Return the messages that have yet to become runs, by target."""
        return {target: alerts.outgoing for target, alerts in self.targets.items() if alerts.outgoing}

    def mark_submitted(self, target: str) -> None:
        """Clear a target's outgoing messages after all of them were submitted as runs."""
        self._change_target(target).outgoing = ()

    @property
    def is_idle(self) -> bool:
        """Whether nothing changes by time alone: no recovered problem and nothing pending."""
        return not any(problem.recovered_at is not None for problem in self.problems) and all(
            alerts.is_idle() for alerts in self.targets.values()
        )

    def take_changes(self) -> dict[str, bytes | None]:
        """Return the rows to save since the last call; None marks a row to delete."""
        changed, self._changed = self._changed, {}
        return {name: self._encode_row(name) for name in changed}

    # Internals.

    def _limit_kinds(self, event: ProblemEvent) -> ProblemEvent:
        """Group the failure under "others" if its subject already has ``MAX_KINDS`` kinds of errors."""
        known = self.problems.ids_of_subject(event.tenant, event.subject)
        identifier = self._hash(event.tenant, event.subject, event.fingerprint)
        if len(known) < MAX_KINDS or event.fingerprint == SLO or identifier in known:
            return event
        return msgspec.structs.replace(
            event, fingerprint=_OTHER_KINDS, error=f"one of many kinds of errors: {event.error}"
        )

    def _hash(self, *words: str) -> str:
        """Hash the words together with the source, so that ids of different stores differ."""
        text = "\0".join((self._source, *words))
        return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).hexdigest()

    def _drop(self, problem: Problem) -> None:
        self.problems.remove(problem)
        self._mark_changed(PROBLEM_PREFIX + problem.id)

    def _mark_recovered(self, tenant: str, subject: str, at: Instant, *, slo: bool) -> None:
        for identifier in self.problems.ids_of_subject(tenant, subject):
            problem = self.problems[identifier]
            if (problem.fingerprint == SLO) is slo and problem.recovered_at is None:
                problem.recovered_at = at
                self._mark_changed(PROBLEM_PREFIX + identifier)

    def _alert(self, problem: Problem, target: str, subscription: Subscription, at: Instant) -> None:
        sent = problem.alerts.get(target, SentAlerts())
        alerts = self.targets.setdefault(target, TargetAlerts())
        pending = alerts.pending.get(problem.id)
        received = sent.stages
        if pending is not None and pending.entry.stage is AlertStage.RECOVERED and subscription.stage is not None:
            # The problem is back before its recovery alert was sent: drop that alert.
            received = pending.received
            del alerts.pending[problem.id]
            self._mark_changed(TARGET_PREFIX + target)
        # After a "dead" alert the target gets no "failed" alert.
        new = (
            ()
            if subscription.stage is None or {subscription.stage, AlertStage.DEAD} & {*received}
            else (subscription.stage,)
        )
        problem.alerts[target] = SentAlerts(
            (*received, *new), sent.urgent or subscription.urgent, sent.recovered or subscription.recovered
        )
        for stage in new:
            entry = problem.build_entry(stage, at, first=not received)
            self._change_target(target).add(entry, at, urgent=subscription.urgent)

    def _close(self, problem: Problem, now: Instant) -> None:
        for target, sent in problem.alerts.items():
            if sent.recovered and self.rules.knows(target):
                alerts = self._change_target(target)
                received = _list_received(sent, alerts.pending.get(problem.id))
                entry = problem.build_entry(AlertStage.RECOVERED, problem.recovered_at or now, first=False)
                alerts.add(entry, now, urgent=sent.urgent, received=received)
        self._drop(problem)

    def _change_target(self, target: str) -> TargetAlerts:
        """Return the alerts of a target, which the caller changes."""
        self._mark_changed(TARGET_PREFIX + target)
        return self.targets.setdefault(target, TargetAlerts())

    def _send_pending(self, target: str, alerts: TargetAlerts, now: Instant) -> None:
        channel = self.rules.find_channel(target)
        quiet = channel.quiet is not None and channel.quiet.covers(now)
        ready = {name: alert for name, alert in alerts.pending.items() if alert.urgent or not quiet}
        more = 0 if quiet else alerts.more
        times = [alert.since for alert in ready.values()]
        oldest = min([*times, alerts.more_since] if more and alerts.more_since is not None else times, default=None)
        is_due = oldest is not None and now >= oldest + channel.group
        if oldest is None or not is_due or len(alerts.list_recent(now)) >= channel.rate:
            return
        held = oldest if now > oldest + channel.group + MINUTE else None
        entries, unlisted, covered = select_entries(
            channel, [self.problems.refresh(alert.entry) for alert in ready.values()]
        )
        alert = Alert(entries=tuple(entries), more=more + unlisted, held_since=held, url=self.rules.url)
        alerts.pending = {name: alert for name, alert in alerts.pending.items() if name not in covered}
        if more:
            alerts.more, alerts.more_since = 0, None
            alerts.overflow = now if channel.kind is ChannelKind.PAGERDUTY else None
            alert = msgspec.structs.replace(alert, more_key=self._hash(target))
        if alert.entries or alert.more:
            alerts.send(alert, now)
        self._mark_changed(TARGET_PREFIX + target)

    def _close_overflow(self, target: str, alerts: TargetAlerts, now: Instant) -> None:
        """Close the overflow incident an hour after the last alert that was only counted, within the rate limit.

        Problems that are still open would have been counted again since, or sent as alerts of their own.
        """
        rate = self.rules.find_channel(target).rate
        if alerts.overflow is None or now < alerts.overflow + HOUR or len(alerts.list_recent(now)) >= rate:
            return
        alerts.overflow = None
        alerts.send(Alert(more_key=self._hash(target), more_over=True), now)
        self._mark_changed(TARGET_PREFIX + target)

    def _mark_changed(self, name: str) -> None:
        self._changed[name] = None

    def _encode_row(self, name: str) -> bytes | None:
        if name.startswith(PROBLEM_PREFIX):
            problem = self.problems.get(name.removeprefix(PROBLEM_PREFIX))
            return None if problem is None else msgspec.json.encode(problem)
        alerts = self.targets.get(name.removeprefix(TARGET_PREFIX))
        return None if alerts is None else msgspec.json.encode(alerts)


def _list_received(sent: SentAlerts, pending: PendingAlert | None) -> tuple[AlertStage, ...]:
    """Return the stages that a target has received for a problem, without the alert that is still pending."""
    if pending is None:
        return sent.stages
    return () if pending.entry.first else tuple(stage for stage in sent.stages if stage is not pending.entry.stage)
