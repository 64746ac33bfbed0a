"""Requests start from the options that a task declares. An explicit value wins."""

from collections.abc import Callable
from typing import Any

import httpx2
import msgspec
import pytest

from mainspring.core.model.access.access import Role
from mainspring.core.model.base.instant import MINUTE, SECOND
from mainspring.core.model.limits.limits import Breaker, Limit
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.model.runs.retry import RetryPolicy
from mainspring.core.model.tasks.task_entry import TaskEntry
from mainspring.http.api_store import ApiStore
from tests.api.conftest import Service, memory_only
from tests.support.waiting import eventually

PAYOUT = TaskEntry(
    name="payout",
    queue="money",
    priority=1,
    policy=RunPolicy(
        retry=RetryPolicy(max_retries=7, backoff="fixed", first_delay=5 * SECOND),
        timeout=MINUTE,
        guarantee="at-most-once",
        requires=("zone=a",),
        limits=(Limit(key="bank:{payload.bank}", most=2),),
        breaker=Breaker(failures=9),
        weight=3,
        retention="long",
    ),
    tags=("bank",),
    arguments={"type": "object", "properties": {"bank": {"type": "string", "default": "main"}}},
)
#: What a job answers that says nothing but its task.
DECLARED = {
    "queue": "money",
    "priority": 1,
    "maxRetries": 7,
    "timeout": "1m",
    "guarantee": "at-most-once",
    "requires": {"zone": "a"},
    "limits": [{"key": "bank:main", "most": 2}],
    "weight": 3,
    "retention": "long",
    "tags": ["bank"],
}


@pytest.fixture(autouse=True)
async def _register(store: ApiStore) -> None:
    await store.register_tasks([PAYOUT], "w1")


async def create(client: httpx2.AsyncClient, **fields: Any) -> dict[str, Any]:
    response = await client.post("/v1/jobs", json={"task": "payout", **fields})
    assert response.status_code == 201, response.text
    body: dict[str, Any] = response.json()
    return body


def said(job: dict[str, Any]) -> dict[str, Any]:
    # Usual values are left out of answers.
    return {name: job.get(name, 1 if name == "weight" else None) for name in DECLARED}


async def test_a_submit_has_the_options_of_its_task(client: httpx2.AsyncClient) -> None:
    job = (await client.get(f"/v1/jobs/{(await create(client))['jobId']}")).json()
    assert said(job) == DECLARED
    assert job["retry"]["firstDelay"] == "5s"
    assert job["breaker"]["failures"] == 9


@memory_only
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("queue", "other"),
        ("priority", 5),
        ("maxRetries", 3),
        ("timeout", "1h"),
        ("guarantee", "at-least-once"),
        ("requires", {"gpu": "x"}),
        ("limits", [{"key": "k", "most": 1}]),
        ("weight", 1),
        ("retention", None),
        ("tags", ["mine"]),
    ],
)
async def test_an_explicit_value_wins(client: httpx2.AsyncClient, field: str, value: object) -> None:
    job = (await client.get(f"/v1/jobs/{(await create(client, **{field: value}))['jobId']}")).json()
    assert said(job) == DECLARED | {field: value}


@memory_only
async def test_an_explicit_back_off_keeps_the_number_of_retries(client: httpx2.AsyncClient) -> None:
    job = await create(client, retry={"backoff": "list", "delays": ["1m"]})
    assert (job["maxRetries"], job["retry"]["backoff"], job["retry"]["delays"]) == (7, "list", ["1m"])


@memory_only
async def test_an_explicit_preset_goes_by_the_priority_of_the_task(client: httpx2.AsyncClient) -> None:
    assert (await create(client, preset="payouts"))["timeout"] == "1m"
    assert (await create(client, preset="payouts", priority=2))["timeout"] == "5m"


@memory_only
async def test_a_preset_of_the_task_goes_by_the_priority_of_the_request(
    store: ApiStore, client: httpx2.AsyncClient
) -> None:
    await store.register_tasks([TaskEntry(name="by-priority", preset="payouts", priority=2)], "w1")
    assert (await create(client, task="by-priority"))["timeout"] == "5m"
    assert (await create(client, task="by-priority", priority=3))["timeout"] == "30m"
    assert (await create(client, task="by-priority", priority=3, timeout="7s"))["timeout"] == "7s"


@memory_only
async def test_the_data_center_of_a_request_keeps_the_other_labels_of_the_task(
    store: ApiStore, client: httpx2.AsyncClient
) -> None:
    policy = RunPolicy(requires=("datacenter=us", "gpu=x"))
    await store.register_tasks([TaskEntry(name="placed", policy=policy)], "w1")
    assert (await create(client, task="placed"))["requires"] == {"datacenter": "us", "gpu": "x"}
    assert (await create(client, task="placed", datacenters=["eu"]))["requires"] == {"datacenter": "eu", "gpu": "x"}
    assert (await create(client, task="placed", datacenters="any"))["requires"] == {"gpu": "x"}


