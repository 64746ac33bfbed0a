"""Jobs, runs, dead letters, queues, workers, keys, events and top: on a store, and over HTTP with a profile."""

import json
import os
import re
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2
import pytest

from mainspring.cli import output, top
from mainspring.http.schemas.queues import QueueOut
from mainspring.http.schemas.workers import WorkerOut
from tests.support.command_line import CommandResult, Site, running_site, wait_for_http
from tests.support.processes import free_port
from tests.support.waiting import DEADLINE_SECONDS, wait_until

#: How often a test submits a job until an event of one arrives.
SUBMIT_SECONDS = 0.5
LAST_MONTH = ("--since", "2026-09-01T00:00:00Z", "--until", "2026-10-01T00:00:00Z")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running_site(tmp_path_factory.mktemp("site")) as made:
        key = made.run("keys", "create", "--role", "admin", "--all-tenants", "--store", made.store)
        made.run("profiles", "create", "prod", "--url", made.url, "--key-stdin", stdin=key.out)
        yield made


class Here:
    """Runs commands either on the store or over the API."""

    def __init__(self, site: Site, where: tuple[str, ...]) -> None:
        self.site = site
        self.where = where

    def call(self, *words: str, stdin: str = "") -> CommandResult:
        return self.site.call(*words, *self.where, stdin=stdin)

    def run(self, *words: str, stdin: str = "") -> CommandResult:
        return self.site.run(*words, *self.where, stdin=stdin)

    def json(self, *words: str) -> Any:
        return self.run(*words, "--json").json

    def fail(self, number: int, task: str = "broken") -> str:
        """Make a dead letter and return its run id."""
        result = self.call("jobs", "submit", task, "--arg", f"number={number}", "--retries", "0", "--wait", "--quiet")
        assert result.code == 1, result
        return result.out.strip()


@pytest.fixture(params=["store", "api"])
def here(request: pytest.FixtureRequest, site: Site) -> Here:
    return Here(site, ("--store", site.store) if request.param == "store" else ("--profile", "prod"))


def start_command(*words: str, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "mainspring", *words],
        env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def connect(site: Site, key: str) -> httpx2.Client:
    return httpx2.Client(
        base_url=site.url, headers={"authorization": f"Bearer {key}"}, timeout=DEADLINE_SECONDS, trust_env=False
    )


def register_and_claim(worker: httpx2.Client, queue: str) -> dict[str, int]:
    """Claim the one run of the queue and return its fence."""
    body = {"name": queue, "queues": [queue], "leaseSeconds": 300}
    number = worker.post("/v1/workers/register", json=body).json()["workerId"]
    [held] = worker.post(f"/v1/workers/{number}/claim", json={"waitSeconds": 30}).json()["runs"]
    return {"fence": held["fence"]}


# Jobs


def test_submit_with_wait_prints_the_result(here: Here) -> None:
    result = here.run("jobs", "submit", "send", "--arg", "user_id=42", "--wait")
    assert result.out == '"sent to 42"\n'
    assert " succeeded after " in result.err
    run = here.json("jobs", "submit", "send", "--payload", '{"user_id": 43}', "--wait")
    assert (run["status"], run["result"], run["payload"]) == ("succeeded", "sent to 43", {"user_id": 43})


def test_submit_with_wait_of_a_failing_run_is_exit_code_1_with_its_error(here: Here) -> None:
    result = here.call("jobs", "submit", "broken", "--arg", "number=7", "--retries", "0", "--wait")
    assert (result.code, result.out) == (1, "")
    assert result.err.endswith("ValueError: cannot do 7\n")


def test_every_option_of_submit_is_stored(here: Here, tmp_path: Path) -> None:
    (tmp_path / "payload.json").write_text('{"user_id": 1}')
    made = here.json(
        *("jobs", "submit", "send", "--payload", f"@{tmp_path / 'payload.json'}", "--delay", "1h", "--queue", "mail"),
        *("--priority", "2", "--retries", "5", "--timeout", "30s", "--name", "greeting", "--owner", "ada"),
        *("--tag", "a", "--tag", "b", "--ordering-key", "user-1", "--require", "gpu=a100"),
        *("--set", "startWithin=2h"),
    )
    job = here.json("jobs", "show", made["jobId"])
    expected = {
        "task": "send",
        "payload": {"user_id": 1},
        "queue": "mail",
        "priority": 2,
        "maxRetries": 5,
        "timeout": "30s",
        "name": "greeting",
        "owner": "ada",
        "tags": ["a", "b"],
        "orderingKey": "user-1",
        "startWithin": "2h",
        "requires": {"gpu": "a100"},
        "status": "scheduled",
    }
    assert {name: job[name] for name in expected} == expected
    shown = here.run("jobs", "show", made["jobId"][-10:]).out
    assert "greeting" in shown
    assert re.search(r"in 5\dm", shown)
    assert here.run("jobs", "cancel", made["jobId"]).out == f"job {made['jobId']} is cancelled\n"
    # A second cancel changes nothing.
    assert here.json("jobs", "cancel", made["jobId"])["status"] == "cancelled"
    assert here.run("jobs", "cancel", made["jobId"], "--purge", "--yes").out.endswith("is purged\n")
    assert here.call("jobs", "show", made["jobId"]).code == 4


