"""Requests with the field names of other schedulers, in camelCase and snake_case."""

from typing import Any

import httpx2
import msgspec
import pytest

from mainspring.core.ports.ingest import JobRequest
from mainspring.core.ports.storage.catalog import RunFilter
from mainspring.features.ingest.intake import JobCreator
from tests.api.conftest import Service, memory_only
from tests.api.test_bad_input import refused

pytestmark = memory_only
LATER = "2999-12-31T23:59:59Z"
PAST = "2020-01-01T00:00:00Z"
SAME = [
    {"task": "email_send", "scheduleTime": LATER, "payload": {"user_id": 123, "executeAt": 1}, "maxRetries": 7},
    {"job_type": "email_send", "schedule_time": LATER, "payload": {"user_id": 123, "executeAt": 1}, "retries": 7},
    {"jobType": "email_send", "execute_at": LATER, "payload": {"user_id": 123, "executeAt": 1}, "max_retries": 7},
    {"type": "email_send", "executeAt": LATER, "payload": {"user_id": 123, "executeAt": 1}, "retries": 7},
]


@pytest.mark.parametrize("body", SAME)
async def test_a_job_may_be_described_with_other_names(client: httpx2.AsyncClient, body: dict[str, Any]) -> None:
    answer = await client.post("/v1/jobs", json=body)
    assert answer.status_code == 201, answer.text
    job = answer.json()
    assert (job["task"], job["scheduleTime"], job["maxRetries"]) == ("email_send", LATER, 7)
    read = (await client.get(f"/v1/jobs/{job['jobId']}")).json()
    assert read["payload"] == {"user_id": 123, "executeAt": 1}


async def test_the_same_job_under_other_names_is_the_same_request(client: httpx2.AsyncClient) -> None:
    answers = [await client.post("/v1/jobs", json=body, headers={"idempotency-key": "k"}) for body in SAME]
    assert [answer.status_code for answer in answers] == [201] * len(SAME)
    assert len({answer.json()["jobId"] for answer in answers}) == 1


async def test_nested_fields_may_be_in_snake_case(client: httpx2.AsyncClient) -> None:
    job = {
        "name": "n",
        "task": "t",
        "cron_expression": "0 3 * * *",
        "retry": {"first_delay": "3s", "maxDelay": "9s"},
        "catch_up": {"mode": "all", "max_age": "1h"},
        "slo": {"start_within": "1m"},
    }
    answer = (await client.post("/v1/jobs", json=job)).json()
    assert answer["cronExpression"] == "0 3 * * *"
    assert (answer["retry"]["firstDelay"], answer["retry"]["maxDelay"]) == ("3s", "9s")
    assert (answer["catchUp"]["maxAge"], answer["slo"]["startWithin"]) == ("1h", "1m")
    changed = await client.patch(f"/v1/jobs/{answer['jobId']}", json={"retries": 9, "start_within": "5m"})
    assert (changed.json()["maxRetries"], changed.json()["startWithin"]) == (9, "5m")


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({"task": "t", "job_type": "t"}, "job_type", "job_type: is another name of task, which is given as well"),
        ({"type": "t", "job_type": "t"}, "job_type", "of type"),
        ({"task": "t", "scheduleTime": LATER, "schedule_time": LATER}, "schedule_time", "of scheduleTime"),
        ({"task": "t", "maxRetries": 1, "retries": 1}, "retries", "of maxRetries"),
        ({"task": "t", "retry": {"firstDelay": 1, "first_delay": 1}}, "retry.first_delay", "of retry.firstDelay"),
    ],
)
async def test_two_names_of_one_field_are_rejected(
    client: httpx2.AsyncClient, body: dict[str, Any], field: str, words: str
) -> None:
    refused(await client.post("/v1/jobs", json=body), field, words)


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({"task": "t", "retries": -1}, "retries", "at least 0"),
        ({"type": 7}, "type", "expected 'str'"),
        ({"type": "t", "executeAt": PAST}, "executeAt", "in the past"),
        ({"type": "t", "schedule_time": PAST}, "schedule_time", "in the past"),
        ({"type": "t", "executeAt": "tomorrow"}, "executeAt", "is not a time with a zone"),
        ({"task": "t", "retry": {"first_delay": "soon"}}, "retry.first_delay", "is not a duration"),
        ({"name": "n", "task": "t", "cron_expression": "61 * * * *"}, "cron_expression", "minute"),
    ],
)
async def test_an_error_names_the_field_as_the_request_did(
    client: httpx2.AsyncClient, service: Service, body: dict[str, Any], field: str, words: str
) -> None:
    refused(await client.post("/v1/jobs", json=body), field, words)
    refused(await client.post("/v1/jobs/preview", json=body), field, words)
    [item] = (await client.post("/v1/jobs/batch", json={"jobs": [body]})).json()["items"]
    assert item["problem"]["field"] == field


