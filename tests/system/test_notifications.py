"""Alerts of real processes: a task fails, is dead and recovers, and each alert reaches the channels of its rules."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from jsonschema_rs import validate

from tests.support.notification_receivers import Mailbox, Receiver, mail_server, receiving
from tests.support.notification_schemas import PAGERDUTY, SLACK
from tests.support.processes import Processes, api_client, free_port, until_ended, until_ready
from tests.support.waiting import eventually

pytestmark = [pytest.mark.system, pytest.mark.timeout(900), pytest.mark.xdist_group("system")]

APP = "tests.support.notified_tasks:app"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


@pytest.fixture
def mailbox(tmp_path: Path) -> Iterator[Mailbox]:
    with mail_server(tmp_path) as made:
        yield made


async def test_alerts_for_a_failed_dead_and_recovered_task_reach_their_channels(
    any_store: str, receiver: Receiver, mailbox: Mailbox, tmp_path: Path
) -> None:
    desk = "to=b@x.example to=c@x.example to=nobody@x.example"
    (tmp_path / "mainspring.toml").write_text(f"""
[notifications]
recovered_after = "1s"
url = "https://mainspring.example"

[notifications.channels]
ops = "slack secret=SLACK_URL group=1s"
pager = "pagerduty secret=PAGER_KEY url={receiver.url}/v2/enqueue"
hook = "webhook url={receiver.url}/hook secret=HOOK_KEY group=0s"
mail = "email server=localhost:{mailbox.port} tls=none from=m@x.example to=owner domain=x.example group=0s"
desk = "email server=localhost:{mailbox.port} tls=none from=m@x.example {desk} group=0s"

[notifications.rules]
bad = "on=failed on=recovered to=ops task=charge"
worst = "on=dead to=pager urgent"
program = "on=dead to=hook"
theirs = "on=dead to=owner"
all = "on=dead to=desk"

[notifications.owners]
"*" = "mail"
""")
    environment = {
        "MAINSPRING_CONFIG": str(tmp_path / "mainspring.toml"),
        "MAINSPRING_SECRET_SLACK_URL": f"{receiver.url}/services/T/B/x",
        "MAINSPRING_SECRET_PAGER_KEY": "R" * 32,
        "MAINSPRING_SECRET_HOOK_KEY": "a key to sign with",
        "MAINSPRING_TASKS_HTTP_ALLOW": "127.0.0.1",
        "FIXED": str(tmp_path / "fixed"),
    }
    port = free_port()
    async with (
        Processes(any_store, tmp_path / "logs", environment) as processes,
        api_client(port) as client,
    ):
        up = processes.start("up", APP, "--port", str(port))
        await until_ready(client, up, processes)

        async def has_sink() -> bool:
            return 'sink="notifications"' in (await client.get("/metrics")).text

        await eventually(has_sink, processes.logs)

        async def submit(order: int) -> None:
            job = {"task": "charge", "payload": {"order": order}, "owner": "ann@x.example"}
            answer = await client.post("/v1/jobs", json=job)
            assert answer.status_code == 201, answer.text

        # One of three addresses is rejected temporarily, and one permanently.
        mailbox.greylisted = {"c@x.example"}
        # Slack is busy at first, and the message is retried.
        receiver.answers = [503]
        for order in range(5):
            await submit(order)
        await eventually(lambda: receiver.at("/services/T/B/x"), processes.logs)
        [failed] = receiver.at("/services/T/B/x")
        validate(SLACK, failed)
        assert failed["text"].startswith("*Mainspring: charge failed*\n")
        assert "cannot be charged" in failed["text"]
        await eventually(lambda: receiver.at("/v2/enqueue"), processes.logs)
        await eventually(lambda: receiver.at("/hook"), processes.logs)
        await eventually(lambda: len(mailbox.refused) >= 2, processes.logs)
        mailbox.greylisted = set()
        await eventually(lambda: len(mailbox.letters) >= 3, processes.logs)
        [trigger] = receiver.at("/v2/enqueue")
        validate(PAGERDUTY, trigger)
        assert trigger["event_action"] == "trigger"
        assert trigger["links"][0]["href"].startswith("https://mainspring.example/runs/")
        # No address receives it twice, and the permanent rejection is a failed run.
        assert sorted(to for to, _ in mailbox.letters) == [["ann@x.example"], ["b@x.example"], ["c@x.example"]]

        async def failed_messages() -> list[str]:
            runs = (await client.get("/v1/runs?queue=notifications&status=failed")).json()["items"]
            return [run["errorMessage"] for run in runs]

        [error] = await eventually(failed_messages, processes.logs)
        assert "nobody@x.example: 550" in error
        problems = (await client.get("/v1/notifications")).json()["problems"]
        assert [(problem["name"], problem["state"]) for problem in problems] == [("charge", "dead")]

        (tmp_path / "fixed").touch()
        await submit(6)
        await eventually(lambda: len(receiver.at("/v2/enqueue")) == 2, processes.logs)
        await eventually(lambda: len(receiver.at("/services/T/B/x")) == 2, processes.logs)
        resolve = receiver.at("/v2/enqueue")[1]
        validate(PAGERDUTY, resolve)
        assert (resolve["event_action"], resolve["dedup_key"]) == ("resolve", trigger["dedup_key"])
        assert "charge has recovered" in receiver.at("/services/T/B/x")[1]["text"]
        assert (await client.get("/v1/notifications")).json()["problems"] == []

        # A message that its channel rejects is a dead letter, which sends no alert.
        receiver.answers = [400]
        test = ("alerts", "test", "ops", "--url", f"http://127.0.0.1:{port}")
        assert await until_ended(processes.start(*test), processes) == 1, processes.logs()
        assert await until_ended(processes.start(*test), processes) == 0, processes.logs()
        assert "This is a test" in receiver.at("/services/T/B/x")[2]["text"]
        dead = (await client.get("/v1/dead-letters/runs", params={"queue": "notifications"})).json()["items"]
        assert sorted("400" in letter["errorMessage"] for letter in dead) == [False, True]
        assert len(receiver.at("/v2/enqueue")) == 2
        assert (await client.get("/v1/notifications")).json()["problems"] == []