def test_a_payload_can_come_from_stdin(here: Here) -> None:
    result = here.run("jobs", "submit", "send", "--payload", "-", "--wait", stdin='{"user_id": 5}')
    assert result.out == '"sent to 5"\n'


def test_the_same_key_makes_no_second_job(here: Here) -> None:
    words = ("jobs", "submit", "send", "--arg", "user_id=1", "--unique", f"once-{here.where[0]}", "--quiet")
    assert here.run(*words).out == here.run(*words).out
    other = here.call(*words, "--priority", "1")
    assert other.code == 1
    assert "this idempotency key was used for another job" in other.err


def test_submit_of_a_task_without_a_worker_prints_a_warning(here: Here) -> None:
    result = here.run("jobs", "submit", "unknown", "--delay", "1h")
    assert "mainspring: warning: no live worker knows task 'unknown'" in result.err
    job = here.json("jobs", "list", "--task", "unknown", "--limit", "1")["items"][0]["jobId"]
    assert "mainspring: warning: no live worker knows task 'unknown'" in here.run("jobs", "show", job).err
    changed = here.run("jobs", "update", job, "--set", "queue=nowhere").err
    assert "mainspring: warning: no live worker serves queue 'nowhere'" in changed
    refused = here.call("jobs", "submit", "unknown", "--delay", "1h", "--strict")
    assert refused.code == 1
    assert refused.err.startswith("mainspring: no live worker knows task 'unknown'")


def test_schedules_list_has_recurring_jobs_only(here: Here) -> None:
    name = f"listed-{here.where[0][2:]}"
    # A number is seconds, as everywhere.
    here.run("jobs", "submit", "send", "--arg", "user_id=9", "--name", name, "--every", "3600", "--tag", "listed")
    here.run("jobs", "submit", "send", "--arg", "user_id=9", "--delay", "1h", "--tag", "listed")
    found = here.json("schedules", "list", "--tag", "listed", "--text", name)["items"]
    assert [(job["name"], job["every"]) for job in found] == [(name, "1h")]
    shown = here.run("schedules", "list", "--text", name).out
    assert re.search(rf"{name} +send +scheduled +in [1-5]?\d[ms].*every 1h", shown), shown
    assert here.run("schedules", "list", "--text", name, "--quiet").out == f"{found[0]['jobId']}\n"
    assert here.json("schedules", "list", "--status", "paused", "--tag", "listed")["items"] == []


def test_schedulers_list_has_the_live_schedulers(here: Here) -> None:
    [scheduler] = here.json("schedulers", "list")["items"]
    shown = here.run("schedulers", "list").out
    assert re.search(rf"{scheduler['schedulerId']} +{re.escape(scheduler['name'])} +{scheduler['shards']} ", shown)
    assert here.run("schedulers", "list", "--quiet").out == f"{scheduler['schedulerId']}\n"


def test_datacenters_list_has_each_data_center(here: Here) -> None:
    names = [place["name"] for place in here.json("datacenters", "list")["items"]]
    assert here.run("datacenters", "list", "--quiet").out.splitlines() == names
    assert "data centers" in here.run("datacenters", "list").err


@pytest.mark.parametrize("noun", ["task", "workflow", "calendar"])
def test_show_names_an_object_that_is_not_there(here: Here, noun: str) -> None:
    refused = here.call(f"{noun}s", "show", "nowhere")
    assert (refused.code, refused.err.startswith(f"mainspring: there is no {noun} 'nowhere'")) == (4, True)
    if noun == "calendar":
        assert here.call("calendars", "show", "nowhere", "--versions").err.startswith(
            "mainspring: there is no calendar 'nowhere'"
        )


def test_workflows_list_has_them_newest_first(here: Here) -> None:
    text = f"list-{here.where[0][2:]}"
    made = []
    for number in range(3):
        flow = {"name": f"{text}-{number}", "nodes": {"a": {"task": "send", "payload": {"user_id": 1}, "delay": "1h"}}}
        made.append(here.run("workflows", "submit", "-f", "-", "--quiet", stdin=json.dumps(flow)).out.strip())
    found = here.json("workflows", "list", "--text", text)["items"]
    assert [one["workflowId"] for one in found] == made[::-1]
    shown = here.run("workflows", "list", "--text", text, "--limit", "2")
    assert [line.split()[:2] for line in shown.out.splitlines()[1:]] == [
        [made[2], f"{text}-2"],
        [made[1], f"{text}-1"],
    ]
    assert "more than 2 workflows match" in shown.err


