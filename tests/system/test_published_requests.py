"""Requests as guides to job schedulers print them, sent to the demo and to a folder of scripts.

The bodies are copied character by character; only the comments in them are removed, because JSON has none.
"""

import re
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.processes import Processes, api_client, free_port, until_ready
from tests.support.waiting import eventually

pytestmark = [pytest.mark.system, pytest.mark.timeout(900), pytest.mark.xdist_group("system")]

#: A cron job that runs a script: POST /v1/jobs.
CLEANUP = """{
  "name": "Daily Cleanup",
  "scheduleType": "cron",  // immediate, future, cron
  "scheduleTime": "2026-01-22T02:00:00Z",  // For future jobs
  "cronExpression": "0 0 2 * * *",  // For cron jobs
  "payload": {
    "script": "cleanup.py",
    "params": {"days": 30}
  },
  "maxRetries": 3
}"""
#: PUT /v1/jobs/{jobId}
UPDATE = """{
  "cronExpression": "0 0 3 * * *",  // Change to 3 AM
  "maxRetries": 5
}"""
#: A one-off job: POST /v1/jobs.
EMAIL = """{
  "job_type": "email_send",
  "schedule_time": "2026-12-31T23:59:59Z",
  "payload": {"user_id": 123, "body": "..."},
  "retries": 3
}"""
SLOW_SCRIPT = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: (print("stopping", flush=True), sys.exit(1)))
print("waiting", flush=True)
signal.pause()
"""
JSON = {"content-type": "application/json"}


def without_comments(body: str) -> str:
    return re.sub(r"  //.*", "", body)


async def post(client: httpx2.AsyncClient, path: str, body: str, method: str = "POST") -> httpx2.Response:
    return await client.request(method, path, content=without_comments(body), headers=JSON)


async def until_status(client: httpx2.AsyncClient, job: str, status: str, processes: Processes) -> dict[str, Any]:
    async def reached() -> dict[str, Any] | None:
        found: dict[str, Any] = (await client.get(f"/v1/jobs/{job}/status")).json()
        return found if found["status"] == status else None

    found = await eventually(reached, processes.logs)
    assert found is not None
    return found


async def log_lines(client: httpx2.AsyncClient, job: str) -> list[str]:
    """Read the log of a job, whose pieces hold one line or several."""
    answer = await client.get(f"/v1/jobs/{job}/logs")
    assert answer.status_code == 200, answer.text
    return "\n".join(piece["text"] for piece in answer.json()["items"]).splitlines()


@asynccontextmanager
async def running(
    processes: Processes, *arguments: str
) -> "AsyncIterator[tuple[subprocess.Popen[bytes], httpx2.AsyncClient]]":
    port = free_port()
    process = processes.start("up", *arguments, "--port", str(port))
    async with api_client(port) as client:
        await until_ready(client, process, processes)
        yield process, client


@pytest.fixture
async def processes(tmp_path: Path) -> AsyncIterator[Processes]:
    async with Processes(str(tmp_path / "mainspring.db"), tmp_path / "logs") as processes:
        yield processes


async def test_the_demo_answers_published_requests(processes: Processes) -> None:
    async with running(processes, "mainspring.demo:app") as (_, client):
        await check_cleanup(client, processes)
        await check_email(client, processes)
        await check_schedule(client)


async def check_cleanup(client: httpx2.AsyncClient, processes: Processes) -> None:
    made = await post(client, "/v1/jobs", CLEANUP)
    assert (made.status_code, made.json()["status"]) == (201, "scheduled"), made.text
    job = made.json()["jobId"]
    read = (await client.get(f"/v1/jobs/{job}")).json()
    shown = {name: read[name] for name in ("jobId", "name", "scheduleType", "cronExpression", "status")}
    assert shown == {
        "jobId": job,
        "name": "Daily Cleanup",
        "scheduleType": "cron",
        "cronExpression": "0 0 2 * * *",
        "status": "scheduled",
    }
    assert read["createdAt"].endswith("Z")
    changed = (await post(client, f"/v1/jobs/{job}", UPDATE, "PUT")).json()
    assert (changed["cronExpression"], changed["maxRetries"]) == ("0 0 3 * * *", 5)
    assert changed["nextFires"][0].endswith("T03:00:00Z")

    run = await client.post(f"/v1/jobs/{job}/run")
    assert (run.status_code, run.json()["jobId"], run.json()["status"]) == (201, job, "queued"), run.text
    ended = await until_status(client, job, "succeeded", processes)
    assert (ended["runId"], ended["progress"]) == (run.json()["runId"], "100%")
    assert ended["startTime"].endswith("Z")
    assert ended["executorId"]
    lines = await log_lines(client, job)
    assert re.fullmatch(r"looking for files in .* that are older than 30 days", lines[0])
    assert re.fullmatch(r"found \d+ of \d+ files", lines[-1])
    assert (await client.get(f"/v1/jobs/{job}/logs", params={"url": "true"})).status_code == 409
    for words in ("success", "COMPLETED"):
        found = (await client.get("/v1/runs", params={"jobId": job, "status": words})).json()["items"]
        assert [one["runId"] for one in found] == [run.json()["runId"]]

    cancelled = await client.delete(f"/v1/jobs/{job}")
    assert (cancelled.status_code, cancelled.json()) == (200, {"jobId": job, "status": "cancelled"})
    status = (await client.get(f"/v1/jobs/{job}/status")).json()
    assert (status["status"], status["runStatus"]) == ("cancelled", "succeeded")
    assert (await client.post(f"/v1/jobs/{job}/run")).status_code == 409


async def check_email(client: httpx2.AsyncClient, processes: Processes) -> None:
    body = EMAIL
    if datetime.now(UTC) > datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC):
        refused = await post(client, "/v1/jobs", body)
        assert (refused.status_code, refused.json()["field"]) == (400, "schedule_time")
        body = EMAIL.replace("2026", "2999")
    made = await post(client, "/v1/jobs", body)
    assert (made.status_code, made.json()["status"]) == (201, "scheduled"), made.text
    job = made.json()["jobId"]
    read = (await client.get(f"/v1/jobs/{job}")).json()
    assert (read["task"], read["scheduleType"], read["maxRetries"]) == ("email_send", "future", 3)
    assert read["payload"] == {"user_id": 123, "body": "..."}
    run = (await client.post(f"/v1/jobs/{job}/run")).json()
    assert (run["jobId"], run["status"]) == (job, "queued")
    ended = await until_status(client, job, "succeeded", processes)
    assert ended["runId"] == run["runId"]
    assert (await log_lines(client, job))[-1].endswith("mail to user 123: ...")
    runs = (await client.get("/v1/runs", params={"jobId": job})).json()["items"]
    assert {one["runId"]: one["status"] for one in runs} == {job: "scheduled", run["runId"]: "succeeded"}
    assert (await client.delete(f"/v1/jobs/{job}")).json() == {"jobId": job, "status": "cancelled"}
    assert (await client.get(f"/v1/jobs/{job}/status")).json()["status"] == "cancelled"


async def check_schedule(client: httpx2.AsyncClient) -> None:
    """The guide prints the handler of ``POST /api/jobs/schedule`` and no body: these are the fields that it reads."""
    soon = (datetime.now(UTC) + timedelta(hours=1)).isoformat().replace("+00:00", "Z")
    body = {"type": "email_send", "priority": 1, "executeAt": soon, "payload": {"user_id": 7, "body": "payout"}}
    made = await client.post("/api/jobs/schedule", json=body)
    assert made.status_code == 200, made.text
    job = made.json()["jobId"]
    read = (await client.get(f"/v1/jobs/{job}")).json()
    assert (read["task"], read["priority"], read["status"]) == ("email_send", 1, "scheduled")
    assert (await client.delete(f"/v1/jobs/{job}")).json()["status"] == "cancelled"
    refused = await client.post("/api/jobs/schedule", json={**body, "executeAt": "2020-01-01T00:00:00Z"})
    assert (refused.status_code, refused.json()["field"]) == (400, "executeAt")
    assert "in the past" in refused.json()["detail"]


async def test_a_folder_of_scripts_is_enough_and_a_running_script_can_be_cancelled(
    processes: Processes, tmp_path: Path
) -> None:
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    (scripts / "cleanup.py").write_text(SLOW_SCRIPT)
    now = re.sub(r'"(scheduleTime|cronExpression)".*', "", CLEANUP).replace('"cron"', '"immediate"')
    async with running(processes, "--scripts", str(scripts)) as (_, client):
        made = await post(client, "/v1/jobs", now)
        assert (made.status_code, made.json()["status"]) == (201, "queued"), made.text
        job = made.json()["jobId"]
        await until_status(client, job, "running", processes)

        async def has_printed() -> bool:
            return await log_lines(client, job) == ["waiting"]

        await eventually(has_printed, processes.logs)
        stopping = await client.delete(f"/v1/jobs/{job}")
        assert (stopping.status_code, stopping.json()) == (202, {"jobId": job, "status": "cancelling"})
        await until_status(client, job, "cancelled", processes)
        assert await log_lines(client, job) == ["waiting", "stopping"]
        assert (await client.post(f"/v1/jobs/{job}/run")).status_code == 409


async def test_without_a_folder_of_scripts_the_answer_names_the_flag(processes: Processes) -> None:
    async with running(processes) as (_, client):
        refused = await post(client, "/v1/jobs", CLEANUP)
        assert (refused.status_code, refused.json()["field"]) == (400, "task")
        assert "--scripts DIR" in refused.json()["hint"]
