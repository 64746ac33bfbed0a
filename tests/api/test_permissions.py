"""Every operation × role × tenant, from the same declarations as the OpenAPI document."""

from typing import Any

import httpx2
import msgspec
import pytest

from mainspring.config.resources import RESOURCES
from mainspring.core.model.access.access import GRANTS, Permission, Role
from mainspring.http.operation import Empty, Operation
from tests.api.conftest import Service, memory_only

OPERATIONS = [operation for resource in RESOURCES for operation in resource.operations]
GUARDED = [operation for operation in OPERATIONS if operation.permission is not None]
MISSING = "019a8c4b6f2c70008042b1c2d3e4f506"

#: A valid body for every operation that needs one.
BODIES: dict[str, Any] = {
    "create_job": {"task": "t"},
    "schedule_job": {"type": "t"},
    "create_jobs": {"jobs": [{"task": "t"}]},
    "preview_job": {"task": "t"},
    "preview_change": {"priority": 2},
    "change_job": {"priority": 2},
    "update_job": {"priority": 2},
    "backfill_job": {"since": "2026-01-01T00:00:00Z", "until": "2026-01-02T00:00:00Z", "dryRun": True},
    "reconcile_schedules": {"source": "app:a", "schedules": [], "dryRun": True},
    "put_calendar": {"closedDays": ["sun"]},
    "create_workflow": {"name": "w", "nodes": {"a": {"task": "t"}}},
    "import_calendar": {
        "ical": "BEGIN:VCALENDAR\nBEGIN:VEVENT\nUID:1\nDTSTART;VALUE=DATE:20300101\nEND:VEVENT\nEND:VCALENDAR\n"
    },
    "broadcast": {"task": "t"},
    "replay": {"runIds": [MISSING]},
    "start_replay": {"everything": True},
    "discard": {"runIds": [MISSING]},
    "bring_back": {"runIds": [MISSING]},
    "act_on_many": {"action": "cancel", "target": "runs", "task": "nobody", "dryRun": True},
    "put_tenant": {"name": "a"},
    "put_budget": {"unit": "tokens", "limit": 1},
    "put_queue_policy": {"concurrency": 5},
    "create_key": {"name": "k", "role": "viewer"},
    "register": {"name": "w", "queues": ["default"]},
    "heartbeat": {"held": [], "claim": 0},
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
        # An unknown parameter ends the request: an allowed stream would never end.
        path += "?unknown=1"
    body = BODIES.get(operation.name)
    return await client.request(operation.method, path, json=body)


def test_every_operation_that_needs_a_body_has_one_here() -> None:
    needing = {op.name for op in OPERATIONS if op.body is not Empty and not op.body_optional}
    assert needing <= BODIES.keys()


def test_the_document_names_the_permission_of_every_operation() -> None:
    from mainspring.http.app import render_documents

    document = msgspec.json.decode(render_documents(RESOURCES)[0])
    for operation in OPERATIONS:
        described_operation = document["paths"][operation.path][operation.method.lower()]
        permission = None if operation.permission is None else operation.permission.value
        assert described_operation.get("x-permission") == permission
        assert bool(described_operation["security"]) == (permission is not None)


def test_only_probes_and_documentation_need_no_permission() -> None:
    unguarded = {operation.path for operation in OPERATIONS if operation.permission is None}
    assert unguarded == {"/healthz", "/readyz", "/openapi.json", "/docs", "/docs/problems"}


@memory_only
@pytest.mark.parametrize("operation", GUARDED, ids=lambda operation: operation.name)
async def test_each_role_may_call_the_operations_it_is_granted(guarded: Service, operation: Operation) -> None:
    async with guarded.client() as anonymous, guarded.client("ms_aaaaaaaaaaaa_" + "x" * 43) as impostor:
        for client in (anonymous, impostor):
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


async def test_objects_of_another_tenant_are_not_found_and_not_changed(guarded: Service) -> None:
    """The answer is the same, byte for byte, as for an object that does not exist."""
    async with (
        guarded.client(await guarded.key(Role.ADMIN, "a")) as owner,
        guarded.client(await guarded.key(Role.ADMIN, "b")) as stranger,
    ):
        one_off = (await owner.post("/v1/jobs", json={"task": "t"})).json()["jobId"]
        recurring = (await owner.post("/v1/jobs", json={"task": "t", "name": "r", "every": "1h"})).json()["jobId"]
        tick = (await owner.post(f"/v1/jobs/{recurring}/run")).json()["runId"]
        key = (await owner.post("/v1/keys", json={"name": "k", "role": "viewer"})).json()["keyId"]
        worker = (await owner.post("/v1/workers/register", json={"name": "w", "queues": ["q"]})).json()["workerId"]
        paths = (f"/v1/jobs/{one_off}", f"/v1/jobs/{recurring}", "/v1/keys")
        before = [(await owner.get(path)).content for path in paths]
        for operation in WITH_ID:
            missing = await ask(stranger, operation)
            assert missing.status_code == 404, (operation.name, missing.text)
            for identifier in (one_off, recurring, tick, key, worker):
                foreign = await ask(stranger, operation, identifier)
                assert (foreign.status_code, foreign.content) == (404, missing.content), operation.name
                assert set(foreign.headers) == set(missing.headers), operation.name
            assert [(await owner.get(path)).content for path in paths] == before, operation.name


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


#: These operations skip or reject single objects; the others are rejected as a whole.
FILTERED = {"create_jobs", "act_on_many", "replay", "start_replay", "discard", "bring_back", "create_key", "register"}
CHANGING = [op for op in GUARDED if op.method != "GET"]
#: Bodies that would change objects of the other queue.
REACHING: dict[str, list[Any]] = {
    "create_job": [{"task": "t", "queue": "prod"}, {"task": "t", "queue": "prod", "name": "n", "every": "1h"}],
    "schedule_job": [{"type": "t", "queue": "prod"}],
    "create_jobs": [
        {"jobs": [{"task": "t", "queue": "prod"}, {"task": "t", "queue": "prod", "name": "n", "every": "1h"}]}
    ],
    "preview_job": [{"task": "t", "queue": "prod"}],
    "preview_change": [{"priority": 2}, {"queue": "mail"}],
    "change_job": [{"priority": 2}, {"queue": "mail"}],
    "update_job": [{"priority": 2}, {"queue": "mail"}],
    "backfill_job": [{"since": "2026-01-01T00:00:00Z", "until": "2026-01-01T03:00:00Z"}],
    "replay": [{"everything": True}, {"queue": "prod"}, {"runIds": ["DEAD"]}],
    "start_replay": [{"everything": True}, {"queue": "prod"}],
    "bring_back": [{"runIds": ["DEAD"]}],
    "discard": [{"everything": True}, {"queue": "prod"}, {"runIds": ["DEAD"]}],
    "create_workflow": [
        {"name": "w", "nodes": {"a": {"task": "t"}, "b": {"task": "t", "queue": "prod", "after": ["a"]}}}
    ],
    "reconcile_schedules": [
        {"source": "s", "schedules": [{"task": "t", "name": "n", "every": "1h", "queue": "prod"}]},
        # An existing schedule that moves to a queue of the key, and one that is no longer declared.
        {"source": "s", "schedules": [{"task": "t", "name": "r", "every": "1h", "queue": "mail"}], "takeOver": True},
        {"source": "app", "schedules": [], "remove": True},
    ],
    "act_on_many": [
        {"action": action, "target": target, **which, **({"addTags": ["x"]} if action == "retag" else {})}
        for target, actions in (
            ("runs", ("cancel", "retag", "retry")),
            ("jobs", ("pause", "resume", "cancel", "retag")),
        )
        for action in actions
        for which in ({"everything": True}, {"queue": "prod"}, {"ids": ["RECURRING" if target == "jobs" else "LATER"]})
    ],
    "create_key": [{"name": "k", "role": "admin", "queues": ["prod"]}],
    "register": [{"name": "w", "queues": ["prod"]}, {"name": "w", "queues": ["mail", "prod"]}],
}


#: Fields that change as time passes: the trend has a number for each hour.
TIMES = {"lastUsedAt", "trend"}


async def read_everything(owner: httpx2.AsyncClient) -> list[Any]:
    """Everything that an operation could change."""
    found: list[Any] = []
    for path in ("/v1/jobs", "/v1/runs", "/v1/dead-letters", "/v1/keys"):
        items = (await owner.get(path)).json()["items"]
        found.append([{name: value for name, value in item.items() if name not in TIMES} for item in items])
    found.append([(item["name"], item["paused"]) for item in (await owner.get("/v1/queues")).json()["items"]])
    return found


async def test_a_key_bound_to_queues_changes_nothing_in_other_queues(guarded: Service) -> None:
    """A new operation that changes an object without checking its queue fails here."""
    async with (
        guarded.client(await guarded.key(Role.ADMIN, "a")) as owner,
        guarded.client(await guarded.key(Role.ADMIN, "a", ("mail",))) as scoped,
    ):
        worker = (await owner.post("/v1/workers/register", json={"name": "w", "queues": ["prod"]})).json()["workerId"]
        fences = {}
        ended = {}
        for how, body in (("fail", {"error": "E: x", "retry": False}), ("complete", {}), ("", {})):
            run = (await owner.post("/v1/jobs", json={"task": "t", "queue": "prod"})).json()["jobId"]
            [held] = (await owner.post(f"/v1/workers/{worker}/claim")).json()["runs"]
            assert held["runId"] == run
            fences[run] = held["fence"]
            ended[how] = run
            if how:
                done = await owner.post(f"/v1/runs/{run}/{how}", json={"fence": held["fence"], **body})
                assert done.status_code == 200, done.text
        later = (await owner.post("/v1/jobs", json={"task": "t", "queue": "prod", "delay": "1h"})).json()["jobId"]
        cron = {"task": "t", "name": "r", "every": "1h", "queue": "prod", "scheduleTime": "2026-01-01T00:00:00Z"}
        recurring = (await owner.post("/v1/jobs", json=cron)).json()["jobId"]
        declared = {"source": "app", "schedules": [{**cron, "name": "d"}]}
        assert (await owner.post("/v1/schedules/reconcile", json=declared)).status_code == 200
        tick = (await owner.post(f"/v1/jobs/{recurring}/run")).json()["runId"]
        key = (await owner.post("/v1/keys", json={"name": "k", "role": "viewer", "queues": ["prod"]})).json()["keyId"]
        before = await read_everything(owner)
        for operation in CHANGING:
            for identifier in (ended["fail"], ended["complete"], ended[""], later, recurring, tick, key, worker):
                path = operation.path.format(id=identifier, name="prod", version="1")
                bodies = REACHING.get(operation.name, [BODIES.get(operation.name)])
                for body in bodies:
                    text = msgspec.json.encode(body).decode()
                    for word, meant in (("DEAD", ended["fail"]), ("LATER", later), ("RECURRING", recurring)):
                        text = text.replace(word, meant)
                    body = msgspec.json.decode(text)
                    if body and "fence" in body:
                        body["fence"] = fences.get(identifier, 1)
                    answer = await scoped.request(operation.method, path, json=body)
                    assert answer.status_code < 500, answer.text
                    allowed = {200, 201, 400, 403} if operation.name in FILTERED else {403, 404}
                    assert answer.status_code in allowed, (operation.name, body, answer.text)
                if "{id}" not in operation.path:
                    break
            assert await read_everything(owner) == before, operation.name


@pytest.mark.parametrize("kind", [{"delay": "1h"}, {"name": "r", "every": "1h"}], ids=["one-off", "recurring"])
async def test_a_key_bound_to_queues_cannot_move_jobs_to_other_queues(guarded: Service, kind: dict[str, Any]) -> None:
    async with (
        guarded.client(await guarded.key(Role.OPERATOR, "a", ("mail", "sms"))) as scoped,
        guarded.client(await guarded.key(Role.OPERATOR, "a")) as owner,
    ):
        job = (await scoped.post("/v1/jobs", json={"task": "t", "queue": "mail", **kind})).json()["jobId"]
        assert (await scoped.patch(f"/v1/jobs/{job}", json={"queue": "sms"})).json()["queue"] == "sms"
        assert (await scoped.patch(f"/v1/jobs/{job}", json={"queue": "prod"})).status_code == 403
        assert (await owner.get(f"/v1/jobs/{job}")).json()["queue"] == "sms"
        assert (await owner.patch(f"/v1/jobs/{job}", json={"queue": "prod"})).status_code == 200
        assert (await scoped.patch(f"/v1/jobs/{job}", json={"priority": 1})).status_code == 403
        assert (await scoped.get(f"/v1/jobs/{job}")).status_code == 200, "reading is not restricted to queues"
        if "every" in kind:
            assert (await owner.patch(f"/v1/jobs/{job}", json={"queue": "mail"})).status_code == 200
            for version, status in ((3, 403), (2, 200)):
                restored = await scoped.post(f"/v1/jobs/{job}/versions/{version}/restore")
                assert restored.status_code == status, restored.text


async def test_bulk_changes_affect_only_the_queues_of_the_key(guarded: Service) -> None:
    async with (
        guarded.client(await guarded.key(Role.ADMIN, "a")) as owner,
        guarded.client(await guarded.key(Role.OPERATOR, "a", ("mail",))) as scoped,
    ):
        made = {}
        for queue in ("mail", "prod"):
            made[queue] = (await owner.post("/v1/jobs", json={"task": "t", "queue": queue})).json()["jobId"]
        body = {"action": "cancel", "target": "runs", "everything": True}
        assert (await scoped.post("/v1/bulk", json=body)).json()["sample"] == [made["mail"]]
        assert (await owner.get(f"/v1/runs/{made['prod']}")).json()["status"] == "queued"
