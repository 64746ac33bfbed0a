"""API keys over HTTP: how they are created, what they give access to, and when they expire."""

import asyncio

import httpx2
import msgspec
import pytest

from mainspring.core.model.access.access import Role
from mainspring.core.model.base.instant import LATEST, SECOND
from mainspring.core.ports.storage.access import Author
from mainspring.http.auth.authenticator import REFUSED_WITHIN, make_key
from mainspring.testing.virtual_time import VirtualClock
from tests.api.conftest import Service, memory_only
from tests.api.test_resources import get, post
from tests.support.virtual import in_virtual_time


@pytest.mark.parametrize("span", ["99999999d", "999999999999w", "0s", 0, 0.0000001])
async def test_a_key_with_an_impossible_expiry_is_rejected(client: httpx2.AsyncClient, span: str | float) -> None:
    body = {"name": "x", "role": "viewer", "expiresIn": span}
    refused = await client.post("/v1/keys", json=body)
    assert refused.status_code == 400, refused.text
    assert refused.json()["field"] == "expiresIn"
    assert (await get(client, "/v1/keys"))["items"] == []


async def test_a_stored_expiry_beyond_the_year_9999_is_listed(service: Service) -> None:
    key, _ = make_key(name="x", role=Role.VIEWER, tenant=None, author="test")
    await service.store.put_key(msgspec.structs.replace(key, expires_at=LATEST * 3), Author("test"))
    async with service.client() as client:
        [listed] = (await get(client, "/v1/keys"))["items"]
    assert listed["expiresAt"] == "9999-12-31T23:59:59Z"


async def test_a_key_bound_to_queues_creates_keys_for_these_queues_only(guarded: Service) -> None:
    async with guarded.client(await guarded.key(Role.ADMIN, "a", ("mail", "sms"))) as scoped:
        for queues in (["prod"], ["mail", "prod"]):
            refused = await scoped.post("/v1/keys", json={"name": "k", "role": "admin", "queues": queues})
            assert (refused.status_code, refused.json()["field"]) == (400, "queues"), refused.text
        part = await post(scoped, "/v1/keys", {"name": "k", "role": "admin", "queues": ["sms", "sms"]}, status=201)
        assert part["queues"] == ["sms"]
        whole = await post(scoped, "/v1/keys", {"name": "k", "role": "admin"}, status=201)
        assert whole["queues"] == ["mail", "sms"], "the default is every queue of the creator"
        async with guarded.client(whole["key"]) as made:
            assert (await made.post("/v1/jobs", json={"task": "t", "queue": "prod"})).status_code == 403
        beyond = (await guarded.key(Role.VIEWER, "a")).split("_")[1]
        refused = await scoped.delete(f"/v1/keys/{beyond}")
        assert refused.status_code == 403, "a key with access to more queues cannot be revoked"
        assert (await scoped.delete(f"/v1/keys/{part['keyId']}")).status_code == 200


async def test_a_key_bound_to_queues_cannot_administer_the_whole_system(guarded: Service) -> None:
    async with guarded.client(await guarded.key(Role.ADMIN, None, ("mail",))) as scoped:
        for path in ("/v1/pause", "/v1/resume", "/v1/workers/1/drain"):
            assert (await scoped.post(path)).status_code == 403
        assert (await scoped.put("/v1/tenants", json={"name": "x"})).status_code == 403


async def test_a_star_is_not_a_tenant_name(client: httpx2.AsyncClient) -> None:
    for method, path, body in (
        ("PUT", "/v1/tenants", {"name": "*"}),
        ("POST", "/v1/keys", {"name": "k", "role": "viewer", "tenant": "*"}),
        ("POST", "/v1/jobs", {"task": "t", "tenant": "*"}),
    ):
        refused = await client.request(method, path, json=body)
        assert refused.status_code == 400, (path, refused.text)
    assert "*" not in {tenant["name"] for tenant in (await get(client, "/v1/tenants"))["items"]}


async def test_the_audit_log_records_the_rights_of_keys_and_tenants(client: httpx2.AsyncClient) -> None:
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


