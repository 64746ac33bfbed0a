"""Fan-outs over HTTP: invalid ones are rejected with their field before any run is created."""

from typing import Any

import httpx2
import pytest

from mainspring.core.model.access.access import Role
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.workflows.fan_out import FanOutNames, build_fan_out_tag
from mainspring.http.plans.fan_out import read_fan_out
from tests.api.conftest import Service
from tests.api.test_jobs import create

FEW = {"items": [1, 2]}

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no task": ({**FEW}, "payload.task"),
    "nothing to do": ({"task": "t"}, "payload.items"),
    "two at once": ({"task": "t", "range": {"to": 3}, **FEW}, "payload.items"),
    "no end": ({"task": "t", "range": {"from": 1}}, "payload.range.to"),
    "backwards": ({"task": "t", "range": {"from": 3, "to": 1}}, "payload.range.to"),
    "too many": ({"task": "t", "range": {"to": 10**12}}, "payload.range.to"),
    "not a number": ({"task": "t", "range": {"to": "x"}}, "payload.range.to"),
    "none at a time": ({"task": "t", "atATime": 0, **FEW}, "payload.atATime"),
    "unknown word": ({"task": "t", "onFailure": "cry", **FEW}, "payload.onFailure"),
    "unknown field": ({"task": "t", "itmes": [1]}, "payload.itmes"),
    "bad option": ({"task": "t", "options": {"priority": 99}, **FEW}, "payload.options.priority"),
    "bad queue": ({"task": "t", "options": {"queue": "a/b"}, **FEW}, "payload.options.queue"),
    "recurring member": ({"task": "t", "options": {"every": "1h"}, **FEW}, "payload.options.scheduleType"),
    "payload in options": ({"task": "t", "options": {"payload": 1}, **FEW}, "payload.options.payload"),
    "fan-in": ({"task": "fan_in", **FEW}, "payload.task"),
    "bad call": ({"task": "http", "items": [{"url": 7}]}, "payload.items[0].url"),
    "bad one inside": ({"task": "fan_out", "items": [{"task": "t", **FEW}, {"task": "t"}]}, "payload.items[1].items"),
    "no dependency": ({"task": "t", "each": "list"}, "payload.each"),
    "no dependency inside": ({"task": "fan_out", "items": [{"task": "t", "each": "list"}]}, "payload.items[0].each"),
    "many workflows": ({"task": "workflow", "range": {"to": 3}}, "payload.range"),
}


@pytest.mark.parametrize("schedule", [{}, {"name": "again", "every": "1h"}])
async def test_an_invalid_fan_out_is_rejected_with_its_field(
    client: httpx2.AsyncClient, schedule: dict[str, str]
) -> None:
    for kind, (payload, field) in BAD.items():
        response = await client.post("/v1/jobs", json={"task": "fan_out", "payload": payload, **schedule})
        assert (response.status_code, response.json()["field"]) == (400, field), (kind, response.text)


async def test_a_fan_in_job_and_a_fan_out_with_start_within_are_rejected(client: httpx2.AsyncClient) -> None:
    response = await client.post("/v1/jobs", json={"task": "fan_in"})
    assert (response.status_code, response.json()["field"]) == (400, "task"), response.text
    body = {"task": "fan_out", "payload": {"task": "t", **FEW}, "startWithin": "1m"}
    response = await client.post("/v1/jobs", json=body)
    assert (response.status_code, response.json()["field"]) == (400, "startWithin"), response.text
    assert (await client.get("/v1/runs")).json()["items"] == []


async def test_a_node_can_map_over_the_result_of_a_node_it_depends_on(client: httpx2.AsyncClient) -> None:
    nodes: dict[str, Any] = {
        "list": {"task": "t"},
        "each": {"task": "fan_out", "payload": {"task": "t", "each": "list"}},
    }
    response = await client.post("/v1/workflows", json={"name": "w", "nodes": nodes})
    assert (response.status_code, response.json()["field"]) == (400, "nodes.each.payload.each"), response.text
    nodes["each"]["after"] = ["list"]
    assert (await client.post("/v1/workflows", json={"name": "w", "nodes": nodes})).status_code == 201


async def test_a_fan_out_can_map_over_the_result_of_a_run_it_depends_on(client: httpx2.AsyncClient) -> None:
    one, other = [(await create(client, task="t"))["jobId"] for _ in range(2)]
    body = {"task": "fan_out", "payload": {"task": "t", "each": one}, "dependsOn": [other]}
    response = await client.post("/v1/jobs", json=body)
    assert (response.status_code, response.json()["field"]) == (400, "payload.each"), response.text
    batch = (await client.post("/v1/jobs/batch", json={"jobs": [body]})).json()
    assert "payload.each" in str(batch), batch
    await create(client, **{**body, "dependsOn": [other, one]})


async def test_members_of_a_fan_out_use_only_queues_of_the_key(guarded: Service) -> None:
    key = await guarded.key(Role.SUBMITTER, "mine", queues=("mail",))
    async with guarded.client(key) as client:
        plan = {"task": "t", "options": {"queue": "mail"}, **FEW}
        await create(client, task="fan_out", queue="mail", payload=plan)
        for payload in (
            {"task": "t", **FEW},
            {"task": "t", "options": {"queue": "payouts"}, "each": "x"},
            {"task": "fan_out", "options": {"queue": "mail"}, "items": [plan, {"task": "t", **FEW}]},
        ):
            body = {"task": "fan_out", "queue": "mail", "payload": payload}
            assert (await client.post("/v1/jobs", json=body)).status_code == 403, payload


def test_a_fan_out_makes_its_members_from_its_items() -> None:
    plan = read_fan_out(
        b'{"task": "t", "range": {"from": 5, "to": 7}, "argument": "n", "options": {"queue": "q", "maxRetries": 1,'
        b' "tags": ["mine"], "limits": [{"key": "n-{payload.n}", "most": 2}]}}',
        "acme",
    )
    root = RunId("019a8c4b6f2c70008042b1c2d3e4f506")
    assert plan.items is not None
    made = plan.members(FanOutNames(root), plan.items, 0, range(2), 4)
    assert [run.payload for run in made] == [b'{"n":5}', b'{"n":6}']
    assert [run.policy.limits[0].key for run in made] == ["n-5", "n-6"]
    assert {(run.tenant, run.queue, run.policy.retry.max_retries) for run in made} == {("acme", "q", 1)}
    about = made[0].about
    assert about is not None
    assert (about.parent, about.tags) == (root, ("mine", build_fan_out_tag(root)))


async def test_a_fan_out_runs_before_its_members_by_default(client: httpx2.AsyncClient) -> None:
    plan = {"task": "t", "options": {"priority": 4}, **FEW}
    assert (await create(client, task="fan_out", payload=plan))["priority"] == 1
    assert (await create(client, task="fan_out", payload=plan, priority=7))["priority"] == 7
    assert (await create(client, task="fan_out", payload=plan, name="again", every="1h"))["priority"] == 1
    assert (await create(client, task="t"))["priority"] == 5
