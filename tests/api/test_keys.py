"""Keys over HTTP: what one may be made with, how far it reaches, and when it ends."""

import asyncio
from typing import Any

import httpx2
import msgspec
import pytest

from mainspring.api.auth import REFUSED_WITHIN, make_key
from mainspring.domain.access import Role
from mainspring.domain.instant import LATEST, SECOND
from mainspring.ports.access import Author
from tests.api.conftest import Service
from tests.api.test_resources import get, post


@pytest.mark.parametrize("span", ["99999999d", "999999999999w", "0s", 0, 0.0000001])
async def test_an_end_that_cannot_be_makes_no_key(client: httpx2.AsyncClient, span: str | float) -> None:
    body = {"name": "x", "role": "viewer", "expiresIn": span}
    refused = await client.post("/v1/keys", json=body)
    assert refused.status_code == 400, refused.text
    assert refused.json()["field"] == "expiresIn"
    assert (await get(client, "/v1/keys"))["items"] == []


async def test_a_stored_end_beyond_the_calendar_is_listed(service: Service) -> None:
    key, _ = make_key(name="x", role=Role.VIEWER, tenant=None, author="test")
    await service.store.put_key(msgspec.structs.replace(key, expires_at=LATEST * 3), Author("test"))
    async with service.client() as client:
        [listed] = (await get(client, "/v1/keys"))["items"]
    assert listed["expiresAt"] == "9999-12-31T23:59:59Z"


async def test_who_is_bound_to_queues_makes_keys_within_them(guarded: Service) -> None:
    async with guarded.client(await guarded.key(Role.ADMIN, "a", ("mail", "sms"))) as scoped:
        for queues in (["prod"], ["mail", "prod"]):
            refused = await scoped.post("/v1/keys", json={"name": "k", "role": "admin", "queues": queues})
            assert (refused.status_code, refused.json()["field"]) == (400, "queues"), refused.text
        part = await post(scoped, "/v1/keys", {"name": "k", "role": "admin", "queues": ["sms", "sms"]}, status=201)
        assert part["queues"] == ["sms"]
        whole = await post(scoped, "/v1/keys", {"name": "k", "role": "admin"}, status=201)
        assert whole["queues"] == ["mail", "sms"], "left out it is all that the maker reaches"
        async with guarded.client(whole["key"]) as made:
            assert (await made.post("/v1/jobs", json={"task": "t", "queue": "prod"})).status_code == 403
        beyond = (await guarded.key(Role.VIEWER, "a")).split("_")[1]
        refused = await scoped.delete(f"/v1/keys/{beyond}")
        assert refused.status_code == 403, "a key that reaches further is not theirs to revoke"
        assert (await scoped.delete(f"/v1/keys/{part['keyId']}")).status_code == 200


async def test_who_is_bound_to_queues_does_not_administer_all(guarded: Service) -> None:
    async with guarded.client(await guarded.key(Role.ADMIN, None, ("mail",))) as scoped:
        for path in ("/v1/pause", "/v1/resume", "/v1/workers/1/drain"):
            assert (await scoped.post(path)).status_code == 403
        assert (await scoped.put("/v1/tenants", json={"name": "x"})).status_code == 403


async def test_no_tenant_is_called_all_of_them(client: httpx2.AsyncClient) -> None:
    for method, path, body in (
        ("PUT", "/v1/tenants", {"name": "*"}),
        ("POST", "/v1/keys", {"name": "k", "role": "viewer", "tenant": "*"}),
        ("POST", "/v1/jobs", {"task": "t", "tenant": "*"}),
    ):
        refused = await client.request(method, path, json=body)
        assert refused.status_code == 400, (path, refused.text)
    assert "*" not in {tenant["name"] for tenant in (await get(client, "/v1/tenants"))["items"]}