async def test_unknown_fields_are_reported_together_with_what_was_meant(client: httpx2.AsyncClient) -> None:
    body = {"task": 7, "cronExpresion": "* * * * *", "speed": 1, "retry": {"firstDely": 1}}
    answer = await client.post("/v1/jobs", json=body)
    refused(answer, "cronExpresion", "nor are speed and retry.firstDely", "`cronExpression` for cronExpresion")
    refused(await client.post("/v1/jobs", json={"task": "t", "cron": "x"}), "cron", "did you mean `cronExpression`?")
    refused(await client.get("/v1/jobs", params={"statis": "x"}), "statis", "did you mean `status`?")


async def test_repeated_and_unknown_fields_are_reported_together(client: httpx2.AsyncClient) -> None:
    body = {"task": "t", "job_type": "t", "maxRetries": 1, "retries": 1, "executAt": LATER}
    answer = await client.post("/v1/jobs", json=body)
    refused(answer, "job_type", "of task", "retries is another name of maxRetries", "executAt is no field")
    assert answer.json()["hint"] == "keep one of them; did you mean `executeAt`?"


async def test_a_batch_takes_every_name(client: httpx2.AsyncClient) -> None:
    key = {"idempotency_key": "k"}
    jobs = [*SAME, {"type": "t", "speed": 1}, {"type": "t", "executeAt": PAST, **key}]
    items = (await client.post("/v1/jobs/batch", json={"jobs": jobs})).json()["items"]
    assert [item["status"] for item in items[:-2]] == ["scheduled"] * len(SAME)
    assert [item["problem"]["field"] for item in items[-2:]] == ["speed", "executeAt"]


async def test_schedules_and_workflows_take_every_name(client: httpx2.AsyncClient) -> None:
    schedule = {"name": "n", "job_type": "t", "cron_expression": "0 3 * * *", "retries": 2}
    answer = await client.post("/v1/schedules/reconcile", json={"source": "file:a", "schedules": [schedule]})
    assert [step["action"] for step in answer.json()["steps"]] == ["add"], answer.text
    wrong = {**schedule, "cron_expression": "61 * * * *"}
    answer = await client.post("/v1/schedules/reconcile", json={"source": "file:a", "schedules": [wrong]})
    refused(answer, "schedules[0].cron_expression")
    nodes = {"first_one": {"job_type": "t"}, "second_one": {"type": "t", "after": ["first_one"], "retries": 1}}
    answer = await client.post("/v1/workflows", json={"name": "w", "nodes": nodes})
    assert sorted(answer.json()["nodes"]) == ["first_one", "second_one"], answer.text


async def test_the_endpoint_for_a_time_takes_every_name(client: httpx2.AsyncClient) -> None:
    body = {"type": "payout", "priority": 1, "executeAt": LATER, "payload": {"driverId": 7}}
    answer = await client.post("/api/jobs/schedule", json=body)
    assert answer.status_code == 200, answer.text
    job = (await client.get(f"/v1/jobs/{answer.json()['jobId']}")).json()
    assert (job["task"], job["priority"], job["scheduleTime"], job["payload"]) == ("payout", 1, LATER, {"driverId": 7})
    refused(await client.post("/api/jobs/schedule", json={**body, "executeAt": PAST}), "executeAt", "in the past")


async def test_requests_out_of_a_log_take_every_name(service: Service) -> None:
    maker = JobCreator(service.api, None)

    def ask(number: int, body: object) -> JobRequest:
        data = msgspec.json.encode(body)
        return JobRequest(body=data, key=f"k{number}", tenant=None, sent_at=service.clock.now(), receipt=None)

    wrong = {"type": "t", "executeAt": PAST}
    answers = await maker.create([ask(number, body) for number, body in enumerate([*SAME, wrong])], {})
    assert answers[:-1] == [None] * len(SAME)
    refusal = answers[-1]
    assert refusal is not None
    assert (refusal.field, "in the past" in refusal.detail) == ("executeAt", True)
    page = await service.store.list_runs(RunFilter(tenant="default"), None, 10)
    assert [(run.task, run.policy.retry.max_retries) for run in page.items] == [("email_send", 7)] * len(SAME)