def test_a_recurring_job_is_paused_updated_run_listed_and_cancelled(here: Here) -> None:
    name = f"poll-{here.where[0][2:]}"
    made = here.run("jobs", "submit", "send", "--arg", "user_id=9", "--name", name, "--every", "1h", "--tag", "polls")
    assert ", next in " in made.out
    assert f"{name} " in here.run("jobs", "list", "--recurring").out
    assert [job["name"] for job in here.json("jobs", "list", "--text", name)["items"]] == [name]
    assert here.run("jobs", "pause", name).out == f"job {name} is paused\n"
    assert [job["name"] for job in here.json("jobs", "list", "--status", "paused")["items"]] == [name]
    assert here.json("jobs", "resume", name)["status"] == "scheduled"
    changed = here.run("jobs", "update", name, "--set", "priority=2", "--set", "every=2h", "--why", "less often").out
    assert changed.splitlines() == ['every: "1h" → "2h"', "priority: 5 → 2", "version: 1 → 2"]
    assert here.json("jobs", "update", name, "--payload", '{"user_id": 10}')["version"] == 3
    stale = here.call("jobs", "update", name, "--set", "priority=3", "--version", "1")
    assert (stale.code, "has version 3 by now" in stale.err) == (1, True)
    assert len(here.run("jobs", "next", name, "-n", "3").out.splitlines()) == 3
    assert len(here.json("jobs", "next", name, "-n", "2")["nextFires"]) == 2
    assert re.fullmatch(r"\S+Z\n", here.run("jobs", "next", name, "-n", "1", "--utc").out)
    assert here.run("jobs", "run", name, "--wait").out == '"sent to 10"\n'
    run = here.json("jobs", "run", name, "--payload", '{"user_id": 11}')
    assert here.run("runs", "show", run["runId"], "--wait").out == '"sent to 11"\n'
    assert len(here.json("jobs", "history", name)["items"]) == 2
    assert "send" in here.run("jobs", "history", name).out
    assert "TICK" in here.run("jobs", "history", name, "--ledger").out
    assert here.json("jobs", "history", name, "--ledger", "--since", "2026-01-01T00:00:00Z")["items"] == []
    assert here.json("runs", "list", "--job", name)["items"][0]["runId"] == run["runId"]
    assert (
        "1 would be cancelled" in here.run("jobs", "cancel", "--tag", "polls", "--status", "scheduled", "--dry-run").out
    )
    refused = here.call("jobs", "cancel", "--tag", "polls", "--status", "scheduled")
    assert (refused.code, "--yes: is needed to cancel 1 jobs" in refused.err) == (2, True)
    assert here.json("jobs", "cancel", "--tag", "polls", "--status", "scheduled", "--yes")["changed"] == 1


def test_a_backfill_creates_a_run_for_each_past_tick(here: Here) -> None:
    dry = here.run("jobs", "backfill", "weekly-report", *LAST_MONTH, "--dry-run").out.splitlines()
    assert dry[0] in ("4 ticks, 0 had a run, 4 would be created", "4 ticks, 4 had a run, 0 would be created")
    found = here.json("jobs", "backfill", "weekly-report", *LAST_MONTH)
    assert found["ticks"] == 4
    assert here.json("jobs", "backfill", "weekly-report", *LAST_MONTH)["made"] == 0
    assert "4 ticks" in here.run("jobs", "backfill", "weekly-report", *LAST_MONTH).out


