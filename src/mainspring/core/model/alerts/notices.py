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
MOST_TOLD = 20
_LONGEST_ERROR = 300
#: PagerDuty's limit for the length of a summary.
_LONGEST_SUMMARY = 1_024


class On(StrEnum):
    """The condition that an alert rule matches, and the stage that a problem has reached."""

    FAILED = "failed"
    DEAD = "dead"
    SLO_MISSED = "slo-missed"
    RECOVERED = "recovered"


_WORDS = {
    On.FAILED: "failed",
    On.DEAD: "is dead",
    On.SLO_MISSED: "misses its objective",
    On.RECOVERED: "has recovered",
}


class AlertProblem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One problem in an alert."""

    problem: str
    stage: On
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
    def unheard(self) -> bool:
        """Whether the problem recovered before any alert about it was sent."""
        return self.first and self.stage is On.RECOVERED


class Notice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
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
    notice: Notice
    #: The owner to write to, if the channel addresses owners.
    owner: str = ""
    #: The address to write to, if the channel has several; empty: all of them, as for a test.
    to: str = ""


def build_title(notice: Notice) -> str:
    if notice.test:
        return "Mainspring: a test"
    count = len(notice.entries) + notice.more
    if count == 1 and notice.entries:
        entry = notice.entries[0]
        return f"Mainspring: {_plain(entry.name)} {_WORDS[entry.stage]}"
    over = sum(entry.stage is On.RECOVERED for entry in notice.entries)
    if over == count:
        return f"Mainspring: {count} problems are over"
    wrong = f"Mainspring: {count - over} problem" + ("" if count - over == 1 else "s")
    return f"{wrong}, {over} over" if over else wrong


def build_lines(notice: Notice) -> Iterator[str]:
    """Yield a line for each problem, then the notes on omitted problems and on delays."""
    if notice.test:
        yield "This is a test. Whoever reads it will be told of problems."
    for entry in notice.entries:
        yield build_line(entry) + (f" {link}" if (link := build_link(notice.url, entry)) else "")
    if notice.more:
        yield f"… and {notice.more} more."
    if notice.held_since is not None:
        yield f"Held back since {isoformat(notice.held_since)}, by quiet hours or the channel's limit."


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


def build_text(notice: Notice) -> str:
    return "\n".join([build_title(notice), "", *build_lines(notice)])


def slack_body(notice: Notice) -> bytes:
    """Encode the body for a Slack webhook. Names and errors are escaped: they must not form links or mentions."""
    lines = [f"*{_for_slack(build_title(notice))}*", *(_for_slack(line) for line in build_lines(notice))]
    return msgspec.json.encode({"text": "\n".join(lines), "unfurl_links": False, "unfurl_media": False})


def webhook_body(notice: Notice) -> bytes:
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
        for entry in notice.entries
    ]
    said = {"title": build_title(notice), "text": build_text(notice), "test": notice.test}
    return msgspec.json.encode(said | {"problems": problems, "more": notice.more})


def pagerduty_bodies(notice: Notice, key: str, source: str) -> list[bytes]:
    """Encode PagerDuty Events v2, one for each problem, opened and resolved by the problem's own key.

    ``key`` is the integration key. A problem that recovered before its first alert is omitted.
    """
    if notice.test:
        payload = {"summary": build_title(notice), "source": source, "severity": "info"}
        both = [_trigger(key, f"{source}/test", payload), _resolve(key, f"{source}/test")]
        return [msgspec.json.encode(event) for event in both]
    told = [_pagerduty_event(entry, notice.url, key, source) for entry in notice.entries if not entry.unheard]
    more_key = notice.more_key or f"{source}/more"
    if notice.more:
        words = f"Mainspring: {notice.more} more problems than can be told one by one"
        told.append(_trigger(key, more_key, {"summary": words, "source": source, "severity": "error"}))
    if notice.more_over:
        told.append(_resolve(key, more_key))
    return [msgspec.json.encode(event) for event in told]


def _pagerduty_event(entry: AlertProblem, url: str, key: str, source: str) -> dict[str, object]:
    if entry.stage is On.RECOVERED:
        return _resolve(key, entry.problem)
    details = {
        name: value
        for name in ("tenant", "task", "queue", "owner", "run", "job", "error", "count")
        if (value := getattr(entry, name))
    }
    payload = {
        "summary": build_line(entry)[:_LONGEST_SUMMARY],
        "source": source,
        "severity": "warning" if entry.stage is On.FAILED else "error",
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
