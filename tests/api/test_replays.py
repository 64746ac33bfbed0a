"""Replays of dead letters over the API: start, follow, stop, and patch payloads."""

from typing import Any

import httpx2
import pytest

from mainspring.core.model.access.access import Role
from mainspring.features.dead_letters.service import DeadLetterService
from tests.api.conftest import Service

REPLAYS = "/v1/dead-letters/replays"


async def work(client: httpx2.AsyncClient, fail: bool) -> list[str]:
    """Complete or fail every queued run; their ids."""
    worker = (await client.post("/v1/workers/register", json={"name": "w", "queues": ["default"]})).json()["workerId"]
    runs = (await client.post(f"/v1/workers/{worker}/claim", json={"limit": 100})).json()["runs"]
    for run in runs:
        body = {"fence": run["fence"], **({"error": "SmtpError: no", "retry": False} if fail else {})}
        await client.post(f"/v1/runs/{run['runId']}/{'fail' if fail else 'complete'}", json=body)
    return [run["runId"] for run in runs]


async def make_dead_letters(client: httpx2.AsyncClient, count: int) -> list[str]:
    for number in range(count):
        await client.post("/v1/jobs", json={"task": "t", "payload": {"n": number, "mail": "a@b"}})
    return await work(client, fail=True)


async def advance_replays(service: Service, steps: int = 3) -> None:
    keeper = DeadLetterService(service.store, service.jobs, service.wakeups, service.clock)
    for _ in range(steps):
        await keeper.tick()


async def test_a_replay_continues_after_its_canaries_have_succeeded(
    service: Service, client: httpx2.AsyncClient
) -> None:
    dead = await make_dead_letters(client, 5)
    [group] = (await client.get("/v1/dead-letters")).json()["items"]
    # An hour may have ended since they failed.
    assert (group["reason"], sum(group["trend"][-2:]), len(group["trend"])) == ("gave up", 5, 24)
    body = {"fingerprint": group["fingerprint"], "canaries": 2, "payloadPatch": {"mail": None, "to": "c@d"}}
    made = await client.post(REPLAYS, json=body)
    assert (made.status_code, made.json()["state"]) == (201, "canary")
    path = made.headers["location"]
    await advance_replays(service)
    canaries = (await client.get(path)).json()["canaryRunIds"]
    assert sorted(await work(client, fail=False)) == sorted(canaries)
    assert len(canaries) == 2
    await advance_replays(service)
    rest = await work(client, fail=False)
    assert len(rest) == 3
    shown = (await client.get(path)).json()
    assert (shown["state"], shown["replayed"], shown["matched"]) == ("done", 5, 5)
    again = [(await client.get(f"/v1/runs/{run}")).json() for run in [*canaries, *rest]]
    assert sorted(run["replayOf"] for run in again) == sorted(dead)
    assert sorted(str(run["payload"]) for run in again) == sorted(str({"n": n, "to": "c@d"}) for n in range(5))
    assert [item["replayId"] for item in (await client.get(REPLAYS)).json()["items"]] == [shown["replayId"]]
    assert (await client.post(f"{path}/stop")).status_code == 409


async def test_a_replay_counts_the_matching_dead_letters_when_it_is_created(client: httpx2.AsyncClient) -> None:
    await make_dead_letters(client, 3)
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


async def test_a_replay_stops_when_a_canary_fails_or_on_request(service: Service, client: httpx2.AsyncClient) -> None:
    await make_dead_letters(client, 4)
    path = (await client.post(REPLAYS, json={"everything": True, "canaries": 1})).headers["location"]
    await advance_replays(service)
    [canary] = await work(client, fail=True)
    await advance_replays(service)
    shown = (await client.get(path)).json()
    assert (shown["state"], shown["why"]) == ("stopped", f"canary {canary} failed (gave up)")
    other = (await client.post(REPLAYS, json={"task": "t", "canaries": 2})).headers["location"]
    stopped = (await client.post(f"{other}/stop", json={"why": "wrong group"})).json()
    assert stopped["state"] == "stopped"
    assert stopped["why"].endswith(": wrong group")
    await advance_replays(service)
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
async def test_an_invalid_replay_is_rejected_with_its_field(
    client: httpx2.AsyncClient, body: dict[str, Any], field: str
) -> None:
    refused = await client.post(REPLAYS, json=body)
    assert (refused.status_code, refused.json()["field"]) == (400, field)
    assert (await client.get(REPLAYS)).json()["items"] == []


async def test_many_dead_letters_are_replayed_with_a_payload_patch(client: httpx2.AsyncClient) -> None:
    await make_dead_letters(client, 2)
    body = {"everything": True, "payloadPatch": {"mail": "c@d"}}
    both = await client.post("/v1/dead-letters/replay", json={**body, "runIds": [], "payload": 1})
    assert both.status_code == 400
    made = (await client.post("/v1/dead-letters/replay", json=body)).json()
    payloads = [(await client.get(f"/v1/runs/{run}")).json()["payload"] for run in made["runIds"]]
    assert sorted(payload["n"] for payload in payloads) == [0, 1]
    assert {payload["mail"] for payload in payloads} == {"c@d"}


async def test_a_replay_of_another_tenant_is_not_found(store: Any) -> None:
    service = Service(auth=True, store=store)
    acme, beta = [service.client(await service.key(Role.OPERATOR, tenant)) for tenant in ("acme", "beta")]
    path = (await acme.post(REPLAYS, json={"everything": True})).headers["location"]
    assert (await acme.get(path)).json()["tenant"] == "acme"
    assert (await beta.get(path)).status_code == 404
    assert (await beta.post(f"{path}/stop")).status_code == 404
    assert (await beta.get(REPLAYS)).json()["items"] == []