def test_a_list_is_as_long_as_its_limit_over_several_pages(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        here.run("jobs", "submit", "send", "--arg", f"user_id={number}", "--delay", "1h", "--tag", "paged")
    monkeypatch.setattr("mainspring.cli.client.target._PAGE", 2)
    here.site.patch.setenv("COLUMNS", "160")
    every_id = here.run("jobs", "list", "--tag", "paged", "--quiet", "--limit", "1000").out.split()
    assert len(every_id) >= 5
    some = here.run("jobs", "list", "--tag", "paged", "--limit", "3")
    assert len(some.out.splitlines()) == 4
    assert "more than 3 jobs match; use --limit" in some.err
    assert [job["jobId"] for job in here.json("jobs", "list", "--tag", "paged", "-n", "3")["items"]] == every_id[:3]


# Runs


def test_runs_are_listed_and_shown(here: Here) -> None:
    dead = here.fail(1)
    table = here.run("runs", "list", "--status", "failed", "--limit", "1").out
    assert "ValueError: cannot do 1" in table
    shown = here.run("runs", "show", dead).out
    for word in ("failed", "ValueError: cannot do 1", "OUTCOME", '{"number":1}'):
        assert word in shown
    assert here.json("runs", "show", dead)["attempts"][0]["outcome"] == "error"
    assert here.call("runs", "show", dead, "--wait").code == 1
    assert here.run("runs", "list", "--utc", "--limit", "1").out.count("Z") == 1


def test_a_completed_run_is_retried_with_another_payload(here: Here) -> None:
    dead = here.fail(2)
    again = here.json("runs", "retry", dead, "--payload", '{"number": 3}')
    assert here.call("runs", "show", again["runId"], "--wait").code == 1
    assert here.json("runs", "show", again["runId"])["replayOf"] == dead
    assert here.call("runs", "retry", dead, "--wait").code == 1


def test_runs_are_cancelled_by_id_or_by_a_filter(here: Here) -> None:
    first, second = (
        here.run(
            "jobs", "submit", "slow", "--arg", "seconds=60", "--delay", delay, "--tag", "naps", "--quiet"
        ).out.strip()
        for delay in ("1h", "0s")
    )
    wait_until(lambda: here.json("runs", "show", second)["status"] == "running")
    assert "naps" in here.run("runs", "show", second).out
    assert here.run("runs", "cancel", first).out == f"run {first} is cancelled\n"
    assert "1 would be cancelled" in here.run("runs", "cancel", "--tag", "naps", "--dry-run").out
    assert here.call("runs", "cancel", "--tag", "naps").code == 2
    assert here.json("runs", "cancel", "--tag", "naps", "--yes")["changed"] == 1
    assert here.call("runs", "show", second, "--wait").code == 1
    several = here.call("runs", "cancel", first, "ffffffffffff", "--json")
    assert several.code == 3
    assert [item["status"] for item in several.json["items"]] == ["cancelled"]
    assert "there is no run 'ffffffffffff'" in several.err


def test_explain_names_the_reason_why_a_run_waits(here: Here) -> None:
    run = here.run("jobs", "submit", "send", "--arg", "user_id=1", "--queue", "unserved", "--quiet").out.strip()
    assert "no live worker serves queue" in here.run("runs", "explain", run).out
    assert here.json("runs", "explain", run)["status"] == "queued"
    here.run("runs", "cancel", run)


def test_logs_are_shown_and_followed(here: Here, site: Site) -> None:
    queue = f"logs-{here.where[0][2:]}"
    run = here.run("jobs", "submit", "elsewhere", "--queue", queue, "--quiet").out.strip()
    key = site.run("keys", "create", "--role", "worker", "--tenant", "default", "--store", site.store).out.strip()
    with connect(site, key) as worker:
        fence = register_and_claim(worker, queue)
        worker.post(f"/v1/runs/{run}/log", json={**fence, "text": "one"})
        assert here.run("runs", "logs", run).out == "one\n"
        follower = start_command("runs", "logs", run, "--follow", *here.where)
        assert follower.stdout is not None
        assert follower.stdout.readline() == "one\n"
        worker.post(f"/v1/runs/{run}/log", json={**fence, "text": "two"})
        worker.post(f"/v1/runs/{run}/complete", json=fence)
        out, err = follower.communicate()
        assert out == "two\n"
        assert err == f"run {run} succeeded\n"
    lines = here.run("runs", "logs", run, "-f", "--json").out.splitlines()
    assert [json.loads(line)["text"] for line in lines] == ["one", "two"]
    assert [line["text"] for line in here.json("runs", "logs", run)["items"]] == ["one", "two"]


# Dead letters


def test_dead_letters_are_listed_replayed_and_discarded(here: Here) -> None:
    here.call("dead-letters", "discard", "--all", "--yes")
    dead = [here.fail(number) for number in range(3)]
    [group] = here.json("dead-letters", "list")["items"]
    assert (group["task"], group["count"]) == ("broken", 3)
    assert "ValueError: cannot do" in here.run("dead-letters", "list").out
    assert set(here.run("dead-letters", "list", "--runs", "--quiet").out.split()) == set(dead)
    assert "3 would be replayed" in here.run("dead-letters", "replay", "--task", "broken", "--dry-run").out
    [one] = here.json("dead-letters", "replay", dead[0], "--payload", '{"number": 8}')["runIds"]
    assert here.call("runs", "show", one, "--wait").code == 1
    by_group = here.run("dead-letters", "replay", "--group", group["fingerprint"], "--pace", "20/s")
    assert by_group.out == "3 replayed\n"
    wait_until(lambda: len(here.json("dead-letters", "list", "--runs")["items"]) == 3)
    refused = here.call("dead-letters", "discard", "--task", "broken")
    assert (refused.code, "--yes: is needed to discard 3 dead letters" in refused.err) == (2, True)
    assert here.json("dead-letters", "discard", "--all", "--dry-run") == {
        "action": "discard",
        "count": 3,
        "more": False,
        "dryRun": True,
        "runIds": here.run("dead-letters", "list", "--runs", "--quiet").out.split(),
    }
    assert here.run("dead-letters", "discard", "--all", "--yes", "--why", "tests").out == "3 discarded\n"
    nothing = here.call("dead-letters", "discard", dead[0])
    assert (nothing.code, nothing.out) == (1, "0 discarded\n")


@pytest.mark.parametrize("pace", ["fast", "0/s", "5/x", "10"])
def test_an_invalid_pace_is_refused(here: Here, pace: str) -> None:
    assert here.call("dead-letters", "replay", "--all", "--pace", pace).code == 2


def test_discard_keeps_the_dead_letters_of_other_tenants(here: Here) -> None:
    here.call("tenants", "create", "acme")
    theirs = here.call(
        "jobs", "submit", "broken", "--arg", "number=1", "--retries", "0", "--wait", "--quiet", "--tenant", "acme"
    ).out.strip()
    here.fail(1)
    here.run("dead-letters", "discard", "--all", "--yes", "--tenant", "default")
    assert here.run("dead-letters", "list", "--runs", "--quiet").out.split() == [theirs]
    here.run("dead-letters", "discard", theirs)


# Queues, workers, events, top


def test_queues_are_paused_and_resumed(here: Here) -> None:
    assert "default" in here.run("queues", "list").out
    assert here.run("queues", "pause", "default", "--why", "rest").out == "queue default is paused\n"
    [queue] = [queue for queue in here.json("queues", "list")["items"] if queue["name"] == "default"]
    assert (queue["paused"], queue["pauseReason"]) == (True, "rest")
    assert "paused: rest" in here.run("queues", "list").out
    assert here.json("queues", "resume", "default") == {"name": "default", "paused": False}
    here.call("tenants", "create", "acme")
    both = here.json("queues", "pause", "a", "b", "--tenant", "acme")
    assert [item["name"] for item in both["items"]] == ["a", "b"]
    here.run("queues", "resume", "a", "b", "--tenant", "acme")


def test_pausing_every_queue_needs_all_and_yes(here: Here) -> None:
    assert here.call("queues", "pause", "--all").code == 2
    assert here.call("queues", "pause").code == 2
    assert here.call("queues", "pause", "x", "--all").code == 2
    here.run("queues", "pause", "--all", "--yes")
    assert all(queue["paused"] for queue in here.json("queues", "list")["items"])
    here.run("queues", "resume", "--all")


def test_workers_are_listed_and_drained(here: Here, site: Site) -> None:
    [mine] = [worker for worker in here.json("workers", "list")["items"] if "send" in worker["tasks"]]
    assert mine["name"] in here.run("workers", "list").out
    key = site.run("keys", "create", "--role", "worker", "--all-tenants", "--store", site.store).out.strip()
    with connect(site, key) as worker:
        body = {"name": f"drainable{here.where[0]}", "queues": ["none"], "leaseSeconds": 300}
        number = worker.post("/v1/workers/register", json=body).json()["workerId"]
        assert here.json("workers", "drain", f"drainable{here.where[0]}") == {"workerId": number, "draining": True}
        assert "draining" in here.run("workers", "list").out
        worker.post(f"/v1/workers/{number}/leave")
    gone = here.call("workers", "drain", number)
    assert (gone.code, f"there is no worker {number!r}" in gone.err) == (4, True)


def test_top_shows_one_frame(here: Here) -> None:
    here.fail(1)
    here.run("jobs", "submit", "send", "--arg", "user_id=1", "--wait")
    # On a busy machine a scheduler may renew its lease too late.
    frame = wait_until(lambda: (found := here.json("top", "--once"))["schedulers"] == 1 and found)
    assert {"default"} <= {queue["name"] for queue in frame["queues"]}
    assert {task["task"]: task["failed"] > 0 for task in frame["tasks"]}["broken"]
    wait_until(lambda: "1 scheduler" in here.run("top", "--once").out)
    shown = here.run("top", "--once").out
    for word in ("in/s", "QUEUE", "WORKER", "LAST ERROR", "ValueError: cannot do"):
        assert word in shown


@pytest.mark.parametrize("width", [80, 160])
def test_a_frame_of_top_fits_the_terminal(site: Site, width: int) -> None:
    queue = QueueOut(
        name="q" * 30, queued=1_234_567, running=99, workers=0, lag_ms=9e9, rate_per_s=1_234.5, paused=False
    )
    worker = WorkerOut(
        worker_id="1",
        name="a-host:1234",
        version="",
        started_at="",
        lease_until="",
        last_heartbeat_at="",
        running=3,
        draining=True,
        queues=("q" * 30, "b"),
        tasks=(),
    )
    task = top.TaskRates(task="t" * 20, runs=10, failed=3, took_ms_mean=1.5, took_ms_max=90_000, last_error="x" * 200)
    frame = top.Frame(
        time="2026-03-01T00:00:00Z",
        queued=1,
        running=2,
        rates=top.Rates(submitted=1_000, ended=900.5, failed=3, retried=2),
        queues=[queue] * 20,
        workers=[worker] * 20,
        schedulers=0,
        scheduler_lag_ms=0,
        tasks=[task] * 20,
        problem="away",
    )
    console = output.make_console()
    console.width = width
    with console.capture() as caught:
        console.print(top.draw(frame, width, 30))
    lines = caught.get().splitlines()
    assert len(lines) <= 30
    assert max(map(len, lines)) <= width
    assert caught.get().count(" more") == 3


def test_events_prints_events_as_they_happen(site: Site) -> None:
    process = start_command("events", "--json", "--profile", "prod")
    try:
        here = Here(site, ("--store", site.store))
        stop = threading.Event()

        # The stream begins at some moment after the start, so submit until an event arrives.
        def submit() -> None:
            with connect(site, key) as client:
                while not stop.wait(SUBMIT_SECONDS):
                    client.post("/v1/jobs", json={"task": "send", "payload": {"user_id": 1}})

        key = site.run("keys", "create", "--role", "submitter", "--store", site.store).out.strip()
        thread = threading.Thread(target=submit)
        thread.start()
        try:
            assert process.stdout is not None
            event = json.loads(process.stdout.readline())
        finally:
            stop.set()
            thread.join()
        assert event["event"].startswith("run.")
        assert here.run("runs", "show", event["runIds"][0], "--quiet").out.split() == [event["runIds"][0]]
    finally:
        process.kill()
        process.communicate()


# Keys and profiles


def test_keys_are_created_listed_and_revoked(here: Here, site: Site) -> None:
    made = here.json("keys", "create", "--role", "viewer", "--tenant", "acme", "--name", "looks")
    assert made["tenant"] == "acme"
    assert "looks" in here.run("keys", "list").out
    assert made["keyId"] in here.run("keys", "list", "--tenant", "acme", "--quiet").out
    denied = site.call("jobs", "submit", "send", "--url", site.url, "--key", made["key"])
    assert (denied.code, denied.err) == (5, "mainspring: viewers may not submit\n")
    assert here.json("keys", "revoke", made["keyId"])["revokedAt"]


def test_creating_a_key_over_the_api_needs_a_tenant(site: Site) -> None:
    result = site.call("keys", "create", "--role", "viewer", "--profile", "prod")
    assert (result.code, "--tenant: is missing" in result.err) == (2, True)


def test_profiles_are_created_used_listed_and_deleted(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    file = site.folder / "config" / "mainspring" / "profiles.toml"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    secret = file.read_text().partition('key = "')[2].partition('"')[0]
    assert secret.startswith("ms_")
    (site.folder / "a.key").write_text(secret)
    site.run(
        "profiles", "create", "filed", "--url", site.url, "--key-file", str(site.folder / "a.key"), "--tenant", "acme"
    )
    site.run("profiles", "create", "here", "--store", site.store)
    site.call("tenants", "create", "acme", "--store", site.store)
    site.run("profiles", "use", "filed")
    listed = site.run("profiles", "list").out
    assert "*  filed" in listed
    assert secret not in listed + site.run("profiles", "list", "--json").out
    made = site.run("jobs", "submit", "send", "--arg", "user_id=1", "--json").json
    assert made["tenant"] == "acme"
    assert {job["tenant"] for job in site.run("jobs", "list", "--json").json["items"]} == {"acme"}
    monkeypatch.setenv("MAINSPRING_PROFILE", "here")
    assert {job["tenant"] for job in site.run("jobs", "list", "--json").json["items"]} > {"acme"}
    monkeypatch.delenv("MAINSPRING_PROFILE")
    monkeypatch.setenv("MAINSPRING_URL", site.url)
    assert site.call("jobs", "list").code == 5
    monkeypatch.setenv("MAINSPRING_KEY", secret)
    site.run("jobs", "list")
    file.chmod(0o644)
    assert "others can read it: chmod 600" in site.run("jobs", "list", "--profile", "here").err
    file.chmod(0o600)
    site.run("profiles", "use")
    site.run("profiles", "delete", "filed")
    gone = site.call("jobs", "list", "--profile", "filed")
    assert (gone.code, "there is no profile 'filed'" in gone.err) == (4, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["profiles", "create", "x"], "has to have either url or store"),
        (["profiles", "create", "x", "--url", "ftp://x"], "is not the address of an API"),
        (["profiles", "create", "x", "--store", "a", "--key-file", "b"], "which a store does not ask for"),
        (["profiles", "create", "x", "--url", "http://x", "--key-stdin"], "there is no key on stdin"),
        (["jobs", "list", "--url", "http://x", "--store", "y"], "--url: contradicts --store"),
        (["jobs", "list", "--url", "x"], "is not the address of an API"),
    ],
)
def test_an_invalid_address_is_refused(site: Site, words: list[str], message: str) -> None:
    result = site.call(*words)
    assert (result.code, message in result.err) == (2, True), result


