"""Errors name the field and a valid value."""

from typing import Any

import httpx2
import pytest

from tests.api.conftest import memory_only
from tests.api.test_bad_input import refused

CIRCLE = [
    {"task": "t", "dependsOn": ["#2"]},
    {"task": "t"},
    {"task": "t", "dependsOn": ["#0"]},
]
HOURLY = {"name": "hourly", "every": "1h"}


@memory_only
@pytest.mark.parametrize(
    ("path", "body", "field", "words"),
    [
        ("/v1/jobs", {"overlap": "x"}, "overlap", "'x' is not one of its words allow, cancel, queue, skip"),
        ("/v1/jobs", {"retry": {"backoff": "x"}}, "retry.backoff", "exponential, fixed, list"),
        (
            "/v1/jobs",
            {"retry": {"backoff": "fixed", "delays": ["1s"]}},
            "retry.delays",
            "does not go with backoff fixed",
        ),
        ("/v1/jobs", {"retry": {"firstDelay": "2h"}}, "retry.maxDelay", "1h is shorter than firstDelay at least 2h"),
        ("/v1/jobs", {**HOURLY, "catchUp": {"mode": "none", "cap": 4}}, "catchUp.cap", "does not go with mode none"),
        ("/v1/jobs", {**HOURLY, "catchUp": {"pace": "1s"}}, "catchUp.pace", "does not go with mode latest"),
        ("/v1/jobs", {"task": "http", "payload": {"url": 5}}, "payload.url", "expected 'str', got 'int'"),
        (
            "/v1/jobs",
            {"task": "http", "payload": {"url": "http://x", "method": "PULL"}},
            "payload.method",
            "GET, PATCH",
        ),
        (
            "/v1/jobs",
            {"task": "workflow", "payload": {"name": "w", "nodes": {"a": {"after": 1}}}},
            "payload.nodes.a.after",
            "array",
        ),
        ("/v1/workflows", {"name": "w", "nodes": {"a": {"task": "t"}, "b": {"after": "a"}}}, "nodes.b.after", "array"),
        ("/v1/workflows", {"name": "w", "nodes": {"": {"task": "t"}}}, "nodes", "a name in it ('')"),
    ],
)
async def test_an_error_names_the_field_and_a_valid_value(
    client: httpx2.AsyncClient, path: str, body: dict[str, Any], field: str, words: str
) -> None:
    refused(await client.post(path, json={"task": "t", **body} if path == "/v1/jobs" else body), field, words)


@memory_only
async def test_an_invalid_queue_policy_is_rejected_with_an_example(client: httpx2.AsyncClient) -> None:
    for retries in ("10", "often", "/m", "10/"):
        refused(await client.put("/v1/queues/mail", json={"retries": retries}), "retries", "for example 100/m")
    body = {"fair": True, "shares": {"acme": 1, "umbrella": 0}}
    refused(await client.put("/v1/queues/mail", json=body), "shares.umbrella", "at least 1")
    assert (await client.put("/v1/queues/mail", json={"retries": "100/m"})).status_code == 200


async def test_a_cycle_of_dependencies_in_a_batch_is_shown_by_index(client: httpx2.AsyncClient) -> None:
    answer = (await client.post("/v1/jobs/batch", json={"jobs": CIRCLE})).json()
    assert (answer["accepted"], answer["refused"]) == (0, 3)
    assert answer["items"][0]["problem"]["detail"] == "dependsOn: goes round in a circle: #0 → #2 → #0"
    assert (await client.get("/v1/jobs")).json()["items"] == []


async def test_the_shown_fields_of_a_job_can_be_sent_back(client: httpx2.AsyncClient) -> None:
    """Defaults that have no effect in this mode are shown, and accepted when they are sent back."""
    odd = {"retry": {"backoff": "fixed"}, "catchUp": "none"}
    job = (await client.post("/v1/jobs", json={"task": "t", **HOURLY, **odd})).json()["jobId"]
    shown = (await client.get(f"/v1/jobs/{job}")).json()
    sent = {"catchUp": shown["catchUp"], "retry": shown["retry"]}
    assert (await client.patch(f"/v1/jobs/{job}", json=sent)).status_code == 200
