"""Alert channels as configured in the settings: destination, grouping, rate limit and quiet hours."""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

import msgspec

from mainspring.core.model.alerts.outgoing import check_url
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import HOUR, SECOND, Instant, Micros, parse_duration, to_datetime
from mainspring.core.model.base.secrets import check_secret_name
from mainspring.core.model.runs.names import check_name, check_tenant
from mainspring.core.model.schedules.cron.zone import load_zone

PAGERDUTY = "https://events.pagerduty.com/v2/enqueue"
#: The target of a rule or a channel that addresses the job's owner.
OWNER = "owner"
_MAX_NAME = 60
_MOST_RATE = 1_000
_QUIET = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])-([01][0-9]|2[0-3]):([0-5][0-9])")
_RATE = re.compile(r"([0-9]{1,4})/h")
#: Addresses that cannot break out of a mail header or an SMTP command.
#: An encoded word (RFC 2047) is refused by its "=?", although its characters are allowed in an address.
_ADDRESS = re.compile(r"(?!.*=\?)[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+")
_DOMAIN = re.compile(r"[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+")
_SERVER = re.compile(r"([A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\])(?::([0-9]{1,5}))?")


class ChannelKind(StrEnum):
    SLACK = "slack"
    PAGERDUTY = "pagerduty"
    EMAIL = "email"
    WEBHOOK = "webhook"


_HINTS = {
    ChannelKind.SLACK: "slack secret=NAME, whose value is the URL of an incoming webhook",
    ChannelKind.PAGERDUTY: "pagerduty secret=NAME, whose value is an integration key of Events v2",
    ChannelKind.EMAIL: "email server=smtp.example.org:587 from=mainspring@example.org to=ops@example.org",
    ChannelKind.WEBHOOK: "webhook url=https://… secret=NAME",
}
_COMMON = frozenset({"secret", "group", "rate", "quiet", "zone", "tenant"})
_WORDS = {
    ChannelKind.SLACK: _COMMON,
    ChannelKind.PAGERDUTY: _COMMON | {"url"},
    ChannelKind.EMAIL: _COMMON | {"server", "tls", "user", "from", "to", "domain"},
    ChannelKind.WEBHOOK: _COMMON | {"url"},
}
_SEVERAL = frozenset({"to", "domain"})


class QuietHours(msgspec.Struct, frozen=True):
    """A daily period between two minutes of the day in a zone's local time. It spans midnight if start is after end."""

    start: int
    end: int
    zone: str = "UTC"

    def covers(self, now: Instant) -> bool:
        there = to_datetime(now).astimezone(load_zone(self.zone))
        minute = there.hour * 60 + there.minute
        if self.start < self.end:
            return self.start <= minute < self.end
        return minute >= self.start or minute < self.end


class MailServer(msgspec.Struct, frozen=True, kw_only=True):
    host: str
    port: int
    #: ``starttls``: the connection must be encrypted before mail is sent; ``none``: only for a server on this machine.
    tls: Literal["starttls", "tls", "none"] = "starttls"
    user: str = ""