# Errors


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["jobs", "show", "unknown"], 4, "there is no job 'unknown'"),
        (["jobs", "show", "f" * 12], 4, "there is no job"),
        (["runs", "show", "0" * 12 + "7" + "0" * 19], 4, "there is no such object, or it is not yours"),
        (["runs", "explain", "abc"], 4, "there is no run 'abc'"),
        (["jobs", "submit", "send", "--arg", "user_id=1", "--cron", "soon", "--name", "x"], 2, "--cron: "),
        (["jobs", "submit", "send", "--payload", "{"], 2, "--payload: is not JSON"),
        (["jobs", "submit", "send", "--payload", "@nowhere"], 2, "nowhere cannot be read"),
        (["jobs", "submit", "send", "--arg", "x"], 2, "--arg: 'x' has no name"),
        (["jobs", "submit", "send", "--arg", "a=1", "--payload", "1"], 2, "--arg: contradicts --payload"),
        (["jobs", "submit", "send", "--every", "1h", "--wait"], 2, "--wait: applies to one-off jobs only"),
        (["jobs", "submit", "send", "--set", "nope=1"], 2, "nope: is no field of this"),
        (["jobs", "submit"], 2, "task: is missing"),
        (["jobs", "update", "weekly-report"], 2, "--set: no change given"),
        (["jobs", "cancel"], 2, "nothing says which are meant"),
        (["jobs", "list", "--status", "odd"], 2, "status: 'odd' is no status"),
        (["jobs", "list", "--json", "--quiet"], 2, "--quiet: contradicts --json"),
        (["jobs", "pause", "weekly-report", "--flag"], 2, "No such option: --flag"),
        (["dead-letters", "replay"], 2, "no selection"),
        (["dead-letters", "replay", "x", "--all"], 2, "cannot be combined with a filter"),
        (["workers", "drain", "0"], 4, "there is no worker '0'"),
    ],
)
def test_an_error_is_one_line_with_its_exit_code(here: Here, words: list[str], code: int, message: str) -> None:
    result = here.call(*words)
    assert (result.code, result.out) == (code, "")
    (line,) = result.err.splitlines()
    assert line.startswith("mainspring: ")
    assert message in line


