"""Every write that can name a tenant rejects one that is not the caller's, and one that does not exist."""

from collections.abc import Iterator
from typing import Any

import httpx2
import msgspec
import pytest
from msgspec import inspect

from mainspring.config.resources import RESOURCES
from mainspring.core.model.access.access import Role
from mainspring.http.operation import Operation
from mainspring.http.schemas.jobs import JobIn
from tests.api.conftest import Service, memory_only
from tests.api.test_resources import get, post
from tests.support.builders import an_id

ICAL = (
    "BEGIN:VCALENDAR\r\nVERSION:2.0\r\nBEGIN:VEVENT\r\nDTSTART;VALUE=DATE:20300101\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n"
)
SOME_ID = an_id()
NODES = {"nodes": {"a": {"task": "t"}}}
#: A valid request for each write that can name a tenant: path, body and whether the tenant is a query parameter.
REQUESTS: dict[str, list[tuple[str, dict[str, Any], bool]]] = {
    "create_job": [
        ("/v1/jobs", {"task": "t"}, False),
        ("/v1/jobs", {"task": "t", "name": "n", "cronExpression": "0 9 * * *"}, False),
    ],
    "schedule_job": [("/api/jobs/schedule", {"type": "t"}, False)],
    "preview_job": [("/v1/jobs/preview", {"task": "t"}, False)],
    "reconcile_schedules": [("/v1/schedules/reconcile", {"source": "s", "schedules": []}, False)],
    "put_calendar": [("/v1/calendars/c", {"holidays": [{"date": "2030-01-01"}]}, False)],
    "delete_calendar": [("/v1/calendars/c", {}, False)],
    "import_calendar": [("/v1/calendars/c/import", {"ical": ICAL}, False)],
    "broadcast": [("/v1/broadcasts", {"task": "t"}, False)],
    "create_workflow": [("/v1/workflows", {"name": "w", **NODES}, False)],
    "replay": [
        ("/v1/dead-letters/replay", {"everything": True}, False),
        ("/v1/dead-letters/replay", {"everything": True, "dryRun": True}, False),
        ("/v1/dead-letters/replay", {"runIds": [SOME_ID]}, False),
    ],
    "discard": [
        ("/v1/dead-letters/discard", {"everything": True}, False),
        ("/v1/dead-letters/discard", {"runIds": [SOME_ID]}, False),
    ],
    "start_replay": [("/v1/dead-letters/replays", {"everything": True}, False)],
    "pause_queue": [("/v1/queues/q/pause", {}, False)],
    "resume_queue": [("/v1/queues/q/resume", {}, False)],
    "put_budget": [("/v1/budgets/b", {"unit": "wall", "limit": 5}, False)],
    "delete_budget": [("/v1/budgets/b", {}, True)],
    "act_on_many": [
        ("/v1/bulk", {"target": "jobs", "action": "pause", "everything": True}, False),
        ("/v1/bulk", {"target": "runs", "action": "cancel", "everything": True, "dryRun": True}, False),
        ("/v1/bulk", {"target": "runs", "action": "cancel", "ids": [SOME_ID]}, False),
    ],
    "create_key": [("/v1/keys", {"name": "k", "role": "viewer"}, False)],
}
WRITES = [
    operation
    for resource in RESOURCES
    for operation in resource.operations
    if operation.method != "GET"
    and any(
        field.name == "tenant"
        for kind in (operation.body, operation.query)
        for field in (msgspec.structs.fields(kind) if isinstance(kind, type) else ())
    )
]
#: Each of these creates the tenant that it names.
CREATES = {"create_key"}
CASES = [(operation, *request) for operation in WRITES for request in REQUESTS.get(operation.name, [])]


def test_there_is_a_request_for_every_write_that_names_a_tenant() -> None:
    assert {operation.name for operation in WRITES} == REQUESTS.keys()


