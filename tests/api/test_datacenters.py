"""Data centers and autoscaling over HTTP."""

from typing import Any

import httpx2
import msgspec
import pytest

from mainspring.core.model.access.access import Role
from mainspring.core.model.base.instant import DAY, SECOND, isoformat
from mainspring.core.model.schedules.spread import spread
from mainspring.http.api_store import ApiStore
from tests.api.conftest import Service
from tests.api.test_remote import claim, submit
from tests.support.builders import a_fire, a_tick


async def register(client: httpx2.AsyncClient, datacenter: str, **fields: Any) -> str:
    body = {"name": f"in-{datacenter}", "queues": ["default"], "datacenter": datacenter, **fields}
    response = await client.post("/v1/workers/register", json=body)
    assert response.status_code == 201, response.text
    worker: str = response.json()["workerId"]
    return worker


async def make(client: httpx2.AsyncClient, datacenters: object, **fields: Any) -> Any:
    body = {"name": "nightly", "task": "t", "cronExpression": "@daily", "datacenters": datacenters, **fields}
    made = await client.post("/v1/jobs", json=body)
    assert made.status_code == 201, made.text
    return made.json()


@pytest.mark.parametrize("datacenters", [["us", "eu"], "all", {"prefer": ["us", "eu"], "failoverAfter": "1m"}])
async def test_a_job_keeps_its_data_centers_when_other_fields_change(
    client: httpx2.AsyncClient, datacenters: object
) -> None:
    job = (await make(client, datacenters))["jobId"]
    shown = (await client.get(f"/v1/jobs/{job}")).json()
    assert shown["datacenters"] == datacenters
    assert "requires" not in shown
    changed = await client.patch(f"/v1/jobs/{job}", json={"priority": 2})
    assert changed.json()["datacenters"] == datacenters
    changed = await client.patch(f"/v1/jobs/{job}", json={"datacenters": "any"})
    assert "datacenters" not in changed.json()


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ({"datacenters": []}, "datacenters"),
        ({"datacenters": ["a b"]}, "datacenters"),
        ({"datacenters": ["us", "us"]}, "twice"),
        ({"datacenters": "some"}, "datacenters"),
        ({"datacenters": {"prefer": ["us", "us"]}}, "each once"),
        ({"datacenters": {"prefer": ["us>eu", "asia"]}}, "without >"),
        ({"datacenters": ["us>eu>30s"], "cronExpression": None, "name": None}, "without >"),
        ({"datacenters": {"prefer": ["us", "eu"], "failoverAfter": "500ms"}}, "whole seconds"),
        ({"datacenters": ["us"], "requires": {"datacenter": "eu"}}, "one of them"),
        ({"datacenters": ["us", "eu"], "cronExpression": None, "every": "5m", "intervalMode": "fixedDelay"}, "delay"),
    ],
)
async def test_invalid_data_centers_are_rejected_with_a_hint(
    client: httpx2.AsyncClient, fields: dict[str, Any], hint: str
) -> None:
    body = {"name": "nightly", "task": "t", "cronExpression": "@daily", **fields}
    refused = await client.post("/v1/jobs", json={name: value for name, value in body.items() if value is not None})
    assert refused.status_code == 400, refused.text
    assert refused.json()["field"].startswith("datacenters")
    assert hint in refused.text


async def test_a_one_off_job_runs_in_one_data_center(client: httpx2.AsyncClient) -> None:
    eu, us = await register(client, "eu"), await register(client, "us")
    job = await submit(client, datacenters=["us"])
    assert await claim(client, eu) == []
    assert [run["runId"] for run in await claim(client, us)] == [job]
    refused = await client.post("/v1/jobs", json={"task": "t", "datacenters": ["us", "eu"]})
    assert refused.status_code == 400
    assert "prefer" in refused.text


async def test_running_a_job_of_several_data_centers_now_requires_one_of_them(client: httpx2.AsyncClient) -> None:
    us = await register(client, "us")
    job = (await make(client, ["us", "eu"]))["jobId"]
    refused = await client.post(f"/v1/jobs/{job}/run")
    assert (refused.status_code, refused.json()["field"]) == (400, "datacenter")
    refused = await client.post(f"/v1/jobs/{job}/run", json={"datacenter": "asia"})
    assert (refused.status_code, refused.json()["field"]) == (400, "datacenter")
    made = await client.post(f"/v1/jobs/{job}/run", json={"datacenter": "us"})
    assert made.status_code == 201, made.text
    assert [run["runId"] for run in await claim(client, us)] == [made.json()["runId"]]


async def test_an_explanation_names_the_data_center_without_workers(client: httpx2.AsyncClient) -> None:
    await register(client, "eu")
    job = await submit(client, datacenters=["us"])
    [why] = (await client.get(f"/v1/runs/{job}/explain")).json()["because"]
    assert why["words"] == "no live worker has datacenter=us"
    assert why["hint"].endswith("--datacenter us")