@memory_only
async def test_a_key_of_a_limit_is_filled_in_with_the_payload(client: httpx2.AsyncClient) -> None:
    job = await create(client, payload={"bank": "north"})
    assert [limit["key"] for limit in job["limits"]] == ["bank:north"]


async def test_jobs_of_a_batch_have_the_options_of_their_task(client: httpx2.AsyncClient) -> None:
    jobs = [{"task": "payout"}, {"task": "payout", "queue": "other"}, {"task": "unknown"}]
    items = (await client.post("/v1/jobs/batch", json={"jobs": jobs})).json()["items"]
    found = [(await client.get(f"/v1/jobs/{item['jobId']}")).json() for item in items]
    assert said(found[0]) == DECLARED
    assert said(found[1]) == DECLARED | {"queue": "other"}
    assert (found[2]["queue"], found[2]["timeout"], found[2]["maxRetries"]) == ("default", "1h", 3)


async def test_a_recurring_job_has_the_options_of_its_task(client: httpx2.AsyncClient) -> None:
    job = await create(client, name="hourly", every="1h")
    assert said(job) == DECLARED
    assert said(await create(client, name="other", every="1h", priority=4)) == DECLARED | {"priority": 4}


async def test_schedules_of_a_file_have_the_options_of_their_task(client: httpx2.AsyncClient) -> None:
    schedule = {"name": "hourly", "task": "payout", "every": "1h", "queue": "other"}
    body = {"source": "file:schedules.yaml", "schedules": [schedule]}
    [step] = (await client.post("/v1/schedules/reconcile", json=body)).json()["steps"]
    job = (await client.get(f"/v1/jobs/{step['jobId']}")).json()
    assert said(job) == DECLARED | {"queue": "other"}
    again = (await client.post("/v1/schedules/reconcile", json={**body, "dryRun": True})).json()
    assert again["unchanged"] == ["hourly"]


@memory_only
async def test_a_change_of_a_job_keeps_the_options_that_it_was_made_with(client: httpx2.AsyncClient) -> None:
    job = await create(client, name="hourly", every="1h", queue="other", timeout="2h")
    response = await client.patch(f"/v1/jobs/{job['jobId']}", json={"priority": 8})
    assert response.status_code == 200, response.text
    assert said(response.json()) == DECLARED | {"queue": "other", "timeout": "2h", "priority": 8}


async def test_the_newest_registration_wins(service: Service, client: httpx2.AsyncClient) -> None:
    assert (await create(client))["queue"] == "money"
    await service.store.register_tasks([msgspec.structs.replace(PAYOUT, queue="faster")], "w2")

    async def sees_it() -> bool:
        return (await create(client))["queue"] == "faster"

    await eventually(sees_it)


async def test_a_repeated_request_is_the_same_after_the_task_has_changed(
    service: Service, client: httpx2.AsyncClient
) -> None:
    first = await create(client, idempotencyKey="k")
    await service.store.register_tasks([msgspec.structs.replace(PAYOUT, queue="faster")], "w2")
    await service.api.catalog.all()
    assert (await create(client, idempotencyKey="k"))["jobId"] == first["jobId"]
    assert (await create(client, idempotencyKey="other"))["queue"] == "faster"


@memory_only
async def test_submits_of_a_known_task_read_nothing_from_the_catalog(
    service: Service, client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(client)
    reads = []
    list_tasks: Callable[..., Any] = service.store.list_tasks

    async def count(after: int = 0) -> Any:
        reads.append(after)
        return await list_tasks(after)

    monkeypatch.setattr(service.store, "list_tasks", count)
    monkeypatch.setattr(service.api.catalog, "_clock", _Stopped(service.clock.monotonic()))
    for _ in range(20):
        assert (await create(client))["queue"] == "money"
    for _ in range(20):
        assert (await create(client, task="unknown"))["queue"] == "default"
    assert reads == []


class _Stopped:
    def __init__(self, moment: int) -> None:
        self._moment = moment

    def monotonic(self) -> int:
        return self._moment


CHARGE = TaskEntry(
    name="charge",
    arguments={
        "type": "object",
        "properties": {"user": {"type": "integer"}, "note": {"type": "string", "default": ""}},
        "required": ["user"],
        "additionalProperties": False,
    },
)


@memory_only
@pytest.mark.parametrize(
    ("payload", "field", "detail"),
    [
        ({"user": "1"}, "payload.user", "payload.user: expected 'int', got 'str'"),
        ({}, "payload.user", "payload.user: is missing"),
        (None, "payload.user", "payload.user: is missing"),
        ({"user": 1, "nte": "x"}, "payload.nte", "payload.nte: is no argument of task 'charge'"),
        ([1], "payload", "payload: expected 'object', got 'array'"),
    ],
)
async def test_a_wrong_argument_is_rejected_and_named(
    store: ApiStore, client: httpx2.AsyncClient, payload: object, field: str, detail: str
) -> None:
    await store.register_tasks([CHARGE], "w1")
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/v1/jobs", {"task": "charge", "payload": payload}),
        ("/v1/jobs", {"task": "charge", "payload": payload, "name": "n", "every": "1h"}),
        ("/v1/jobs/preview", {"task": "charge", "payload": payload}),
    ]
    for path, body in bodies:
        response = await client.post(path, json=body)
        assert response.status_code == 400, response.text
        assert (response.json()["field"], response.json()["detail"]) == (field, detail)
    jobs = [{"task": "charge", "payload": payload}, {"task": "charge", "payload": {"user": 1}}]
    first, second = (await client.post("/v1/jobs/batch", json={"jobs": jobs})).json()["items"]
    assert (first["problem"]["detail"], "jobId" in second) == (detail, True)


