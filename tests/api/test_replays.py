"""Replays over the API: started, followed, stopped; and payloads that are changed on the way."""

from typing import Any

import httpx2
import pytest

from mainspring.control.dead_letters import Undertaker
from mainspring.domain.access import Role
from tests.api.conftest import Service

REPLAYS = "/v1/dead-letters/replays"


async def work(client: httpx2.AsyncClient, fail: bool) -> list[str]:
    """Run whatever is queued."""
    worker = (await client.post("/v1/workers/register", json={"name": "w", "queues": ["default"]})).json()["workerId"]
    runs = (await client.post(f"/v1/workers/{worker}/claim", json={"limit": 100})).json()["runs"]
    for run in runs:
        body = {"fence": run["fence"], **({"error": "SmtpError: no", "retry": False} if fail else {})}
        await client.post(f"/v1/runs/{run['runId']}/{'fail' if fail else 'complete'}", json=body)
    return [run["runId"] for run in runs]


async def bury(client: httpx2.AsyncClient, count: int) -> list[str]:
    for number in range(count):
        await client.post("/v1/jobs", json={"task": "t", "payload": {"n": number, "mail": "a@b"}})
    return await work(client, fail=True)


async def drive(service: Service, steps: int = 3) -> None:
    undertaker = Undertaker(service.store, service.jobs, service.wakeups, service.clock)
    for _ in range(steps):
        await undertaker.tick()


async def test_the_rest_goes_when_the_canaries_have_succeeded(service: Service, client: httpx2.AsyncClient) -> None:
    dead = await bury(client, 5)
    [group] = (await client.get("/v1/dead-letters")).json()["items"]
    assert (group["reason"], group["trend"][-1], len(group["trend"])) == ("gave up", 5, 24)
    body = {"fingerprint": group["fingerprint"], "canaries": 2, "payloadPatch": {"mail": None, "to": "c@d"}}
    made = await client.post(REPLAYS, json=body)
    assert (made.status_code, made.json()["state"]) == (201, "canary")
    path = made.headers["location"]
    await drive(service)
    canaries = (await client.get(path)).json()["canaryRunIds"]
    assert sorted(await work(client, fail=False)) == sorted(canaries)
    assert len(canaries) == 2
    await drive(service)
    rest = await work(client, fail=False)
    assert len(rest) == 3
    shown = (await client.get(path)).json()
    assert (shown["state"], shown["replayed"], shown["matched"]) == ("done", 5, 5)
    again = [(await client.get(f"/v1/runs/{run}")).json() for run in [*canaries, *rest]]
    assert sorted(run["replayOf"] for run in again) == sorted(dead)
    assert sorted(str(run["payload"]) for run in again) == sorted(str({"n": n, "to": "c@d"}) for n in range(5))
    assert [item["replayId"] for item in (await client.get(REPLAYS)).json()["items"]] == [shown["replayId"]]
    assert (await client.post(f"{path}/stop")).status_code == 409


async def test_what_it_is_for_is_counted_when_it_is_made(client: httpx2.AsyncClient) -> None:
    await bury(client, 3)
    [group] = (await client.get("/v1/dead-letters")).json()["items"]
    found = (await client.get("/v1/dead-letters", params={"fingerprint": group["fingerprint"]})).json()["items"]
    assert found == [group]
    assert (await client.get("/v1/dead-letters", params={"fingerprint": "0" * 16})).json()["items"] == []
    for body, matched in (
        ({"everything": True}, 3),
        ({"task": "another"}, 0),
        ({"task": "t", "failedAfter": "2020-01-01T00:00:00Z"}, None),
    ):
        assert (await client.post(REPLAYS, json=body)).json().get("matched") == matched


async def test_it_is_stopped_by_a_canary_or_by_somebody(service: Service, client: httpx2.AsyncClient) -> None:
    await bury(client, 4)
    path = (await client.post(REPLAYS, json={"everything": True, "canaries": 1})).headers["location"]
    await drive(service)
    [canary] = await work(client, fail=True)
    await drive(service)
    shown = (await client.get(path)).json()
    assert (shown["state"], shown["why"]) == ("stopped", f"canary {canary} failed (gave up)")
    other = (await client.post(REPLAYS, json={"task": "t", "canaries": 2})).headers["location"]
    stopped = (await client.post(f"{other}/stop", json={"why": "wrong group"})).json()
    assert stopped["state"] == "stopped"
    assert stopped["why"].endswith(": wrong group")
    await drive(service)
    assert len((await client.get("/v1/dead-letters/runs")).json()["items"]) == 4


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "fingerprint"),
        ({"everything": True, "canaries": -1}, "canaries"),
        ({"everything": True, "perSecond": 0}, "perSecond"),
        ({"everything": True, "payloadPatch": [1]}, "payloadPatch"),
        ({"fingerprint": "x"}, "fingerprint"),
    ],
)
async def test_what_cannot_be_meant_is_refused(client: httpx2.AsyncClient, body: dict[str, Any], field: str) -> None:
    refused = await client.post(REPLAYS, json=body)
    assert (refused.status_code, refused.json()["field"]) == (400, field)
    assert (await client.get(REPLAYS)).json()["items"] == []


async def test_many_are_replayed_with_a_patch_at_once(client: httpx2.AsyncClient) -> None:
    await bury(client, 2)
    body = {"everything": True, "payloadPatch": {"mail": "c@d"}}
    both = await client.post("/v1/dead-letters/replay", json={**body, "runIds": [], "payload": 1})
    assert both.status_code == 400
    made = (await client.post("/v1/dead-letters/replay", json=body)).json()
    payloads = [(await client.get(f"/v1/runs/{run}")).json()["payload"] for run in made["runIds"]]
    assert sorted(payload["n"] for payload in payloads) == [0, 1]
    assert {payload["mail"] for payload in payloads} == {"c@d"}


async def test_another_tenants_replay_is_not_there(store: Any) -> None:
    service = Service(auth=True, store=store)
    acme, beta = [service.client(await service.key(Role.OPERATOR, tenant)) for tenant in ("acme", "beta")]
    path = (await acme.post(REPLAYS, json={"everything": True})).headers["location"]
    assert (await acme.get(path)).json()["tenant"] == "acme"
    assert (await beta.get(path)).status_code == 404
    assert (await beta.post(f"{path}/stop")).status_code == 404
    assert (await beta.get(REPLAYS)).json()["items"] == []