async def test_the_audit_says_what_a_key_and_a_tenant_may(client: httpx2.AsyncClient) -> None:
    quotas = {"submitsPerMinute": 60, "payloadBytes": 10}
    await client.put("/v1/tenants", json={"name": "acme", "quotas": quotas})
    await client.put("/v1/tenants", json={"name": "acme", "quotas": quotas | {"submitsPerMinute": 90}})
    body = {"name": "shop", "role": "submitter", "tenant": "acme", "queues": ["mail"], "expiresIn": "90d"}
    made = await post(client, "/v1/keys", body, status=201)
    key, changed, first = (await get(client, "/v1/audit", tenant="acme"))["items"]
    assert key["after"] == {
        "name": "shop",
        "role": "submitter",
        "tenant": "acme",
        "queues": ["mail"],
        "expiresAt": made["expiresAt"],
    }
    assert (changed["before"], changed["after"]) == ({"submitsPerMinute": 60}, {"submitsPerMinute": 90})
    assert first["after"] == quotas
    text = (await client.get("/v1/audit")).text
    assert made["key"].split("_", 2)[2] not in text
    assert "hash" not in text.lower()


async def _followed(client: httpx2.AsyncClient, path: str, begun: asyncio.Event) -> bytes:
    """What a stream sends until the server ends it."""
    seen = b""
    async with client.stream("GET", path) as answer:
        assert answer.status_code == 200
        async for chunk in answer.aiter_raw():
            seen += chunk
            begun.set()
    return seen


@pytest.mark.parametrize("store_kind", ["memory"], indirect=True)
@pytest.mark.parametrize("how", ["revoked", "revoked elsewhere", "expired"])
@pytest.mark.parametrize("what", ["events", "log"])
async def test_a_stream_ends_with_its_key(served: tuple[Service, str], how: str, what: str) -> None:
    service, address = served
    await service.api.hub.start()
    now = service.clock.now()
    key, text = make_key(
        name="k", role=Role.ADMIN, tenant=None, author="test", expires_at=now + SECOND if how == "expired" else None
    )
    await service.store.put_key(key, Author("test"))
    headers = {"authorization": f"Bearer {text}"}
    async with (
        httpx2.AsyncClient(base_url=address, headers=headers, timeout=20) as client,
        service.client(await service.key(Role.ADMIN, None)) as admin,
    ):
        path = "/v1/events"
        if what == "log":
            worker = (await post(admin, "/v1/workers/register", {"name": "w", "queues": ["q"]}, status=201))["workerId"]
            run = (await post(admin, "/v1/jobs", {"task": "t", "queue": "q"}, status=201))["jobId"]
            [held] = (await post(admin, f"/v1/workers/{worker}/claim"))["runs"]
            await post(admin, f"/v1/runs/{run}/log", {"fence": held["fence"], "text": "hello"})
            path = f"/v1/runs/{run}/logs/follow"
        begun = asyncio.Event()
        following = asyncio.create_task(_followed(client, path, begun))
        async with asyncio.timeout(5):
            await begun.wait()
        if how == "revoked":
            assert (await admin.delete(f"/v1/keys/{key.id}")).status_code == 200
        elif how == "revoked elsewhere":
            await service.store.revoke_key(key.id, None, Author("test"))
        async with asyncio.timeout(REFUSED_WITHIN / SECOND + (1 if how == "expired" else 0)):
            seen: Any = await following
        assert b"event: " in seen
        assert (await client.get("/v1/jobs")).status_code == 401
    await service.api.hub.stop()


@pytest.mark.parametrize("store_kind", ["memory"], indirect=True)
async def test_a_claim_that_waits_gets_nothing_once_its_key_is_revoked(guarded: Service) -> None:
    text = await guarded.key(Role.WORKER, "a")
    async with guarded.client(text) as worker, guarded.client(await guarded.key(Role.ADMIN, "a")) as admin:
        session = (await post(worker, "/v1/workers/register", {"name": "w", "queues": ["q"]}, status=201))["workerId"]
        waiting = asyncio.create_task(worker.post(f"/v1/workers/{session}/claim", json={"waitSeconds": 10}))
        await asyncio.sleep(0.2)
        assert (await admin.delete(f"/v1/keys/{text.split('_')[1]}")).status_code == 200
        run = (await post(admin, "/v1/jobs", {"task": "t", "queue": "q"}, status=201))["jobId"]
        assert (await waiting).status_code == 401
        assert (await get(admin, f"/v1/runs/{run}"))["status"] == "queued"
