"""Alert messages: one line per problem, in the formats that Slack and PagerDuty document."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema_rs import validate

from mainspring.core.model.alerts.alert_messages import (
    MAX_LISTED,
    Alert,
    AlertProblem,
    AlertStage,
    build_lines,
    build_text,
    build_title,
    pagerduty_bodies,
    shorten_error,
    slack_body,
    webhook_body,
)
from mainspring.core.model.base.instant import MINUTE, SECOND, parse_instant
from tests.support.notification_schemas import PAGERDUTY, SLACK

NOW = 1_790_000_000 * SECOND


def an_entry(stage: AlertStage = AlertStage.DEAD, **fields: Any) -> AlertProblem:
    known = {"problem": "p1", "tenant": "default", "name": "nightly", "task": "charge", "queue": "billing"}
    return AlertProblem(stage=stage, **(known | {"since": NOW - MINUTE, "at": NOW} | fields))


def test_a_message_describes_a_problem_on_one_line() -> None:
    alert = Alert(
        entries=(an_entry(error="ValueError: no", run="r1", count=3, owner="billing"),), url="https://m.example"
    )
    assert build_title(alert) == "Mainspring: nightly is dead"
    title, empty, line = build_text(alert).splitlines()
    assert (title, empty) == ("Mainspring: nightly is dead", "")
    expected = (
        "nightly is dead · 3 failures since 2026-09-21T14:12:20Z · task charge · queue billing · owner billing · run r1"
    )
    assert line == f"{expected} · ValueError: no https://m.example/runs/r1"


def test_the_title_counts_open_and_resolved_problems() -> None:
    two = (an_entry(), an_entry(AlertStage.RECOVERED, problem="p2"))
    assert build_title(Alert(entries=two)) == "Mainspring: 1 problem, 1 over"
    assert build_title(Alert(entries=two[1:] * 2)) == "Mainspring: 2 problems are over"
    message = Alert(entries=two, more=7, held_since=NOW)
    assert build_title(message) == "Mainspring: 8 problems, 1 over"
    assert list(build_lines(message))[2:] == [
        "… and 7 more.",
        "Held back since 2026-09-21T14:13:20Z, by quiet hours or the channel's limit.",
    ]


def test_a_slack_message_has_the_documented_format_and_escapes_mentions() -> None:
    body = json.loads(slack_body(Alert(entries=(an_entry(name="<!channel> & <https://evil.example|me>"),))))
    validate(SLACK, body)
    assert "<" not in body["text"]
    assert "&lt;!channel&gt; &amp; &lt;https://evil.example|me&gt;" in body["text"]


@given(
    st.lists(
        st.builds(
            an_entry,
            st.sampled_from(AlertStage),
            name=st.text(max_size=300),
            task=st.text(max_size=300),
            error=st.text(max_size=2_000).map(shorten_error),
            count=st.integers(1, 10**9),
            first=st.booleans(),
            job=st.sampled_from(["", "j1"]),
        ),
        min_size=1,
        max_size=MAX_LISTED,
    ),
    st.integers(0, 10),
)
def test_every_message_has_a_line_for_each_problem_and_the_documented_format(
    entries: list[AlertProblem], more: int
) -> None:
    alert = Alert(entries=tuple(entries), more=more, url="https://m.example")
    assert len(list(build_lines(alert))) == len(entries) + bool(more)
    assert all("\n" not in line and line.isprintable() for line in (build_title(alert), *build_lines(alert)))
    validate(SLACK, json.loads(slack_body(alert)))
    events = [json.loads(body) for body in pagerduty_bodies(alert, "R" * 32, "mainspring")]
    for event in events:
        validate(PAGERDUTY, event)
    assert len(events) == sum(not entry.recovered_unsent for entry in entries) + bool(more)
    message = json.loads(webhook_body(alert))
    assert [each["state"] for each in message["problems"]] == [entry.stage for entry in entries]


def test_the_page_on_alerts_shows_the_body_of_a_webhook() -> None:
    page = (Path(__file__).parents[2] / "docs/guides/alerts.md").read_text()
    [shown] = [json.loads(text) for text in re.findall(r"^```json\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)]
    [problem] = shown["problems"]
    entry = AlertProblem(
        problem=problem["problem"],
        stage=AlertStage(problem["state"]),
        tenant=problem["tenant"],
        name=problem["name"],
        task=problem["task"],
        queue=problem["queue"],
        owner=problem["owner"],
        run=problem["runId"],
        job=problem["jobId"],
        error=problem["error"],
        count=problem["count"],
        since=parse_instant(problem["since"]),
        at=parse_instant(problem["at"]),
    )
    alert = Alert(entries=(entry,), url="https://mainspring.example.org")
    assert json.loads(webhook_body(alert)) == shown


def test_pagerduty_incidents_open_and_resolve_by_the_key_of_the_problem() -> None:
    opened, resolved = (
        json.loads(pagerduty_bodies(Alert(entries=(entry,)), "R" * 32, "mainspring")[0])
        for entry in (an_entry(error="boom"), an_entry(AlertStage.RECOVERED, first=False))
    )
    assert (opened["event_action"], resolved["event_action"]) == ("trigger", "resolve")
    assert opened["dedup_key"] == resolved["dedup_key"] == "p1"
    assert opened["payload"]["severity"] == "error"
    assert opened["payload"]["custom_details"]["error"] == "boom"


def test_the_incident_for_too_many_problems_opens_and_resolves_by_one_key() -> None:
    bodies = [
        json.loads(pagerduty_bodies(alert, "R" * 32, "mainspring")[0])
        for alert in (Alert(more=3, more_key="k"), Alert(more_over=True, more_key="k"))
    ]
    assert [(event["event_action"], event["dedup_key"]) for event in bodies] == [("trigger", "k"), ("resolve", "k")]


def test_a_test_message_leaves_no_open_incident() -> None:
    actions = [json.loads(body)["event_action"] for body in pagerduty_bodies(Alert(test=True), "R" * 32, "mainspring")]
    assert actions == ["trigger", "resolve"]
    assert "test" in build_text(Alert(test=True))


@pytest.mark.parametrize(
    ("error", "line"),
    [
        ("", ""),
        ("Traceback …\n  File\nValueError: no\n\n", "ValueError: no"),
        ("a\x1b[31mb", "a [31mb"),
        ("x" * 999, "x" * 300),
    ],
)
def test_an_alert_shows_the_headline_of_an_error(error: str, line: str) -> None:
    assert shorten_error(error) == line


def test_an_alert_is_decoded_as_it_was_encoded() -> None:
    alert = Alert(entries=(an_entry(),), more=2, held_since=NOW)
    assert msgspec.json.decode(msgspec.json.encode(alert), type=Alert) == alert
