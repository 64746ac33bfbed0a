"""The task catalog over HTTP."""

import httpx2
import msgspec
import pytest

from mainspring.core.model.access.access import Role
from mainspring.core.model.tasks.task_entry import TaskEntry
from mainspring.http.api_store import ApiStore
from tests.api.conftest import Service
from tests.api.test_task_defaults import DECLARED, PAYOUT


@pytest.fixture(autouse=True)
async def _register(store: ApiStore) -> None:
    await store.register_tasks([PAYOUT, TaskEntry(name="ping", description="Is the host there?")], "w1")


async def test_tasks_are_listed_by_name(client: httpx2.AsyncClient) -> None:
    items = (await client.get("/v1/tasks")).json()["items"]
    assert [item["name"] for item in items] == ["payout", "ping"]
    payout = items[0]
    assert {name: payout[name] for name in DECLARED} == DECLARED | {
        "limits": [{"key": "bank:{payload.bank}", "most": 2}]
    }
    assert (payout["registeredBy"], payout["version"], payout["workers"]) == ("w1", 1, 0)
    assert "arguments" not in payout


async def test_tasks_are_searched_by_name_and_description(client: httpx2.AsyncClient) -> None:
    for text, names in (("PAY", ["payout"]), ("host", ["ping"]), ("nothing", [])):
        items = (await client.get("/v1/tasks", params={"text": text})).json()["items"]
        assert [item["name"] for item in items] == names


async def test_a_task_is_shown_with_its_arguments(client: httpx2.AsyncClient) -> None:
    found = (await client.get("/v1/tasks/payout")).json()
    assert found["arguments"] == PAYOUT.arguments
    assert (await client.get("/v1/tasks/unknown")).status_code == 404


async def test_a_changed_task_is_shown_at_once(store: ApiStore, client: httpx2.AsyncClient) -> None:
    await client.get("/v1/tasks/payout")
    await store.register_tasks([msgspec.structs.replace(PAYOUT, queue="faster")], "w2")
    found = (await client.get("/v1/tasks/payout")).json()
    assert (found["queue"], found["version"], found["registeredBy"]) == ("faster", 2, "w2")


async def test_the_live_workers_of_a_task_are_counted(client: httpx2.AsyncClient) -> None:
    body = {"name": "w", "queues": ["default"], "tasks": ["ping"]}
    assert (await client.post("/v1/workers/register", json=body)).status_code == 201
    items = (await client.get("/v1/tasks")).json()["items"]
    assert {item["name"]: item["workers"] for item in items} == {"payout": 0, "ping": 1}


@pytest.mark.parametrize("role", [Role.VIEWER, Role.SUBMITTER, Role.OPERATOR, Role.ADMIN])
async def test_a_key_of_any_tenant_reads_the_catalog(guarded: Service, role: Role) -> None:
    async with guarded.client(await guarded.key(role, "other")) as client:
        assert (await client.get("/v1/tasks/ping")).status_code == 200
