"""Notifications of real processes: a task fails, goes dead and recovers, and each is told where the rules say."""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from jsonschema_rs import validate

from tests.support.notification_receivers import Mailbox, Receiver, mail_server, receiving
from tests.support.notification_schemas import PAGERDUTY, SLACK
from tests.support.processes import Processes, free_port, until_ready

pytestmark = [pytest.mark.system, pytest.mark.timeout(180), pytest.mark.xdist_group("system")]

APP = "tests.support.notified_tasks:app"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


@pytest.fixture
def mailbox(tmp_path: Path) -> Iterator[Mailbox]:
    with mail_server(tmp_path) as made:
        yield made


async def until(asked: Callable[[], Any], processes: Processes) -> None:
    give_up_at = time.monotonic() + 60
    while not asked():
        assert time.monotonic() < give_up_at, processes.logs()
        await asyncio.sleep(0.1)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    # Not an async fixture: the database is made by a loop of its own.
    return str(tmp_path / "m.db") if request.param == "sqlite" else str(request.getfixturevalue("postgres_database"))


async def test_it_fails_goes_dead_and_recovers(
    store: str, receiver: Receiver, mailbox: Mailbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "logs").mkdir()
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
    for name, value in {
        "CONFIG": str(tmp_path / "mainspring.toml"),
        "SECRET_SLACK_URL": f"{receiver.url}/services/T/B/x",
        "SECRET_PAGER_KEY": "R" * 32,
        "SECRET_HOOK_KEY": "a key to sign with",
        "TASKS_HTTP_ALLOW": "127.0.0.1",
    }.items():
        monkeypatch.setenv(f"MAINSPRING_{name}", value)
    monkeypatch.setenv("MENDED", str(tmp_path / "mended"))
    port = free_port()
    async with (
        Processes(store, tmp_path / "logs") as processes,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        up = processes.start("up", APP, "--port", str(port))
        await until_ready(client, up, processes)
        async with asyncio.timeout(60):
            while 'sink="notifications"' not in (await client.get("/metrics")).text:
                await asyncio.sleep(0.1)

        async def submit(order: int) -> None:
            job = {"task": "charge", "payload": {"order": order}, "owner": "ann@x.example"}
            answer = await client.post("/v1/jobs", json=job)
            assert answer.status_code == 201, answer.text

        # One of three addresses is refused for now, and one for good.
        mailbox.greylisted = {"c@x.example"}
        # Slack is busy at first: a message is tried again as any run is.
        receiver.answers = [503]
        for order in range(5):
            await submit(order)
        await until(lambda: receiver.at("/services/T/B/x"), processes)
        [failed] = receiver.at("/services/T/B/x")
        validate(SLACK, failed)
        assert failed["text"].startswith("*Mainspring: charge failed*\n")
        assert "cannot be charged" in failed["text"]
        await until(lambda: receiver.at("/v2/enqueue"), processes)
        await until(lambda: receiver.at("/hook"), processes)
        await until(lambda: len(mailbox.refused) >= 2, processes)
        mailbox.greylisted = set()
        await until(lambda: len(mailbox.letters) >= 3, processes)
        [trigger] = receiver.at("/v2/enqueue")
        validate(PAGERDUTY, trigger)
        assert trigger["event_action"] == "trigger"
        assert trigger["links"][0]["href"].startswith("https://mainspring.example/runs/")
        # Nobody gets it twice, and who was refused for good is told of.
        assert sorted(to for to, _ in mailbox.letters) == [["ann@x.example"], ["b@x.example"], ["c@x.example"]]
        failed_messages = (await client.get("/v1/runs?queue=notifications&status=failed")).json()["items"]
        assert ["nobody@x.example: 550" in run["errorMessage"] for run in failed_messages] == [True]
        told = (await client.get("/v1/notifications")).json()
        assert [(problem["name"], problem["state"]) for problem in told["problems"]] == [("charge", "dead")]

        (tmp_path / "mended").touch()
        await submit(6)
        await until(lambda: len(receiver.at("/v2/enqueue")) == 2, processes)
        await until(lambda: len(receiver.at("/services/T/B/x")) == 2, processes)
        resolve = receiver.at("/v2/enqueue")[1]
        validate(PAGERDUTY, resolve)
        assert (resolve["event_action"], resolve["dedup_key"]) == ("resolve", trigger["dedup_key"])
        assert "charge has recovered" in receiver.at("/services/T/B/x")[1]["text"]
        assert (await client.get("/v1/notifications")).json()["problems"] == []

        # A channel that refuses makes a dead letter, and nobody is told of that.
        receiver.answers = [400]
        test = ("notify", "test", "ops", "--url", f"http://127.0.0.1:{port}")
        assert await asyncio.to_thread(processes.start(*test).wait, 60) == 1, processes.logs()
        assert await asyncio.to_thread(processes.start(*test).wait, 60) == 0, processes.logs()
        assert "This is a test" in receiver.at("/services/T/B/x")[2]["text"]
        dead = (await client.get("/v1/dead-letters/runs", params={"queue": "notifications"})).json()["items"]
        assert sorted("400" in letter["errorMessage"] for letter in dead) == [False, True]
        assert len(receiver.at("/v2/enqueue")) == 2
        assert (await client.get("/v1/notifications")).json()["problems"] == []
