"""Alert messages, as plain text and in the formats of Slack, webhooks and PagerDuty. Pure.

Each problem is one line of text. Control characters are replaced and long errors are cut: no job can inject text.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum

import msgspec

from mainspring.core.model.base.headline import find_headline
from mainspring.core.model.base.instant import Instant, isoformat

#: Alerts are runs in this queue. Their own failures raise no alerts, which would create alerts without end.
QUEUE = "notifications"
#: The maximum number of problems listed in one message; the rest are only counted.
MAX_LISTED = 20
_LONGEST_ERROR = 300
#: PagerDuty's limit for the length of a summary.
_LONGEST_SUMMARY = 1_024


class AlertStage(StrEnum):
    """The condition that an alert rule matches, and the stage that a problem has reached."""

    FAILED = "failed"
    DEAD = "dead"
    SLO_MISSED = "slo-missed"
    RECOVERED = "recovered"


_WORDS = {
    AlertStage.FAILED: "failed",
    AlertStage.DEAD: "is dead",
    AlertStage.SLO_MISSED: "misses its objective",
    AlertStage.RECOVERED: "has recovered",
}


class AlertProblem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One problem in an alert."""

    problem: str
    stage: AlertStage
    tenant: str
    name: str
    task: str = ""
    queue: str = ""
    owner: str = ""
    #: The newest failed run, and the recurring job.
    run: str = ""
    job: str = ""
    error: str = ""
    since: Instant = 0
    at: Instant = 0
    count: int = 1
    #: The target has not been alerted about this problem before.
    first: bool = True

    @property
    def recovered_unsent(self) -> bool:
        """Whether the problem recovered before any alert about it was sent."""
        return self.first and self.stage is AlertStage.RECOVERED


