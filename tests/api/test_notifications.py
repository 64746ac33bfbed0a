"""Alerts over HTTP: channels, rules, open problems, and testing a channel."""

import httpx2
import msgspec
import pytest

from mainspring.core.model.alerts.alert_messages import AlertStage, Message
from mainspring.core.model.alerts.notification_rules import ProblemEvent, read_notifications
from mainspring.core.model.base.instant import SECOND
from mainspring.core.model.runs.reserved import NOTIFICATION
from mainspring.features.alerts.alert_state import AlertState
from tests.api.conftest import Service

RULES = read_notifications(
    {
        "ops": ("slack", "secret=SLACK_URL", "quiet=22:00-07:00", "zone=Europe/Paris", "rate=5/h"),
        "mail": ("email", "server=localhost", "from=m@x.example", "to=owner", "domain=x.example"),
    },
    {"bad": ("on=dead", "on=recovered", "to=ops", "task=charge*", "urgent")},
    {},
    url="https://m.example",
)
NOW = 1_790_000_000 * SECOND


async def test_alerts_are_empty_by_default(client: httpx2.AsyncClient) -> None:
    answer = await client.get("/v1/notifications")
    assert answer.json() == {"channels": [], "rules": [], "problems": [], "problemCount": 0}
    assert (await client.post("/v1/notifications/channels/ops/test")).status_code == 404


async def test_channels_alert_rules_and_open_problems_are_listed(service: Service, client: httpx2.AsyncClient) -> None:
    service.api.notifications = RULES
    state = AlertState(RULES, "store")
    state.add_failure(
        ProblemEvent(
            stage=AlertStage.DEAD,
            tenant="default",
            subject="task:charge",
            fingerprint="f",
            at=NOW,
            name="charge",
            task="charge",
            error="ValueError: no",
        )
    )
    assert await service.store.change_notification_rows(0, state.take_changes())
    shown = (await client.get("/v1/notifications")).json()
    ops, mail = shown["channels"]
    assert (ops["name"], ops["kind"], ops["ratePerHour"], ops["waiting"]) == ("ops", "slack", 5, 1)
    assert (ops["quietFrom"], ops["quietUntil"], ops["quietZone"]) == ("22:00", "07:00", "Europe/Paris")
    assert mail["to"] == ["owner"]
    assert [(rule["name"], rule["on"], rule["urgent"]) for rule in shown["rules"]] == [
        ("bad", ["dead", "recovered"], True)
    ]
    [problem] = shown["problems"]
    assert (problem["name"], problem["state"], problem["error"]) == ("charge", "dead", "ValueError: no")
    assert (problem["notified"], shown["problemCount"]) == (["ops"], 1)
    assert "SLACK_URL" not in str(shown)


async def test_testing_a_channel_creates_a_run_that_sends_a_test_alert(
    service: Service, client: httpx2.AsyncClient
) -> None:
    service.api.notifications = RULES
    made = await client.post("/v1/notifications/channels/ops/test")
    assert made.status_code == 201, made.text
    run = (await client.get(f"/v1/runs/{made.json()['runId']}")).json()
    assert (run["task"], run["queue"], run["maxRetries"]) == (NOTIFICATION, "notifications", 0)
    message = msgspec.convert(run["payload"], Message)
    assert (message.channel, message.alert.test) == ("ops", True)
    entries = (await client.get("/v1/audit", params={"target": run["runId"]})).json()["items"]
    assert len(entries) == 1


async def test_testing_a_channel_for_owners_requires_an_owner_of_an_allowed_domain(
    service: Service, client: httpx2.AsyncClient
) -> None:
    service.api.notifications = RULES
    path = "/v1/notifications/channels/mail/test"
    for body in ({}, {"owner": "ann@evil.example"}):
        assert (await client.post(path, json=body)).status_code == 400
    assert (await client.post(path, json={"owner": "ann@x.example"})).status_code == 201
    refused = await client.post("/v1/notifications/channels/ops/test", json={"owner": "ann@x.example"})
    assert refused.status_code == 400


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/jobs/preview"])
async def test_a_job_of_the_alert_task_is_rejected(client: httpx2.AsyncClient, path: str) -> None:
    answer = await client.post(path, json={"task": NOTIFICATION, "payload": {"channel": "ops", "notice": {}}})
    assert answer.status_code == 400, answer.text