class Channel(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: ChannelKind
    #: The name of the secret: Slack's URL, PagerDuty's key, the webhook's signing key or the mail server's password.
    secret: str = ""
    url: str = ""
    server: MailServer | None = None
    sender: str = ""
    #: Addresses, or ``owner``: the job's owner, if that is an address in one of the domains.
    to: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    #: The tenant that owns the delivery runs and the secret.
    tenant: str = "default"
    #: Alerts that arrive within this time of the first one are sent in the same message.
    group: Micros = 30 * SECOND
    #: The maximum number of messages per hour.
    rate: int = 30
    quiet: QuietHours | None = None

    @property
    def writes_to_owners(self) -> bool:
        return OWNER in self.to

    def find_owner_address(self, owner: str) -> str:
        """Return the mail address of a job's owner, or an empty text if no mail may be sent there.

        Users choose the owner of their jobs, so the domains are restricted to prevent use as an open relay.
        """
        _, _, domain = owner.rpartition("@")
        return owner if _ADDRESS.fullmatch(owner) and domain.lower() in self.domains else ""

    @property
    def apart(self) -> tuple[str, ...]:
        """The addresses that receive separate messages, as a server may refuse one of several; empty: one message."""
        return self.to if len(self.to) > 1 else ()

    def list_addresses(self, chosen: str) -> tuple[str, ...]:
        """Return the chosen address if the channel has it, or all its addresses if none is chosen."""
        return tuple(to for to in self.to if chosen in ("", to))


def read_channels(table: Mapping[str, tuple[str, ...]], field: str = "notifications.channels") -> dict[str, Channel]:
    return {name: _read(name, words, f"{field}.{name:.60}") for name, words in table.items()}


def _read(name: str, words: tuple[str, ...], field: str) -> Channel:
    check_name(field, name)
    if len(name) > _MAX_NAME or " " in name or "/" in name or name == OWNER:
        raise Invalid(field, "is not a name of a channel", f"at most {_MAX_NAME} characters, no space, not {OWNER!r}")
    if not words or words[0] not in set(ChannelKind):
        raise Invalid(field, f"{'' if not words else words[0]!r:.40} is no kind", ", ".join(ChannelKind))
    kind = ChannelKind(words[0])
    given = _pairs(words[1:], kind, field)
    if kind is not ChannelKind.EMAIL and "secret" not in given:
        raise Invalid(field, "names no secret", _HINTS[kind])
    made = Channel(
        name=name,
        kind=kind,
        secret=check_secret_name(field, given["secret"][0]) if "secret" in given else "",
        tenant=check_tenant(field, given["tenant"][0]) if "tenant" in given else "default",
        group=_group(given, kind, field),
        rate=_rate(given, field),
        quiet=_quiet(given, field),
    )
    if kind is ChannelKind.EMAIL:
        return _mail(made, given, field)
    if kind is ChannelKind.SLACK:
        return made
    url = given.get("url", [PAGERDUTY if kind is ChannelKind.PAGERDUTY else ""])[0]
    if not url:
        raise Invalid(field, "names no url", _HINTS[kind])
    check_url(url, field)
    return msgspec.structs.replace(made, url=url)


def _pairs(words: tuple[str, ...], kind: ChannelKind, field: str) -> dict[str, list[str]]:
    given: dict[str, list[str]] = {}
    for word in words:
        key, is_pair, value = word.partition("=")
        if not is_pair or key not in _WORDS[kind] or not value:
            # The error omits the value: it may be a misplaced secret.
            raise Invalid(field, f"{key!r:.40} is no word of {kind.value}", _HINTS[kind])
        given.setdefault(key, []).append(value)
    for key, values in given.items():
        if len(values) > 1 and key not in _SEVERAL:
            raise Invalid(field, f"{key} is there twice")
    return given


def _mail(made: Channel, given: Mapping[str, list[str]], field: str) -> Channel:
    for word in ("server", "from", "to"):
        if word not in given:
            raise Invalid(field, f"names no {word}", _HINTS[ChannelKind.EMAIL])
    tls = given.get("tls", ["starttls"])[0]
    if tls not in ("starttls", "tls", "none"):
        raise Invalid(field, f"tls={tls:.20} is none", "starttls, tls or none")
    shape = _SERVER.fullmatch(given["server"][0])
    port = int(shape[2] or (465 if tls == "tls" else 587)) if shape else 0
    if shape is None or not 1 <= port <= 65_535:
        raise Invalid(field, f"server={given['server'][0]:.60} is none", "smtp.example.org:587")
    user = given.get("user", [""])[0]
    if bool(user) != bool(made.secret):
        raise Invalid(field, "user and secret, which is the password, go together")
    if user and tls == "none":
        raise Invalid(field, "a password is not sent in the clear", "tls=starttls or tls=tls")
    domains = tuple(domain.lower() for domain in given.get("domain", ()))
    for address in [*given["from"], *(to for to in given["to"] if to != OWNER)]:
        if not _ADDRESS.fullmatch(address):
            raise Invalid(field, f"{address!r:.60} is not an address")
    if OWNER in given["to"] and len(given["to"]) > 1:
        raise Invalid(field, "to=owner goes alone", "a channel for each")
    if (OWNER in given["to"]) != bool(domains) or not all(map(_DOMAIN.fullmatch, domains)):
        raise Invalid(field, "to=owner needs the domains that owners may be in", "to=owner domain=example.org")
    return msgspec.structs.replace(
        made,
        server=MailServer(host=shape[1].strip("[]"), port=port, tls=_tls(tls), user=user),
        sender=given["from"][0],
        to=tuple(dict.fromkeys(given["to"])),
        domains=domains,
    )


def _tls(word: str) -> Literal["starttls", "tls", "none"]:
    return "tls" if word == "tls" else "none" if word == "none" else "starttls"


def _group(given: Mapping[str, list[str]], kind: ChannelKind, field: str) -> Micros:
    if "group" not in given:
        # PagerDuty receives every problem as an event of its own, so grouping would only delay it.
        return 0 if kind is ChannelKind.PAGERDUTY else 30 * SECOND
    group = parse_duration(given["group"][0], field)
    if group > HOUR:
        raise Invalid(field, "group is out of range", "0s to 1h")
    return group


def _rate(given: Mapping[str, list[str]], field: str) -> int:
    if "rate" not in given:
        return 30
    shape = _RATE.fullmatch(given["rate"][0])
    rate = int(shape[1]) if shape else 0
    if not 1 <= rate <= _MOST_RATE:
        raise Invalid(field, f"rate={given['rate'][0]:.20} is none", f"1/h to {_MOST_RATE}/h")
    return rate


def _quiet(given: Mapping[str, list[str]], field: str) -> QuietHours | None:
    if "quiet" not in given:
        if "zone" in given:
            raise Invalid(field, "zone is that of quiet hours, and there are none", "quiet=22:00-07:00")
        return None
    shape = _QUIET.fullmatch(given["quiet"][0])
    if shape is None:
        raise Invalid(field, f"quiet={given['quiet'][0]:.20} are no hours", "quiet=22:00-07:00 zone=Europe/Paris")
    start, end = int(shape[1]) * 60 + int(shape[2]), int(shape[3]) * 60 + int(shape[4])
    if start == end:
        raise Invalid(field, "quiet hours end where they begin", "leave some time to send alerts in")
    zone = given.get("zone", ["UTC"])[0]
    load_zone(zone, field)
    return QuietHours(start, end, zone)