@memory_only
async def test_a_wrong_argument_of_a_node_or_a_member_is_named(store: ApiStore, client: httpx2.AsyncClient) -> None:
    await store.register_tasks([CHARGE], "w1")
    nodes = {"first": {"task": "charge", "payload": {"user": "1"}}}
    response = await client.post("/v1/workflows", json={"name": "w", "nodes": nodes})
    assert (response.status_code, response.json()["field"]) == (400, "nodes.first.payload.user")
    fan_out = {"task": "fan_out", "payload": {"task": "charge", "items": [{"user": "1"}]}}
    response = await client.post("/v1/jobs", json=fan_out)
    assert (response.status_code, response.json()["field"]) == (400, "payload.items[0].user")


@memory_only
async def test_payloads_of_a_task_that_upgrades_them_are_not_checked(
    store: ApiStore, client: httpx2.AsyncClient
) -> None:
    await store.register_tasks([msgspec.structs.replace(CHARGE, checked=False)], "w1")
    await create(client, task="charge", payload={"customer": "old"})


@memory_only
async def test_a_changed_payload_of_a_job_is_checked(store: ApiStore, client: httpx2.AsyncClient) -> None:
    await store.register_tasks([CHARGE], "w1")
    job = await create(client, task="charge", payload={"user": 1}, name="n", every="1h")
    for response in (
        await client.patch(f"/v1/jobs/{job['jobId']}", json={"payload": {"user": None}}),
        await client.post(f"/v1/jobs/{job['jobId']}/run", json={"payload": {"user": None}}),
    ):
        assert (response.status_code, response.json()["field"]) == (400, "payload.user")


@memory_only
async def test_nodes_of_a_workflow_have_the_options_of_their_tasks(client: httpx2.AsyncClient) -> None:
    nodes = {"first": {"task": "payout"}, "then": {"task": "payout", "queue": "other", "after": ["first"]}}
    made = (await client.post("/v1/workflows", json={"name": "w", "nodes": nodes})).json()
    first, then = [(await client.get(f"/v1/jobs/{made['nodes'][name]}")).json() for name in ("first", "then")]
    assert said(first) == DECLARED | {"tags": ["bank", *first["tags"][1:]]}
    assert (then["queue"], then["timeout"]) == ("other", "1m")


@memory_only
async def test_members_of_a_fan_out_need_a_key_for_the_queue_of_their_task(guarded: Service) -> None:
    body = {"task": "fan_out", "payload": {"task": "payout", "items": [{}]}}
    for queues, status in ((("default",), 403), (("default", "money"), 201)):
        async with guarded.client(await guarded.key(Role.SUBMITTER, "default", queues)) as client:
            assert (await client.post("/v1/jobs", json=body)).status_code == status


@memory_only
async def test_a_job_can_be_changed_after_its_task_has_new_arguments(
    service: Service, client: httpx2.AsyncClient
) -> None:
    await service.store.register_tasks([TaskEntry(name="charge")], "w1")
    jobs = [
        await create(client, task="charge", payload={"customer": 1}, **fields)
        for fields in ({"name": "n", "every": "1h"}, {"delay": "1h"})
    ]
    await service.store.register_tasks([CHARGE], "w2")
    await service.api.catalog.all()
    for job in jobs:
        path = f"/v1/jobs/{job['jobId']}"
        assert (await client.patch(path, json={"priority": 3})).status_code == 200
        assert (await client.patch(path, json={"payload": {"customer": 2}})).status_code == 400