class Alert(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content of one alert message."""

    entries: tuple[AlertProblem, ...] = ()
    #: The number of further problems that are not listed.
    more: int = 0
    #: The incident key for the problems that are not listed, and whether that incident is resolved.
    more_key: str = ""
    more_over: bool = False
    #: When the oldest alert was created, if it was delayed longer than the grouping time.
    held_since: Instant | None = None
    #: The message is a delivery test.
    test: bool = False
    #: The dashboard's base URL for links; empty: not configured.
    url: str = ""


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """The payload of a run that sends an alert. The worker's settings define the channel's destination."""

    channel: str
    alert: Alert = msgspec.field(name="notice")
    #: The owner to write to, if the channel addresses owners.
    owner: str = ""
    #: The address to write to, if the channel has several; empty: all of them, as for a test.
    to: str = ""


def build_title(alert: Alert) -> str:
    if alert.test:
        return "Mainspring: a test"
    count = len(alert.entries) + alert.more
    if count == 1 and alert.entries:
        entry = alert.entries[0]
        return f"Mainspring: {_plain(entry.name)} {_WORDS[entry.stage]}"
    over = sum(entry.stage is AlertStage.RECOVERED for entry in alert.entries)
    if over == count:
        return f"Mainspring: {count} problems are over"
    wrong = f"Mainspring: {count - over} problem" + ("" if count - over == 1 else "s")
    return f"{wrong}, {over} over" if over else wrong


def build_lines(alert: Alert) -> Iterator[str]:
    """Yield a line for each problem, then the notes on omitted problems and on delays."""
    if alert.test:
        yield "This is a test. Problems will be reported here."
    for entry in alert.entries:
        yield build_line(entry) + (f" {link}" if (link := build_link(alert.url, entry)) else "")
    if alert.more:
        yield f"… and {alert.more} more."
    if alert.held_since is not None:
        yield f"Held back since {isoformat(alert.held_since)}, by quiet hours or the channel's limit."


def build_line(entry: AlertProblem) -> str:
    about = [f"{_plain(entry.name)} {_WORDS[entry.stage]}"]
    if entry.count > 1:
        about.append(f"{entry.count} failures since {isoformat(entry.since)}")
    if entry.task and entry.task != entry.name:
        about.append(f"task {_plain(entry.task)}")
    if entry.queue:
        about.append(f"queue {_plain(entry.queue)}")
    if entry.tenant != "default":
        about.append(f"tenant {_plain(entry.tenant)}")
    if entry.owner:
        about.append(f"owner {_plain(entry.owner)}")
    if entry.run:
        about.append(f"run {entry.run}")
    if entry.error:
        about.append(_plain(entry.error))
    return " · ".join(about)


def build_link(url: str, entry: AlertProblem) -> str:
    """Return the dashboard URL of the problem."""
    if not url:
        return ""
    if entry.run:
        return f"{url}/runs/{entry.run}"
    return f"{url}/jobs/{entry.job}" if entry.job else ""


def build_text(alert: Alert) -> str:
    return "\n".join([build_title(alert), "", *build_lines(alert)])


def slack_body(alert: Alert) -> bytes:
    """Encode the body for a Slack webhook. Names and errors are escaped: they must not form links or mentions."""
    lines = [f"*{_for_slack(build_title(alert))}*", *(_for_slack(line) for line in build_lines(alert))]
    return msgspec.json.encode({"text": "\n".join(lines), "unfurl_links": False, "unfurl_media": False})


def webhook_body(alert: Alert) -> bytes:
    """Encode the body for a generic webhook: structured fields and a readable text."""
    problems = [
        {
            "problem": entry.problem,
            "state": entry.stage.value,
            "tenant": entry.tenant,
            "name": entry.name,
            "task": entry.task,
            "queue": entry.queue,
            "owner": entry.owner,
            "runId": entry.run or None,
            "jobId": entry.job or None,
            "error": entry.error,
            "count": entry.count,
            "since": isoformat(entry.since),
            "at": isoformat(entry.at),
        }
        for entry in alert.entries
    ]
    said = {"title": build_title(alert), "text": build_text(alert), "test": alert.test}
    return msgspec.json.encode(said | {"problems": problems, "more": alert.more})


def pagerduty_bodies(alert: Alert, key: str, source: str) -> list[bytes]:
    """Encode PagerDuty Events v2, one for each problem, opened and resolved by the problem's own key.

    ``key`` is the integration key. A problem that recovered before its first alert is omitted.
    """
    if alert.test:
        payload = {"summary": build_title(alert), "source": source, "severity": "info"}
        both = [_trigger(key, f"{source}/test", payload), _resolve(key, f"{source}/test")]
        return [msgspec.json.encode(event) for event in both]
    events = [_pagerduty_event(entry, alert.url, key, source) for entry in alert.entries if not entry.recovered_unsent]
    more_key = alert.more_key or f"{source}/more"
    if alert.more:
        words = f"Mainspring: {alert.more} more problems than can be listed"
        events.append(_trigger(key, more_key, {"summary": words, "source": source, "severity": "error"}))
    if alert.more_over:
        events.append(_resolve(key, more_key))
    return [msgspec.json.encode(event) for event in events]


def _pagerduty_event(entry: AlertProblem, url: str, key: str, source: str) -> dict[str, object]:
    if entry.stage is AlertStage.RECOVERED:
        return _resolve(key, entry.problem)
    details = {
        name: value
        for name in ("tenant", "task", "queue", "owner", "run", "job", "error", "count")
        if (value := getattr(entry, name))
    }
    payload = {
        "summary": build_line(entry)[:_LONGEST_SUMMARY],
        "source": source,
        "severity": "warning" if entry.stage is AlertStage.FAILED else "error",
        "timestamp": isoformat(entry.at),
        "component": entry.task or entry.name,
        "group": entry.queue or entry.tenant,
        "class": entry.stage.value,
        "custom_details": details,
    }
    event = _trigger(key, entry.problem, payload)
    if link := build_link(url, entry):
        event["links"] = [{"href": link, "text": "Look at it"}]
    return event


def _trigger(key: str, problem: str, payload: Mapping[str, object]) -> dict[str, object]:
    return {
        "routing_key": key,
        "event_action": "trigger",
        "dedup_key": problem,
        "client": "Mainspring",
        "payload": payload,
    }


def _resolve(key: str, problem: str) -> dict[str, object]:
    return {"routing_key": key, "event_action": "resolve", "dedup_key": problem}


def shorten_error(error: str) -> str:
    """Return the headline of an error as printable text that fits into a message."""
    return _plain(find_headline(error))[:_LONGEST_ERROR]


def _plain(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _for_slack(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