def test_a_missing_store_an_absent_api_and_a_missing_key_have_exit_codes(site: Site) -> None:
    missing = site.call("jobs", "list", "--store", "mistyped.db")
    assert (missing.code, "there is no store mistyped.db" in missing.err) == (6, True)
    assert not (site.folder / "mistyped.db").exists()
    assert site.call("jobs", "list", "--url", "http://127.0.0.1:9").code == 6
    assert site.call("jobs", "list", "--url", site.url).code == 5


def test_an_ambiguous_part_of_an_id_is_refused(here: Here) -> None:
    ids = [here.run("jobs", "submit", "send", "--arg", "user_id=1", "--quiet").out.strip() for _ in range(3)]
    # Ids begin with their time. Of three at least two neighbors have enough first digits in common.
    common = max(
        (one[:length] for one, other in pairwise(ids) for length in range(len(one)) if one[:length] == other[:length]),
        key=len,
    )
    result = here.call("runs", "show", common)
    assert (result.code, "is part of" in result.err) == (2, True)
    # The error lists what is meant: which of them share the first digits depends on when they were created.
    assert all(f"{one} (send " in result.err for one in ids if one.startswith(common))
    assert here.run("runs", "show", ids[0][-12:], "--quiet").out.strip() == ids[0]


def test_a_narrow_table_shows_the_end_of_each_id(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    older, newer = here.fail(1), here.fail(2)
    monkeypatch.setenv("COLUMNS", "80")
    lines = here.run("runs", "list", "--task", "broken", "--limit", "2").out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines[1:]] == [newer[-12:], older[-12:]]


