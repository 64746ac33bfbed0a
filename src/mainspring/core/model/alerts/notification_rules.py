"""Alert rules as configured in the settings: which problems go to which channel."""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

import msgspec

from mainspring.core.model.alerts.alert_messages import AlertStage
from mainspring.core.model.alerts.channels import OWNER, Channel, ChannelKind, read_channels
from mainspring.core.model.alerts.outgoing import check_url
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import SECOND, Instant, Micros
from mainspring.core.model.runs.names import ALL_TENANTS, check_name, check_tenant

_HINT = "on=dead on=recovered to=CHANNEL task=charge* queue=billing job=nightly tag=money tenant=acme urgent"
#: Matches owners that have no entry of their own.
_OTHERS = "*"


class ProblemEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A failed attempt, a failed run, or an SLO that is missed or met again."""

    stage: AlertStage
    tenant: str
    #: What alerts are tracked by: the id of a recurring job, otherwise the task.
    subject: str
    #: Groups this problem with others of its kind.
    fingerprint: str
    at: Instant
    name: str
    task: str = ""
    queue: str = ""
    owner: str = ""
    tags: tuple[str, ...] = ()
    run: str = ""
    job: str = ""
    error: str = ""

    @property
    def stages(self) -> tuple[AlertStage, ...]:
        """The stages that rules may match, worst first: a dead run has also failed."""
        return (AlertStage.DEAD, AlertStage.FAILED) if self.stage is AlertStage.DEAD else (self.stage,)


class AlertRule(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    on: frozenset[AlertStage]
    #: The name of a channel, or ``owner``.
    to: str
    #: Patterns; empty matches all. One matching tag is enough.
    tasks: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    #: The tenant of the problems; ``*``: all tenants.
    tenant: str = "default"
    #: Send the alert during quiet hours, too.
    urgent: bool = False

    def matches(self, event: ProblemEvent) -> bool:
        return (
            self.tenant in (ALL_TENANTS, event.tenant)
            and _matches_any(self.tasks, event.task)
            and _matches_any(self.queues, event.queue)
            and _matches_any(self.jobs, event.name)
            and (not self.tags or any(_matches_any(self.tags, tag) for tag in event.tags))
        )


class Subscription(msgspec.Struct, frozen=True):
    """What a target receives about a problem."""

    #: The worst stage that a matching rule asks for; None: only the recovery.
    stage: AlertStage | None
    urgent: bool
    recovered: bool


class NotificationRules(msgspec.Struct, frozen=True, kw_only=True):
    """The alert configuration: channels, rules and owners."""

    channels: Mapping[str, Channel] = {}
    rules: tuple[AlertRule, ...] = ()
    #: The channel of each owner.
    owners: Mapping[str, str] = {}
    #: A problem has recovered after a success and this long without a failure.
    recovered_after: Micros = 30 * SECOND
    #: The dashboard's base URL; empty: not configured.
    url: str = ""

    def has_rule_for(self, stage: AlertStage, tenant: str) -> bool:
        """Return whether any rule may match this stage for this tenant."""
        return any(stage in rule.on and rule.tenant in (ALL_TENANTS, tenant) for rule in self.rules)

    def find_subscriptions(self, event: ProblemEvent) -> dict[str, Subscription]:
        """Return what each target receives. A target is a channel, or a channel and an address within it."""
        found: dict[str, Subscription] = {}
        for rule in self.rules:
            target = self._target(rule, event) if rule.matches(event) else ""
            if not target:
                continue
            stage = next((stage for stage in event.stages if stage in rule.on), None)
            # Combined with other stages, "recovered" applies to those stages only. Alone, it applies to every problem.
            if stage is None and rule.on != {AlertStage.RECOVERED}:
                continue
            recovered = AlertStage.RECOVERED in rule.on
            # PagerDuty keeps incidents open until they are resolved.
            recovered |= stage is not None and self.find_channel(target).kind is ChannelKind.PAGERDUTY
            subscription = Subscription(stage, rule.urgent, recovered)
            found[target] = _both(found[target], subscription, event) if target in found else subscription
        return found

    def find_channel(self, target: str) -> Channel:
        return self.channels[target.partition(" ")[0]]

    def knows(self, target: str) -> bool:
        return target.partition(" ")[0] in self.channels

    def _target(self, rule: AlertRule, event: ProblemEvent) -> str:
        name = rule.to
        if name == OWNER:
            name = self.owners.get(event.owner, self.owners.get(_OTHERS, "")) if event.owner else ""
        if not name or not self.channels[name].writes_to_owners:
            return name
        address = self.channels[name].find_owner_address(event.owner)
        return f"{name} {address}" if address else ""


def _both(one: Subscription, other: Subscription, event: ProblemEvent) -> Subscription:
    stage = next((stage for stage in event.stages if stage in (one.stage, other.stage)), None)
    return Subscription(stage, one.urgent or other.urgent, one.recovered or other.recovered)


def read_notifications(
    channels: Mapping[str, tuple[str, ...]],
    rules: Mapping[str, tuple[str, ...]],
    owners: Mapping[str, tuple[str, ...]],
    *,
    recovered_after: Micros = 30 * SECOND,
    url: str = "",
) -> NotificationRules:
    known = read_channels(channels)
    found = tuple(_read(name, words, f"notifications.rules.{name:.60}") for name, words in rules.items())
    for rule in found:
        if rule.to != OWNER and rule.to not in known:
            raise Invalid(f"notifications.rules.{rule.name}", f"there is no channel {rule.to!r:.60}", _names(known))
    whose: dict[str, str] = {}
    for owner, words in owners.items():
        if len(words) != 1 or words[0] not in known:
            raise Invalid(f"notifications.owners.{owner:.60}", "names no channel", _names(known))
        whose[owner] = words[0]
    if not whose and any(rule.to == OWNER for rule in found):
        raise Invalid("notifications.owners", "is empty, and a rule writes to owners", 'as in "*" = "mail"')
    if url:
        check_url(url, "notifications.url")
        if urlsplit(url).query or urlsplit(url).fragment:
            raise Invalid("notifications.url", "has more than a path", "https://mainspring.example.org")
    return NotificationRules(
        channels=known, rules=found, owners=whose, recovered_after=recovered_after, url=url.rstrip("/")
    )


def _names(known: Mapping[str, Channel]) -> str:
    return f"one of {', '.join(known)}" if known else "notifications.channels is empty"


def _read(name: str, words: tuple[str, ...], field: str) -> AlertRule:
    check_name(field, name)
    given: dict[str, list[str]] = {word: [] for word in ("on", "to", "task", "queue", "job", "tag", "tenant")}
    urgent = False
    for word in words:
        key, is_pair, value = word.partition("=")
        if word == "urgent":
            urgent = True
        elif not is_pair or key not in given or not value:
            raise Invalid(field, f"has {word!r:.60}", _HINT)
        else:
            given[key].append(value)
    if not given["on"]:
        raise Invalid(field, "says on= nothing", _HINT)
    if len(given["to"]) != 1:
        raise Invalid(field, "needs one to=", _HINT)
    if len(given["tenant"]) > 1:
        raise Invalid(field, "has two tenants", "a rule for each, or tenant=*")
    tenant = (given["tenant"] or ["default"])[0]
    if tenant != ALL_TENANTS:
        check_tenant(field, tenant)
    return AlertRule(
        name=name,
        on=frozenset(_stages(given["on"], field)),
        to=given["to"][0],
        tasks=tuple(given["task"]),
        queues=tuple(given["queue"]),
        jobs=tuple(given["job"]),
        tags=tuple(given["tag"]),
        tenant=tenant,
        urgent=urgent,
    )


def _stages(words: list[str], field: str) -> Iterator[AlertStage]:
    for word in words:
        if word not in set(AlertStage):
            raise Invalid(field, f"on={word:.40} is nothing that happens", ", ".join(AlertStage))
        yield AlertStage(word)


def _matches_any(patterns: tuple[str, ...], word: str) -> bool:
    return not patterns or any(fnmatchcase(word, pattern) for pattern in patterns)