def names_of(kind: Any, seen: tuple[Any, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The names of all fields of a type, also inside others."""
    if isinstance(kind, inspect.Metadata):
        yield from names_of(kind.type, seen)
    elif isinstance(kind, inspect.UnionType):
        for each in kind.types:
            yield from names_of(each, seen)
    elif isinstance(kind, inspect.ListType | inspect.VarTupleType | inspect.SetType):
        yield from names_of(kind.item_type, seen)
    elif isinstance(kind, inspect.DictType):
        yield from names_of(kind.value_type, seen)
    elif isinstance(kind, inspect.StructType) and kind.cls not in seen:
        for field in kind.fields:
            yield (field.encode_name,)
            yield from ((field.encode_name, *inner) for inner in names_of(field.type, (*seen, kind.cls)))


def test_no_write_names_a_tenant_inside_something_else_or_in_its_path() -> None:
    """The requests above would miss it. A tenant of a batch is tested below: its jobs are read one by one."""
    for resource in RESOURCES:
        for operation in resource.operations:
            if operation.method != "GET":
                kinds = [kind for kind in (operation.body, operation.query) if isinstance(kind, type)]
                names = [name for kind in kinds for name in names_of(inspect.type_info(kind))]
                tenants = [name for name in names if "tenant" in name[-1].lower()]
                assert tenants in ([], [("tenant",)]), operation.name
                assert "{tenant}" not in operation.path
                assert bool(tenants) == (operation in WRITES), operation.name


async def write(
    client: httpx2.AsyncClient, operation: Operation, path: str, body: dict[str, Any], *, query: bool, tenant: str
) -> httpx2.Response:
    if query:
        return await client.request(operation.method, path, params={"tenant": tenant})
    return await client.request(operation.method, path, json=body | {"tenant": tenant})


@memory_only
@pytest.mark.parametrize(
    ("operation", "path", "body", "query"), CASES, ids=[f"{case[0].name}-{number}" for number, case in enumerate(CASES)]
)
async def test_a_write_rejects_a_foreign_and_an_unknown_tenant(
    guarded: Service, operation: Operation, path: str, body: dict[str, Any], query: bool
) -> None:
    """``acme`` exists and is another's; ``acmee`` does not exist. The caller is bound to a tenant, or to none."""
    bound, unbound = await guarded.key(Role.ADMIN, "shop"), await guarded.key(Role.ADMIN, None)
    async with guarded.client(bound) as client, guarded.client(unbound) as admin:
        await admin.put("/v1/tenants", json={"name": "acme"})
        for tenant in ("acme", "acmee", "default"):
            refused = await write(client, operation, path, body, query=query, tenant=tenant)
            assert (refused.status_code, refused.json()["field"]) == (400, "tenant"), refused.text
            assert refused.json()["detail"].startswith(f"tenant: '{tenant}' is not yours"), refused.text
        misspelled = await write(admin, operation, path, body, query=query, tenant="acmee")
        if operation.name not in CREATES:
            assert (misspelled.status_code, misspelled.json()["field"]) == (400, "tenant"), misspelled.text
            assert "there is no tenant 'acmee'" in misspelled.text
            known = {tenant["name"] for tenant in (await get(admin, "/v1/tenants"))["items"]}
            assert known == {"acme", "default"}
        for caller, tenant in ((client, "shop"), (admin, "acme")):
            answer = await write(caller, operation, path, body, query=query, tenant=tenant)
            assert answer.status_code < 400 or answer.status_code == 404, answer.text
        assert {each["tenant"] for each in (await get(admin, "/v1/dead-letters/replays"))["items"]} <= {"shop", "acme"}


@memory_only
async def test_each_job_of_a_batch_rejects_a_foreign_and_an_unknown_tenant(guarded: Service) -> None:
    assert "tenant" in {field.name for field in msgspec.structs.fields(JobIn)}
    bound, unbound = await guarded.key(Role.ADMIN, "shop"), await guarded.key(Role.ADMIN, None)
    body = {"jobs": [{"task": "t", "tenant": "acme"}, {"task": "t"}]}
    for key, words in ((bound, "'acme' is not yours"), (unbound, "there is no tenant 'acme'")):
        async with guarded.client(key) as client:
            refused, accepted = (await post(client, "/v1/jobs/batch", body, status=200))["items"]
        assert words in refused["problem"]["detail"]
        assert "jobId" in accepted


async def test_changes_by_id_stay_within_the_named_tenant(guarded: Service) -> None:
    async with guarded.client(await guarded.key(Role.ADMIN, None)) as admin:
        for name in ("acme", "shop"):
            await admin.put("/v1/tenants", json={"name": name})
        made = await post(admin, "/v1/jobs", {"task": "t", "tenant": "shop"}, status=201)
        body = {"target": "runs", "action": "cancel", "ids": [made["jobId"]], "tenant": "acme"}
        assert (await post(admin, "/v1/bulk", body, status=200))["changed"] == 0
        assert (await post(admin, "/v1/bulk", body | {"tenant": "shop"}, status=200))["changed"] == 1


async def test_a_key_creates_its_tenant(guarded: Service) -> None:
    async with guarded.client(await guarded.key(Role.ADMIN, None)) as admin:
        await post(admin, "/v1/keys", {"name": "k", "role": "viewer", "tenant": "acme"}, status=201)
        await post(admin, "/v1/jobs", {"task": "t", "tenant": "acme"}, status=201)
