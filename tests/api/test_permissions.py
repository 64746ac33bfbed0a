"""Every operation × role × tenant, from the same declarations as the OpenAPI document."""

from typing import Any

import httpx2
import msgspec
import pytest

from mainspring.api.operation import Nothing, Operation
from mainspring.api.resources import RESOURCES
from mainspring.domain.access import GRANTS, Permission, Role
from tests.api.conftest import Service

OPERATIONS = [operation for resource in RESOURCES for operation in resource.operations]
GUARDED = [operation for operation in OPERATIONS if operation.permission is not None]
MISSING = "019a8c4b6f2c70008042b1c2d3e4f506"

#: A body that is understood, for every operation that needs one.
BODIES: dict[str, Any] = {
    "create_job": {"task": "t"},
    "create_jobs": {"jobs": [{"task": "t"}]},
    "change_job": {"priority": 2},
    "update_job": {"priority": 2},
    "backfill_job": {"since": "2026-01-01T00:00:00Z", "until": "2026-01-02T00:00:00Z", "dryRun": True},
    "replay": {"runIds": [MISSING]},
    "discard": {"runIds": [MISSING]},
    "act_on_many": {"action": "cancel", "target": "runs", "task": "nobody", "dryRun": True},
    "put_tenant": {"name": "a"},
    "create_key": {"name": "k", "role": "viewer"},
    "register": {"name": "w", "queues": ["default"]},
    "complete": {"fence": 1},
    "fail": {"fence": 1, "error": "x"},
    "cancelled": {"fence": 1},
    "release": {"fence": 1},
    "progress": {"fence": 1, "done": 1},
    "log": {"fence": 1, "text": "x"},
}


async def ask(client: httpx2.AsyncClient, operation: Operation, identifier: str = MISSING) -> httpx2.Response:
    path = operation.path.format(id=identifier, name="default", version="1")
    if operation.streams and identifier == MISSING and "{id}" not in operation.path:
        # Whoever may follow would follow for ever.
        path += "?unknown=1"
    body = BODIES.get(operation.name)
    return await client.request(operation.method, path, json=body)


def test_every_body_is_there() -> None:
    needing = {op.name for op in OPERATIONS if op.body is not Nothing and not op.body_optional}
    assert needing <= BODIES.keys()


def test_the_document_says_who_may() -> None:
    from mainspring.api.app import described

    document = msgspec.json.decode(described()[0])
    for operation in OPERATIONS:
        said = document["paths"][operation.path][operation.method.lower()]
        permission = None if operation.permission is None else operation.permission.value
        assert said.get("x-permission") == permission
        assert bool(said["security"]) == (permission is not None)


def test_only_probes_and_documents_are_open() -> None:
    unguarded = {operation.path for operation in OPERATIONS if operation.permission is None}
    assert unguarded == {"/healthz", "/readyz", "/openapi.json", "/docs"}


@pytest.mark.parametrize("store_kind", ["memory"], indirect=True)
@pytest.mark.parametrize("operation", GUARDED, ids=lambda operation: operation.name)
async def test_roles(guarded: Service, operation: Operation) -> None:
    async with guarded.client() as nobody, guarded.client("ms_aaaaaaaaaaaa_" + "x" * 43) as impostor:
        for client in (nobody, impostor):
            refused = await ask(client, operation)
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"] == "Bearer"
    for role in Role:
        for tenant in (None, "a"):
            async with guarded.client(await guarded.key(role, tenant)) as client:
                response = await ask(client, operation)
            assert operation.permission is not None
            allowed = operation.permission in GRANTS[role] and not (
                operation.permission is Permission.ADMINISTER_ALL and tenant is not None
            )
            assert (response.status_code != 403) == allowed, (role, tenant, response.text)
            assert response.status_code < 500, response.text


WITH_ID = [op for op in GUARDED if "{id}" in op.path and op.permission is not Permission.ADMINISTER_ALL]


@pytest.mark.parametrize("operation", WITH_ID, ids=lambda operation: operation.name)
async def test_what_is_another_tenants_is_missing(guarded: Service, operation: Operation) -> None:
    """Byte for byte, and nothing is changed."""
    async with guarded.client(await guarded.key(Role.ADMIN, "a")) as owner:
        one_off = (await owner.post("/v1/jobs", json={"task": "t"})).json()["jobId"]
        recurring = (await owner.post("/v1/jobs", json={"task": "t", "name": "r", "every": "1h"})).json()["jobId"]
        tick = (await owner.post(f"/v1/jobs/{recurring}/run")).json()["runId"]
        key = (await owner.post("/v1/keys", json={"name": "k", "role": "viewer"})).json()["keyId"]
        worker = (await owner.post("/v1/workers/register", json={"name": "w", "queues": ["q"]})).json()["workerId"]
        before = [(await owner.get(f"/v1/jobs/{job}")).content for job in (one_off, recurring)]
        before.append((await owner.get("/v1/keys")).content)
        async with guarded.client(await guarded.key(Role.ADMIN, "b")) as stranger:
            missing = await ask(stranger, operation)
            assert missing.status_code == 404, missing.text
            for identifier in (one_off, recurring, tick, key, worker):
                foreign = await ask(stranger, operation, identifier)
                assert (foreign.status_code, foreign.content) == (404, missing.content)
                assert set(foreign.headers) == set(missing.headers)
        after = [(await owner.get(f"/v1/jobs/{job}")).content for job in (one_off, recurring)]
        after.append((await owner.get("/v1/keys")).content)
        assert after == before


async def test_lists_show_nothing_of_another_tenant(guarded: Service) -> None:
    async with guarded.client(await guarded.key(Role.ADMIN, "a")) as owner:
        await owner.post("/v1/jobs", json={"task": "secret-task", "queue": "secret-queue", "tags": ["secret-tag"]})
        await owner.post("/v1/jobs", json={"task": "secret-task", "name": "secret-name", "every": "1h"})
    listing = [op for op in GUARDED if op.method == "GET" and "{" not in op.path and not op.streams]
    async with guarded.client(await guarded.key(Role.ADMIN, "b")) as stranger:
        for operation in listing:
            for query in ({}, {"tenant": "a"}):
                response = await stranger.get(operation.path, params=query)
                assert b"secret" not in response.content, operation.path
        with_tag = await stranger.get("/v1/jobs", params={"tag": "secret-tag", "tenant": "a"})
        assert with_tag.json()["items"] == []