async def test_a_tick_is_explained_for_each_data_center(client: httpx2.AsyncClient, store: ApiStore) -> None:
    job = (await make(client, ["us", "eu"], overlap="skip"))["jobId"]
    [stored] = await store.jobs([job])
    assert stored is not None
    owner = await store.join("scheduler", DAY)  # type: ignore[attr-defined]
    await store.take(owner, range(store.shards))  # type: ignore[attr-defined]
    at = await store.now() - SECOND
    [eu, us] = spread(a_fire(stored, a_tick(stored, at), next_fire=stored.next_fire), ("eu", "us")).ticks
    skipped = msgspec.structs.replace(us, decision="skipped", reason="missed", run_id=None)
    [fired] = await store.fire(owner, [a_fire(stored, eu, skipped, next_fire=stored.next_fire)])
    assert fired.runs == 1
    query = {"at": isoformat(at)}
    explained = (await client.get(f"/v1/jobs/{job}/explain", params=query)).json()
    assert (explained["answer"], explained["tick"]["datacenter"]) == ("skipped", "us")
    explained = (await client.get(f"/v1/jobs/{job}/explain", params={**query, "datacenter": "eu"})).json()
    assert (explained["answer"], explained["tick"]["datacenter"]) == ("waiting", "eu")
    page = (await client.get(f"/v1/jobs/{job}/ledger", params={"limit": 1})).json()
    assert [item["datacenter"] for item in page["items"]] == ["eu", "us"]


async def test_data_centers_are_listed_with_their_health_and_lag(client: httpx2.AsyncClient) -> None:
    eu = await register(client, "eu")
    for place in ("eu", "eu", "us"):
        await submit(client, datacenters=[place])
    await claim(client, eu)
    listed = (await client.get("/v1/datacenters")).json()
    shown = {item["name"]: item for item in listed["items"]}
    assert {name: item["health"] for name, item in shown.items()} == {"eu": "ok", "us": "no-workers"}
    assert (shown["eu"]["workers"], shown["eu"]["queued"], shown["eu"]["running"]) == (1, 1, 1)
    assert (shown["us"]["workers"], shown["us"]["queued"]) == (0, 1)
    assert shown["us"]["lagMs"] >= 0


async def test_a_worker_does_not_get_runs_of_tasks_it_did_not_register(client: httpx2.AsyncClient) -> None:
    worker = await register(client, "eu", tasks=["known"])
    known, other = await submit(client, task="known"), await submit(client, task="new")
    assert [run["runId"] for run in await claim(client, worker, limit=5)] == [known]
    left = (await client.get(f"/v1/runs/{other}")).json()
    assert (left["status"], left["attemptNumber"]) == ("scheduled", 0)


async def test_autoscale_recommends_workers_for_the_load(client: httpx2.AsyncClient) -> None:
    worker = await register(client, "eu")
    for _ in range(5):
        await submit(client)
    await claim(client, worker, limit=2)
    found = (await client.get("/v1/autoscale")).json()
    [queue] = found["queues"]
    assert (queue["queue"], queue["queued"], queue["running"], queue["workers"]) == ("default", 3, 2, 1)
    assert queue["recommendedWorkers"] == found["recommendedWorkers"] == 2
    assert found["schedulers"]["recommendedSchedulers"] == 2
    one = (await client.get("/v1/autoscale", params={"queue": "mail", "slots": 10})).json()
    assert [(item["queue"], item["recommendedWorkers"]) for item in one["queues"]] == [("mail", 0)]
    refused = await client.get("/v1/autoscale", params={"target": "1d"})
    assert (refused.status_code, refused.json()["field"]) == (400, "target")
    metrics = (await client.get("/metrics")).text
    assert 'mainspring_recommended_workers{queue="default"} 2.0' in metrics
    assert 'mainspring_recommended_slots{queue="default"} 3.0' in metrics


async def test_a_key_of_a_tenant_does_not_see_the_load_of_other_tenants(guarded: Service) -> None:
    async with guarded.client(await guarded.key(Role.VIEWER, tenant="acme")) as viewer:
        assert (await viewer.get("/v1/datacenters")).json()["orders"] == []
        assert (await viewer.get("/v1/autoscale")).json().get("schedulers") is None


async def test_a_run_for_an_absent_data_center_does_not_make_its_queue_late(
    service: Service, client: httpx2.AsyncClient
) -> None:
    await register(client, "us", queues=["mail"])
    run = await submit(client, queue="mail", requires={"datacenter": "eu"})
    assert (await client.get(f"/v1/runs/{run}")).json()["datacenter"] == "eu"
    # It is due since its submit: a run that counted would give a lag.
    [queue] = (await client.get("/v1/queues")).json()["items"]
    assert (queue["queued"], queue["lagMs"], queue["stranded"]) == (1, 0, {"eu": 1})
    stats = (await client.get("/v1/stats", params={"queue": "mail"})).json()
    assert (stats["queued"], stats["lagMs"]) == (1, 0)
    load = (await client.get("/v1/autoscale", params={"queue": "mail"})).json()["queues"][0]
    assert (load["queued"], load["lagMs"]) == (1, 0)
    metrics = (await client.get("/metrics")).text
    assert _metric(metrics, 'mainspring_queue_lag_seconds{queue="mail"}') == 0
    assert _metric(metrics, 'mainspring_queued_runs{queue="mail"}') == 1
    # With a worker there the run counts.
    await register(client, "eu", queues=["mail"])
    [queue] = (await client.get("/v1/queues")).json()["items"]
    assert queue["lagMs"] > 0
    assert "stranded" not in queue
    assert (await client.get("/v1/stats", params={"queue": "mail"})).json()["lagMs"] > 0


def _metric(text: str, name: str) -> float:
    [value] = [line.rpartition(" ")[2] for line in text.splitlines() if line.startswith(name)]
    return float(value)
