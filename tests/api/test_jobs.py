"""Jobs over HTTP: the examples of the lecture, the fields, the errors."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from structlog.testing import capture_logs

from mainspring.core.model.base.instant import MINUTE, Instant
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.http.api_store import ApiStore
from tests.api.conftest import Service
from tests.api.test_remote import claim, register
from tests.support.clock import ManualClock


def later(**span: float) -> str:
    return (datetime.now(UTC) + timedelta(**span)).isoformat().replace("+00:00", "Z")


async def create(client: httpx2.AsyncClient, **fields: Any) -> dict[str, Any]:
    response = await client.post("/v1/jobs", json={"task": "t", **fields})
    assert response.status_code == 201, response.text
    body: dict[str, Any] = response.json()
    return body


async def test_an_immediate_job_is_queued_and_can_be_read(client: httpx2.AsyncClient) -> None:
    made = await create(client, name="hello", payload={"a": [1]}, tags=["x"], owner="me", maxRetries=5)
    assert made["status"] == "queued"
    assert made["scheduleType"] == "immediate"
    read = (await client.get(f"/v1/jobs/{made['jobId']}")).json()
    assert read["payload"] == {"a": [1]}
    assert (read["name"], read["owner"], read["tags"], read["maxRetries"]) == ("hello", "me", ["x"], 5)


LECTURE = {
    "name": "Daily Cleanup",
    "scheduleType": "cron",
    "scheduleTime": "2026-01-22T02:00:00Z",
    "cronExpression": "0 0 2 * * *",
    "payload": {"script": "cleanup.py", "params": {"days": 30}},
    "maxRetries": 3,
}


async def test_the_script_of_the_lecture_is_rejected_while_scripts_are_off(client: httpx2.AsyncClient) -> None:
    response = await client.post("/v1/jobs", json=LECTURE)
    assert response.status_code == 400
    assert response.json()["detail"] == "task: running scripts is off here"
    assert "--scripts DIR" in response.json()["hint"]
    assert "tasks.scripts" in response.json()["hint"]


async def test_the_cron_job_of_the_lecture(store: ApiStore, tmp_path: Path) -> None:
    (tmp_path / "cleanup.py").write_text("print('clean')")
    async with Service(auth=False, scripts=tmp_path, store=store).client() as client:
        await walk_through_the_lecture(client)


async def test_the_immediate_and_future_jobs_of_the_lecture(store: ApiStore, tmp_path: Path) -> None:
    (tmp_path / "cleanup.py").write_text("print('clean')")
    other = {name: LECTURE[name] for name in ("name", "payload", "maxRetries")}
    async with Service(auth=False, scripts=tmp_path, store=store).client() as client:
        now = await client.post("/v1/jobs", json={**other, "scheduleType": "immediate"})
        assert (now.status_code, now.json()["status"]) == (201, "queued")
        future = await client.post("/v1/jobs", json={**other, "scheduleType": "future", "scheduleTime": later(days=1)})
        assert (future.status_code, future.json()["status"]) == (201, "scheduled")


async def walk_through_the_lecture(client: httpx2.AsyncClient) -> None:
    response = await client.post("/v1/jobs", json=LECTURE)
    assert response.status_code == 201, response.text
    made = response.json()
    assert made["status"] == "scheduled"
    assert made["task"] == "shell"
    assert len(made["nextFires"]) == 5
    assert all(fire.endswith("T02:00:00Z") for fire in made["nextFires"])
    job = made["jobId"]

    read = (await client.get(f"/v1/jobs/{job}")).json()
    assert read["cronExpression"] == "0 0 2 * * *"
    changed = await client.put(f"/v1/jobs/{job}", json={"cronExpression": "0 0 3 * * *", "maxRetries": 5})
    assert changed.status_code == 200, changed.text
    assert changed.json()["maxRetries"] == 5
    assert changed.json()["version"] == 2
    assert changed.json()["nextFires"][0].endswith("T03:00:00Z")

    run = await client.post(f"/v1/jobs/{job}/run")
    assert run.status_code == 201, run.text
    assert run.json()["status"] == "queued"
    assert (await client.get(f"/v1/jobs/{job}/runs")).json()["items"][0]["runId"] == run.json()["runId"]
    worker = await register(client)
    [held] = await claim(client, worker)
    report = {"fence": held["fence"], "done": 5, "total": 10}
    assert (await client.post(f"/v1/runs/{held['runId']}/progress", json=report)).status_code == 200
    status = (await client.get(f"/v1/jobs/{job}/status")).json()
    assert (status["jobId"], status["status"], status["progress"]) == (job, "running", "50%")
    assert status["executorId"] == f"curl#{worker}"
    assert status["startTime"].endswith("Z")

    stopping = await client.delete(f"/v1/jobs/{job}")
    assert (stopping.status_code, stopping.json()) == (202, {"jobId": job, "status": "cancelling"})
    heartbeat = (
        await client.post(f"/v1/workers/{worker}/heartbeat", json={"held": [held["runId"]], "claim": 0})
    ).json()
    assert heartbeat["cancel"] == [held["runId"]]
    await client.post(f"/v1/runs/{held['runId']}/cancelled", json={"fence": held["fence"]})
    deleted = await client.delete(f"/v1/jobs/{job}")
    assert (deleted.status_code, deleted.json()) == (200, {"jobId": job, "status": "cancelled"})


async def test_a_future_job_can_be_moved_until_it_starts(client: httpx2.AsyncClient) -> None:
    made = await create(client, scheduleTime=later(hours=1), payload=1)
    assert (made["status"], made["scheduleType"]) == ("scheduled", "future")
    when = later(hours=2)
    moved = await client.patch(f"/v1/jobs/{made['jobId']}", json={"scheduleTime": when, "priority": 1})
    assert moved.status_code == 200, moved.text
    assert moved.json()["scheduleTime"][:19] == when[:19]
    assert moved.json()["priority"] == 1
    assert moved.json()["payload"] == 1


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"nonsense": 1}, "nonsense", "no field"),
        ({"priority": "high"}, "priority", "expected 'int'"),
        ({"priority": 11}, "priority", "at most 10"),
        ({"scheduleTime": "2020-01-01T00:00:00Z"}, "scheduleTime", "in the past"),
        ({"scheduleType": "cron"}, "cronExpression", "missing"),
        ({"name": "n", "cronExpression": "0 0 30 2 *"}, "cronExpression", "no such day"),
        ({"name": "n", "cronExpression": "* * * * *", "timezone": "Mars/Base"}, "timezone", "Mars/Base"),
        ({"name": "n", "every": "0s"}, "every", "0s"),
        ({"cronExpression": "* * * * *"}, "name", "missing"),
        ({"tags": ["a", "a"]}, "tags", "twice"),
        ({"overlap": "skip"}, "overlap", "recurring"),
        ({"tenant": " x"}, "tenant", "not a name"),
    ],
)
async def test_bad_input_names_the_field(
    client: httpx2.AsyncClient, fields: dict[str, Any], field: str, words: str
) -> None:
    response = await client.post("/v1/jobs", json={"task": "t", **fields})
    assert response.status_code == 400, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem["field"] == field
    assert words in problem["detail"]


async def test_the_same_idempotency_key_returns_the_same_job(client: httpx2.AsyncClient) -> None:
    first = await create(client, idempotencyKey="k", payload=1)
    again = await create(client, idempotencyKey="k", payload=1)
    assert again["jobId"] == first["jobId"]
    other = await client.post("/v1/jobs", json={"task": "t", "idempotencyKey": "k", "payload": 2})
    assert (other.status_code, other.json()["existingId"]) == (409, first["jobId"])
    by_header = await client.post("/v1/jobs", json={"task": "t", "payload": 1}, headers={"idempotency-key": "k"})
    assert by_header.json()["jobId"] == first["jobId"]


async def test_a_batch_reports_the_outcome_of_each_job(client: httpx2.AsyncClient) -> None:
    response = await client.post(
        "/v1/jobs/batch",
        json={
            "jobs": [{"task": "t"}, {"task": ""}, {"task": "t", "oops": 1}, {"task": "t", "name": "c", "every": "5m"}]
        },
    )
    assert response.status_code == 200, response.text
    body = response.json()
    assert (body["accepted"], body["refused"]) == (2, 2)
    assert body["items"][1]["problem"]["field"] == "task"
    assert body["items"][2]["problem"]["field"] == "oops"
    for item in (body["items"][0], body["items"][3]):
        assert (await client.get(f"/v1/jobs/{item['jobId']}")).status_code == 200


async def test_missing_and_malformed_ids_get_the_same_answer(client: httpx2.AsyncClient) -> None:
    missing = await client.get("/v1/jobs/019a8c4b6f2c70008042b1c2d3e4f506")
    malformed = await client.get("/v1/jobs/nonsense")
    assert missing.status_code == malformed.status_code == 404
    assert missing.content == malformed.content


async def test_a_list_of_jobs_pages_over_one_off_and_recurring_jobs(client: httpx2.AsyncClient) -> None:
    made = []
    for number in range(7):
        fields: dict[str, Any] = {"name": f"job {number}"}
        if number % 2:
            fields["every"] = "1h"
        made.append((await create(client, **fields))["jobId"])
    for limit in (1, 2, 3, 50):
        seen: list[str] = []
        cursor = None
        for _ in range(20):
            query: dict[str, Any] = {"limit": limit} | ({"cursor": cursor} if cursor else {})
            page = (await client.get("/v1/jobs", params=query)).json()
            seen += [item["jobId"] for item in page["items"]]
            cursor = page["nextCursor"]
            if cursor is None:
                break
        assert seen == sorted(made, reverse=True), limit
    found = (await client.get("/v1/jobs", params={"text": "JOB 3"})).json()["items"]
    assert [item["jobId"] for item in found] == [made[3]]
    assert (await client.get("/v1/jobs", params={"colour": "red"})).status_code == 400


async def test_a_job_is_paused_resumed_changed_and_restored(client: httpx2.AsyncClient) -> None:
    job = (await create(client, name="v", every="1h"))["jobId"]
    assert (await client.post(f"/v1/jobs/{job}/pause")).json()["status"] == "paused"
    assert (await client.post(f"/v1/jobs/{job}/resume")).json()["status"] == "scheduled"
    await client.patch(f"/v1/jobs/{job}", json={"every": "2h", "why": "too often"})
    stale = await client.patch(f"/v1/jobs/{job}", json={"every": "3h", "expectedVersion": 1})
    assert stale.status_code == 409
    versions = (await client.get(f"/v1/jobs/{job}/versions")).json()["items"]
    assert [version["version"] for version in versions] == [2, 1]
    assert versions[0]["why"] == "too often"
    assert versions[0]["changes"] == {"every": {"before": "1h", "after": "2h"}}
    restored = await client.post(f"/v1/jobs/{job}/versions/1/restore")
    assert restored.json()["every"] == "1h"
    assert restored.json()["version"] == 3


async def test_a_body_of_the_wrong_type_encoding_or_size_is_rejected(client: httpx2.AsyncClient) -> None:
    assert (await client.post("/v1/jobs", content=b"{")).status_code == 415
    form = await client.post("/v1/jobs", data={"task": "t"})
    assert form.status_code == 415
    assert "`Content-Type: application/json`" in form.json()["hint"], "what curl --data sends"
    headers = {"content-type": "application/json"}
    assert (await client.post("/v1/jobs", content=b"{", headers=headers)).status_code == 400
    zipped = await client.post("/v1/jobs", content=b"x", headers=headers | {"content-encoding": "gzip"})
    assert zipped.status_code == 415
    huge = b'{"task":"t","payload":"' + b"x" * 600_000 + b'"}'
    assert (await client.post("/v1/jobs", content=huge, headers=headers)).status_code == 413
    assert (await client.put("/v1/jobs")).status_code == 405


@pytest.mark.parametrize("body", ['{"task": "t", // a task\n"queue": "q"}', '{"job_type": /* a task */ "t"}'])
async def test_a_comment_in_a_body_is_named(client: httpx2.AsyncClient, body: str) -> None:
    answer = await client.post("/v1/jobs", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["hint"]) == (400, "JSON has no comments: remove this one")


async def test_a_job_that_cannot_run_now_is_accepted_with_a_warning(client: httpx2.AsyncClient) -> None:
    made = await create(client)
    assert made["warnings"] == ["no worker is running; the job waits until one starts: mainspring worker MODULE:APP"]
    assert (await client.get(f"/v1/jobs/{made['jobId']}")).json()["warnings"] == made["warnings"]
    await client.post("/v1/workers/register", json={"name": "w", "queues": ["billing"], "tasks": ["bill"]})
    for fields, warning in (
        (
            {"task": "bill"},
            "no live worker serves queue 'default'; start one with --queue default (served queues: billing)",
        ),
        ({"task": "bill", "queue": "biling"}, "no live worker serves queue 'biling'; did you mean 'billing'?"),
        ({"queue": "billing"}, "no live worker knows task 't'; it waits until one does"),
        (
            {"queue": "billing", "task": "bill", "name": "n", "every": "1h", "datacenters": ["mars"]},
            "no live worker of queue 'billing' is in data center 'mars'; no live worker names one",
        ),
    ):
        assert (await create(client, **fields))["warnings"] == [warning]
    made = await create(client, queue="billing", task="bill")
    assert "warnings" not in made


async def test_a_job_is_warned_of_its_queue_its_data_center_and_its_task_at_once(client: httpx2.AsyncClient) -> None:
    await client.post("/v1/workers/register", json={"name": "w", "queues": ["billing"], "tasks": ["bill"]})
    fields = {"task": "nope", "queue": "nowhere", "datacenters": ["mars"]}
    found = (await create(client, **fields))["warnings"]
    assert [warning.partition(";")[0] for warning in found] == [
        "no live worker serves queue 'nowhere'",
        "no live worker is in data center 'mars'",
        "no live worker knows task 'nope'",
    ]
    refused = await client.post("/v1/jobs?strict=true", json=fields)
    assert all(warning in refused.json()["detail"] for warning in found)


async def test_a_warning_about_an_accepted_job_is_logged_once_a_minute() -> None:
    clock = ManualClock()
    service = Service(auth=False, clock=clock)
    async with service.client() as client:
        with capture_logs() as lines:
            made = [await create(client) for _ in range(2)]
            clock.advance(MINUTE)
            made.append(await create(client))
    [reason] = made[0]["warnings"]
    logged = [(line["job"], line["reason"]) for line in lines if line["event"] == "accepted job cannot run"]
    assert logged == [(made[0]["jobId"], reason), (made[2]["jobId"], reason)]


@pytest.mark.parametrize("when", [{"delay": "1h"}, {"name": "r", "every": "1h"}])
async def test_a_change_to_a_queue_that_nothing_serves_has_a_warning(
    client: httpx2.AsyncClient, when: dict[str, str]
) -> None:
    await client.post("/v1/workers/register", json={"name": "w", "queues": ["billing"], "tasks": ["bill"]})
    job = (await create(client, task="bill", queue="billing", **when))["jobId"]
    changed = (await client.put(f"/v1/jobs/{job}", json={"queue": "biling"})).json()
    assert changed["warnings"] == ["no live worker serves queue 'biling'; did you mean 'billing'?"]
    assert "warnings" not in (await client.put(f"/v1/jobs/{job}", json={"queue": "billing"})).json()


async def test_strict_refuses_a_job_that_cannot_run_now(client: httpx2.AsyncClient) -> None:
    await client.post("/v1/workers/register", json={"name": "w", "queues": ["billing"], "tasks": ["bill"]})
    for fields in ({"task": "bill"}, {"task": "bill", "name": "n", "every": "1h"}):
        refused = await client.post("/v1/jobs?strict=true", json=fields)
        assert refused.status_code == 409
        assert "no live worker serves queue 'default'" in refused.json()["detail"]
        assert "existingId" not in refused.json()
        assert (await client.post("/v1/jobs?strict=true", json=fields | {"queue": "billing"})).status_code == 201


async def test_a_batch_has_each_warning_once_and_strict_refuses_single_jobs(client: httpx2.AsyncClient) -> None:
    await client.post("/v1/workers/register", json={"name": "w", "queues": ["billing"], "tasks": ["bill"]})
    jobs = [{"task": "bill"}, {"task": "bill"}, {"task": "bill", "queue": "billing"}]
    answer = (await client.post("/v1/jobs/batch", json={"jobs": jobs})).json()
    assert answer["accepted"] == 3
    assert answer["warnings"] == [
        "no live worker serves queue 'default'; start one with --queue default (served queues: billing)"
    ]
    answer = (await client.post("/v1/jobs/batch?strict=true", json={"jobs": jobs})).json()
    assert [item.get("problem") is None for item in answer["items"]] == [False, False, True]
    assert answer["items"][0]["problem"]["status"] == 409


async def test_a_backfill_creates_each_missed_tick_once(client: httpx2.AsyncClient) -> None:
    job = (await create(client, name="b", every="1h", scheduleTime="2026-01-01T00:00:00Z"))["jobId"]
    span = {"since": "2026-01-01T00:00:00Z", "until": "2026-01-01T06:00:00Z"}
    planned = (await client.post(f"/v1/jobs/{job}/backfill", json={**span, "dryRun": True})).json()
    assert (planned["ticks"], planned["made"]) == (6, 0)
    done = (await client.post(f"/v1/jobs/{job}/backfill", json=span)).json()
    assert done["made"] == 6
    again = (await client.post(f"/v1/jobs/{job}/backfill", json=span)).json()
    assert again["made"] == 0


async def test_a_change_is_checked_like_a_new_job(client: httpx2.AsyncClient) -> None:
    await client.put("/v1/tenants", json={"name": "small", "quotas": {"payloadBytes": 10}})
    for fields in ({"delay": "1h"}, {"name": "r", "every": "1h"}):
        job = (await create(client, tenant="small", payload=1, **fields))["jobId"]
        for method in ("PATCH", "PUT"):
            for change in ({"payload": "x" * 20}, {"task": "shell", "payload": {"script": "x"}}):
                refused = await client.request(method, f"/v1/jobs/{job}", json=change)
                assert refused.status_code == 400, refused.text
        assert (await client.get(f"/v1/jobs/{job}")).json()["payload"] == 1
        refused = await client.post(f"/v1/jobs/{job}/run", json={"payload": "x" * 20})
        assert refused.status_code == 400


async def test_a_backfill_is_checked_like_a_new_job(service: Service) -> None:
    async with service.client() as client:
        start = "2026-01-01T00:00:00Z"
        fields = {"name": "b", "every": "1h", "scheduleTime": start, "payload": "x" * 20}
        await client.put("/v1/tenants", json={"name": "small"})
        job = (await create(client, tenant="small", **fields))["jobId"]
        await client.put("/v1/tenants", json={"name": "small", "quotas": {"payloadBytes": 10}})
        service.api.admission._quotas.forget()
        span = {"since": start, "until": "2026-01-01T06:00:00Z"}
        refused = await client.post(f"/v1/jobs/{job}/backfill", json=span)
        assert (refused.status_code, refused.json()["field"]) == (400, "payload")
        assert (await client.get(f"/v1/jobs/{job}/runs")).json()["items"] == []


async def test_concurrent_changes_of_a_one_off_job_are_all_kept(client: httpx2.AsyncClient) -> None:
    for _ in range(5):
        job = (await create(client, delay="1h"))["jobId"]
        changes = ({"priority": 1}, {"owner": "ada"}, {"tags": ["x"]}, {"payload": 7}, {"name": "n"})
        answers = await asyncio.gather(*(client.patch(f"/v1/jobs/{job}", json=change) for change in changes))
        assert [answer.status_code for answer in answers] == [200] * len(changes), [a.text for a in answers]
        read = (await client.get(f"/v1/jobs/{job}")).json()
        assert (read["priority"], read["owner"], read["tags"], read["payload"], read["name"]) == (
            1,
            "ada",
            ["x"],
            7,
            "n",
        )


async def test_a_repeated_request_is_recognized_after_its_schedule_time_has_passed(service: Service) -> None:
    async with service.client() as client:
        when = later(minutes=5)
        once = {"task": "t", "scheduleTime": when, "idempotencyKey": "once"}
        twice = {"task": "t", "scheduleTime": when, "idempotencyKey": "twice"}
        first = await client.post("/v1/jobs", json=once)
        [second] = (await client.post("/v1/jobs/batch", json={"jobs": [twice]})).json()["items"]
        count = len((await client.get("/v1/jobs")).json()["items"])
        ahead = service.clock.now() + 12 * MINUTE

        class Later(SystemClock):
            def now(self) -> Instant:
                return ahead

        service.api.clock = Later()
        again = await client.post("/v1/jobs", json=once)
        assert (again.status_code, again.json()["jobId"]) == (201, first.json()["jobId"]), again.text
        other = await client.post("/v1/jobs", json=once | {"payload": 2})
        assert other.status_code == 409
        new = await client.post("/v1/jobs", json=once | {"idempotencyKey": "new"})
        assert new.status_code == 400
        assert "7m" in new.json()["detail"]
        assert "in the past" in new.json()["detail"]
        jobs = [once, once | {"idempotencyKey": "new"}, twice, {"task": "t", "scheduleTime": when}]
        items = (await client.post("/v1/jobs/batch", json={"jobs": jobs})).json()["items"]
        assert (items[0]["jobId"], items[2]["jobId"]) == (first.json()["jobId"], second["jobId"])
        assert [items[number]["problem"]["field"] for number in (1, 3)] == ["scheduleTime"] * 2
        assert len((await client.get("/v1/jobs")).json()["items"]) == count


@pytest.mark.parametrize("fields", [{}, {"name": "r", "every": "1h"}], ids=["one-off", "recurring"])
async def test_run_now_honors_the_idempotency_key(client: httpx2.AsyncClient, fields: dict[str, Any]) -> None:
    job = (await create(client, **fields))["jobId"]
    headers = {"idempotency-key": "k"}
    first = await client.post(f"/v1/jobs/{job}/run", json={"payload": 1}, headers=headers)
    again = await client.post(f"/v1/jobs/{job}/run", json={"payload": 1}, headers=headers)
    assert first.status_code == again.status_code == 201
    assert first.json()["runId"] == again.json()["runId"]
    other = await client.post(f"/v1/jobs/{job}/run", json={"payload": 2}, headers=headers)
    assert (other.status_code, other.json()["existingId"]) == (409, first.json()["runId"])
    bad = await client.post(f"/v1/jobs/{job}/run", headers={"idempotency-key": "x" * 201})
    assert bad.status_code == 400


async def test_retry_honors_the_idempotency_key(client: httpx2.AsyncClient) -> None:
    run = (await create(client))["jobId"]
    await client.delete(f"/v1/jobs/{run}")
    headers = {"idempotency-key": "k"}
    first = await client.post(f"/v1/runs/{run}/retry", headers=headers)
    again = await client.post(f"/v1/runs/{run}/retry", headers=headers)
    assert first.status_code == again.status_code == 201
    assert first.json() == again.json()


async def test_a_batch_with_an_idempotency_key_header_is_rejected(client: httpx2.AsyncClient) -> None:
    body = {"jobs": [{"task": "t"}]}
    refused = await client.post("/v1/jobs/batch", json=body, headers={"idempotency-key": "k"})
    assert (refused.status_code, refused.json()["field"]) == (400, "Idempotency-Key")
    assert (await client.get("/v1/jobs")).json()["items"] == []


@pytest.mark.parametrize("queue", ["a/b", "/", ".", ".."])
async def test_a_queue_name_that_cannot_be_part_of_a_path_is_rejected(client: httpx2.AsyncClient, queue: str) -> None:
    for fields in ({}, {"name": "r", "every": "1h"}):
        refused = await client.post("/v1/jobs", json={"task": "t", "queue": queue, **fields})
        assert (refused.status_code, refused.json()["field"]) == (400, "queue")
    refused = await client.post("/v1/workers/register", json={"name": "w", "queues": [queue]})
    assert refused.status_code == 400