async def read_stream(client: httpx2.AsyncClient, path: str, has_begun: asyncio.Event) -> bytes:
    """Everything that a stream sends until the server ends it."""
    received = b""
    async with client.stream("GET", path) as answer:
        assert answer.status_code == 200
        async for chunk in answer.aiter_raw():
            received += chunk
            has_begun.set()
    return received


async def start_stream(admin: httpx2.AsyncClient, kind: str) -> str:
    """The path of a stream that sends at least one event when it is opened."""
    if kind == "events":
        return "/v1/events"
    worker = (await post(admin, "/v1/workers/register", {"name": "w", "queues": ["q"]}, status=201))["workerId"]
    run = (await post(admin, "/v1/jobs", {"task": "t", "queue": "q"}, status=201))["jobId"]
    [held] = (await post(admin, f"/v1/workers/{worker}/claim"))["runs"]
    await post(admin, f"/v1/runs/{run}/log", {"fence": held["fence"], "text": "hello"})
    return f"/v1/runs/{run}/logs/follow"


@in_virtual_time
@pytest.mark.parametrize("how", ["revoked", "revoked elsewhere", "expired"])
@pytest.mark.parametrize("kind", ["events", "log"])
async def test_a_stream_ends_soon_after_its_key_becomes_invalid(how: str, kind: str) -> None:
    service = Service(auth=True, clock=VirtualClock())
    await service.api.hub.start()
    expires_at = service.clock.now() + 20 * SECOND if how == "expired" else None
    key, text = make_key(name="k", role=Role.ADMIN, tenant=None, author="test", expires_at=expires_at)
    await service.store.put_key(key, Author("test"))
    async with service.client(text) as client, service.client(await service.key(Role.ADMIN, None)) as admin:
        following = asyncio.create_task(client.get(await start_stream(admin, kind)))
        await service.clock.sleep(20 * SECOND)
        assert not following.done()
        if how == "revoked":
            assert (await admin.delete(f"/v1/keys/{key.id}")).status_code == 200
        elif how == "revoked elsewhere":
            await service.store.revoke_key(key.id, None, Author("test"))
        invalid_at = service.clock.monotonic()
        answer = await following
        assert service.clock.monotonic() - invalid_at <= REFUSED_WITHIN
        assert answer.status_code == 200
        assert "event: " in answer.text
        assert (await client.get("/v1/jobs")).status_code == 401
    await service.api.hub.stop()


@memory_only
@pytest.mark.parametrize("kind", ["events", "log"])
async def test_a_stream_over_a_socket_ends_when_its_key_is_revoked(served: tuple[Service, str], kind: str) -> None:
    service, address = served
    await service.api.hub.start()
    text = await service.key(Role.ADMIN, None)
    headers = {"authorization": f"Bearer {text}"}
    async with (
        httpx2.AsyncClient(base_url=address, headers=headers, timeout=None) as client,
        service.client(await service.key(Role.ADMIN, None)) as admin,
    ):
        has_begun = asyncio.Event()
        following = asyncio.create_task(read_stream(client, await start_stream(admin, kind), has_begun))
        await has_begun.wait()
        assert (await admin.delete(f"/v1/keys/{text.split('_')[1]}")).status_code == 200
        assert b"event: " in await following
        assert (await client.get("/v1/jobs")).status_code == 401
    await service.api.hub.stop()


@in_virtual_time
async def test_a_waiting_claim_gets_nothing_once_its_key_is_revoked() -> None:
    guarded = Service(auth=True, clock=VirtualClock())
    text = await guarded.key(Role.WORKER, "a")
    async with guarded.client(text) as worker, guarded.client(await guarded.key(Role.ADMIN, "a")) as admin:
        session = (await post(worker, "/v1/workers/register", {"name": "w", "queues": ["q"]}, status=201))["workerId"]
        waiting = asyncio.create_task(worker.post(f"/v1/workers/{session}/claim", json={"waitSeconds": 10}))
        await guarded.clock.sleep(SECOND)
        assert not waiting.done()
        assert (await admin.delete(f"/v1/keys/{text.split('_')[1]}")).status_code == 200
        run = (await post(admin, "/v1/jobs", {"task": "t", "queue": "q"}, status=201))["jobId"]
        assert (await waiting).status_code == 401
        assert (await get(admin, f"/v1/runs/{run}"))["status"] == "queued"