def test_help_imports_no_web_framework() -> None:
    names = ("mainspring.http.app", "httpx2")
    code = f"import sys, mainspring.cli.main; sys.exit(any(name in sys.modules for name in {names}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_command_on_a_store_needs_no_web_framework(site: Site) -> None:
    code = (
        "import sys\nfrom mainspring.cli.main import main\n"
        "sys.argv = ['mainspring', 'jobs', 'list', '--store', sys.argv[1]]\n"
        "try:\n    main()\nfinally:\n    assert 'mainspring.http.app' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code, site.store], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_key_of_a_tenant_reaches_no_other_tenant(site: Site) -> None:
    here = Here(site, ("--store", site.store))
    dead = here.fail(5)
    job = here.run(
        "jobs", "submit", "send", "--arg", "user_id=1", "--delay", "1h", "--tag", "isolated", "--quiet"
    ).out.strip()
    key = site.run("keys", "create", "--role", "operator", "--tenant", "acme", "--store", site.store).out.strip()
    theirs = Here(site, ("--url", site.url, "--key", key))
    paused = theirs.call("queues", "pause", "default", "--tenant", "default")
    assert (paused.code, "tenant: 'default' is not yours" in paused.err) == (2, True)
    assert theirs.call("queues", "resume", "default", "--tenant", "default").code == 2
    assert theirs.call("queues", "pause", "--all", "--yes").code == 5
    assert theirs.call("runs", "cancel", "--tag", "isolated", "--yes", "--tenant", "default").code == 2
    assert theirs.json("dead-letters", "discard", "--all", "--yes", "--tenant", "default")["count"] == 0
    assert here.run("runs", "show", job, "--json").json["status"] == "scheduled"
    assert theirs.call("runs", "show", dead).code == 4
    assert theirs.call("jobs", "cancel", job).code == 4
    assert theirs.run("queues", "pause", "default").out == "queue default is paused\n"
    here.run("jobs", "submit", "send", "--arg", "user_id=1", "--wait")
    theirs.run("queues", "resume", "default")
    here.run("jobs", "cancel", job)


def test_a_followed_log_continues_after_the_api_restarts(site: Site) -> None:
    port = free_port()
    command = [sys.executable, "-m", "mainspring", "api", "--port", str(port), "--store", site.store]
    environment = {**os.environ, "MAINSPRING_AUTH_MODE": "keys"}
    here = Here(site, ("--store", site.store))
    run = here.run("jobs", "submit", "elsewhere", "--queue", "followed", "--quiet").out.strip()
    keys = [
        site.run("keys", "create", "--role", role, "--store", site.store, "--quiet").out.strip()
        for role in ("worker", "viewer")
    ]
    with connect(site, keys[0]) as worker:
        fence = register_and_claim(worker, "followed")
        worker.post(f"/v1/runs/{run}/log", json={**fence, "text": "one"})
        api = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        wait_for_http(f"http://127.0.0.1:{port}", api)
        follower = start_command("runs", "logs", run, "-f", "--url", f"http://127.0.0.1:{port}", MAINSPRING_KEY=keys[1])
        try:
            assert follower.stdout is not None
            assert follower.stdout.readline() == "one\n"
            api.kill()
            api.wait()
            worker.post(f"/v1/runs/{run}/log", json={**fence, "text": "two"})
            api = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
            assert follower.stdout.readline() == "two\n"
            worker.post(f"/v1/runs/{run}/complete", json=fence)
            assert follower.communicate()[0] == ""
            assert follower.returncode == 0
        finally:
            for process in (api, follower):
                process.kill()
                process.communicate()


@pytest.mark.parametrize("count", [1, 1_000])
def test_a_closed_output_pipe_prints_no_error(site: Site, count: int) -> None:
    script = f"{sys.executable} -m mainspring cron explain '* * * * *' -n {count} --json | true"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_a_calendar_moves_a_tick_and_its_preview_ends(here: Here) -> None:
    name = f"moved-{here.where[0][2:]}"
    here.run("calendars", "create", name, "--freeze", "2030-01-01T00:00:00Z/2030-01-01T01:00:00Z=move")
    result = here.run("calendars", "preview", name, "--from", "2029-12-01T00:00:00Z", "-n", "3")
    assert len(result.out.splitlines()) == 2
    assert "no more within a year of the start" in result.err
    here.run(
        *("jobs", "submit", "send", "--arg", "user_id=9", "--name", name, "--cron", "30 0 1 1 *"),
        *("--set", f'calendars=["{name}"]', "--set", "whenClosed=after", "--set", "scheduleTime=2029-12-31T00:00:00Z"),
    )
    line = here.run("jobs", "next", name, "-n", "1", "--utc").out
    assert line.startswith("2030-01-01T00:30:00Z  moved after, ")
    assert line.endswith(", starts 2030-01-01T01:00:00Z\n")
