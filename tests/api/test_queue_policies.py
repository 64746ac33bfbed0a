"""Queue policies over HTTP."""

from typing import Any

import httpx2
import pytest

from mainspring.core.model.access.access import Role
from tests.api.conftest import Service
from tests.api.test_remote import claim, register, submit


async def put(client: httpx2.AsyncClient, queue: str, **policy: Any) -> Any:
    answer = await client.put(f"/v1/queues/{queue}", json=policy)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_queue_policy_is_set_shown_and_reset(client: httpx2.AsyncClient) -> None:
    policy = {"concurrency": 2, "retries": "10/s", "fair": True, "shares": {"acme": 3}}
    shown = {"name": "mail", "concurrency": 2, "retries": "10/1s", "fair": True, "shares": {"acme": 3}}
    assert await put(client, "mail", **policy) == shown
    assert (await client.get("/v1/queues/mail")).json() == shown
    assert await put(client, "mail") == {"name": "mail"}
    assert (await client.get("/v1/queues/mail")).json() == {"name": "mail"}


async def test_claims_respect_the_concurrency_of_the_queue(client: httpx2.AsyncClient) -> None:
    await put(client, "default", concurrency=2)
    worker = await register(client)
    for _ in range(4):
        await submit(client)
    assert len(await claim(client, worker, limit=10)) == 2


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"retries": "often"}, "retries"),
        ({"shares": {"acme": 2}}, "shares"),
        ({"fair": True, "shares": {"acme": 0}}, "shares"),
        ({"fair": True, "shares": {"*": 1}}, "shares"),
        ({"speed": 1}, "speed"),
    ],
)
async def test_an_invalid_queue_policy_is_rejected_with_its_field(
    client: httpx2.AsyncClient, policy: Any, field: str
) -> None:
    answer = await client.put("/v1/queues/default", json=policy)
    assert answer.status_code == 400, answer.text
    assert field in answer.text


async def test_the_weight_of_a_job_is_stored_and_shown(client: httpx2.AsyncClient) -> None:
    made = (await client.post("/v1/jobs", json={"task": "t", "weight": 4})).json()
    assert made["weight"] == 4
    assert (await client.get(f"/v1/jobs/{made['jobId']}")).json()["weight"] == 4
    assert (await client.post("/v1/jobs", json={"task": "t", "weight": 0})).status_code == 400


async def test_a_key_of_a_tenant_sees_only_the_share_of_its_tenant(guarded: Service) -> None:
    async with guarded.client(await guarded.key(Role.ADMIN, None)) as admin:
        await put(admin, "mail", fair=True, shares={"acme": 3, "beta": 2})
    async with guarded.client(await guarded.key(Role.ADMIN, tenant="acme")) as bound:
        assert (await bound.get("/v1/queues/mail")).json()["shares"] == {"acme": 3}
        assert (await bound.put("/v1/queues/mail", json={})).status_code == 403
