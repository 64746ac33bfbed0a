"""Dependencies between jobs, and workflows, over HTTP."""

from typing import Any, cast

import httpx2
import pytest

from mainspring.core.model.access.access import Role
from mainspring.core.ports.storage.catalog import Reads
from tests.api.conftest import Service
from tests.api.test_jobs import create
from tests.api.test_remote import claim, register

DIAMOND = {
    "name": "nightly",
    "nodes": {
        "extract": {"task": "t", "payload": {"day": 1}, "maxRetries": 0},
        "left": {"task": "t", "after": ["extract"]},
        "right": {"task": "t", "after": ["extract"], "maxRetries": 0},
        "load": {"task": "t", "after": ["left", "right"]},
        "clean": {"task": "t", "after": ["right"], "when": "any-failed"},
    },
}


class Worker:
    """A worker that completes or fails its runs as a test requires."""

    def __init__(self, client: httpx2.AsyncClient, identifier: str) -> None:
        self.client = client
        self.id = identifier

    async def work(self, *fail: str) -> list[str]:
        """Complete every queued run, but fail these nodes; their names in order."""
        done = []
        while runs := await claim(self.client, self.id, limit=100):
            for run in runs:
                seen = (await self.client.get(f"/v1/runs/{run['runId']}")).json()
                name = seen.get("node", seen["runId"])
                fails = name in fail
                report = {"fence": run["fence"]} | ({"error": "no luck"} if fails else {"result": name})
                path = f"/v1/runs/{run['runId']}/{'fail' if fails else 'complete'}"
                response = await self.client.post(path, json=report)
                assert response.status_code == 200, response.text
                done.append(name)
        return done


@pytest.fixture
async def worker(client: httpx2.AsyncClient) -> Worker:
    return Worker(client, await register(client))


async def submit(client: httpx2.AsyncClient, body: object = DIAMOND, **headers: str) -> dict[str, Any]:
    response = await client.post("/v1/workflows", json=body, headers=headers)
    assert response.status_code == 201, response.text
    made: dict[str, Any] = response.json()
    return made


async def states(client: httpx2.AsyncClient, workflow: str) -> dict[str, str]:
    seen = (await client.get(f"/v1/workflows/{workflow}")).json()
    return {node["name"]: node["status"] for node in seen["nodes"]}


async def test_a_job_depends_on_another_job(client: httpx2.AsyncClient, worker: Worker) -> None:
    first = await create(client)
    second = await create(client, dependsOn=[first["jobId"]], when="all-done")
    assert second["status"] == "blocked"
    read = (await client.get(f"/v1/jobs/{second['jobId']}")).json()
    run = (await client.get(f"/v1/runs/{second['jobId']}")).json()
    changed = (await client.patch(f"/v1/jobs/{second['jobId']}", json={"priority": 3})).json()
    for seen in (second, read, run, changed):
        assert (seen["dependsOn"], seen["when"]) == ([first["jobId"]], "all-done")
    assert "dependsOn" not in (await client.get(f"/v1/runs/{first['jobId']}")).json()
    parents = (await client.get(f"/v1/runs/{second['jobId']}/parents")).json()["items"]
    children = (await client.get(f"/v1/runs/{first['jobId']}/children")).json()["items"]
    assert [run["runId"] for run in parents] == [first["jobId"]]
    assert [(run["runId"], run["when"]) for run in children] == [(second["jobId"], "all-done")]
    explained = (await client.get(f"/v1/runs/{second['jobId']}/explain")).json()
    assert explained["because"][0]["code"] == "parents"
    assert explained["because"][0]["holders"] == [{"kind": "run", "id": first["jobId"]}]
    assert await worker.work() == [first["jobId"], second["jobId"]]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"dependsOn": ["0" * 32]}, "dependsOn"),
        ({"dependsOn": ["01" * 6 + "7" + "0" * 19]}, "dependsOn"),
        ({"dependsOn": ["#0"]}, "dependsOn"),
        ({"when": "all-done"}, "when"),
        ({"dependsOn": [], "when": "sometimes"}, "when"),
        ({"dependsOn": ["#0"], "name": "x", "every": "1h"}, "dependsOn"),
    ],
)
async def test_invalid_dependencies_are_rejected_with_their_field(
    client: httpx2.AsyncClient, fields: dict[str, Any], field: str
) -> None:
    response = await client.post("/v1/jobs", json={"task": "t", **fields})
    assert (response.status_code, response.json()["field"]) == (400, field), response.text


async def test_jobs_of_a_batch_can_depend_on_each_other(client: httpx2.AsyncClient, worker: Worker) -> None:
    batch = {
        "jobs": [
            {"task": "t", "dependsOn": ["#1"], "idempotencyKey": "child"},
            {"task": "t", "idempotencyKey": "parent"},
            {"task": "t", "priority": 99},
            {"task": "t", "dependsOn": ["#2"]},
        ]
    }
    made = (await client.post("/v1/jobs/batch", json=batch)).json()
    assert [item.get("status") for item in made["items"]] == ["blocked", "queued", None, None]
    assert made["items"][3]["problem"]["field"] == "dependsOn"
    again = (await client.post("/v1/jobs/batch", json=batch)).json()
    assert [item.get("jobId") for item in again["items"]] == [item.get("jobId") for item in made["items"]]
    assert await worker.work() == [made["items"][1]["jobId"], made["items"][0]["jobId"]]


async def test_a_workflow_is_created_run_and_read(client: httpx2.AsyncClient, worker: Worker) -> None:
    made = await submit(client)
    seen = (await client.get(f"/v1/workflows/{made['workflowId']}")).json()
    assert (seen["name"], seen["status"], seen["counts"]) == ("nightly", "running", {"queued": 1, "blocked": 4})
    assert [node["name"] for node in seen["nodes"]] == list(DIAMOND["nodes"])
    assert seen["nodes"][3]["after"] == ["left", "right"]
    assert seen["nodes"][4]["when"] == "any-failed"
    page = (await client.get(f"/v1/workflows/{made['workflowId']}?limit=2&cursor=2")).json()
    assert ([node["name"] for node in page["nodes"]], page["nextCursor"]) == (["right", "load"], "4")
    done = await worker.work()
    assert (done[0], set(done[1:3]), done[3]) == ("extract", {"left", "right"}, "load")
    results = (await client.get(f"/v1/runs/{made['nodes']['load']}/parents")).json()["items"]
    assert [run["result"] for run in results] == ["left", "right"]
    seen = (await client.get(f"/v1/workflows/{made['workflowId']}")).json()
    assert (seen["status"], seen["counts"]) == ("succeeded", {"succeeded": 4, "skipped": 1})


async def test_retrying_a_workflow_runs_failed_nodes_and_their_dependents(
    client: httpx2.AsyncClient, worker: Worker
) -> None:
    made = await submit(client)
    workflow = made["workflowId"]
    assert set(await worker.work("right")) == {"extract", "left", "right", "clean"}
    assert (await states(client, workflow))["load"] == "skipped"
    for path in (workflow, f"{workflow}/part"):
        nodes = (await client.get(f"/v1/workflows/{path}")).json()["nodes"]
        assert {node["name"]: node["error"] for node in nodes if node.get("error")} == {"right": "no luck"}
    response = await client.post(f"/v1/workflows/{workflow}/retry")
    assert response.status_code == 201, response.text
    assert set(response.json()["nodes"]) == {"right", "load"}, "nodes that succeeded are not repeated"
    seen = {node["name"]: node for node in (await client.get(f"/v1/workflows/{workflow}")).json()["nodes"]}
    assert seen["right"]["replayOf"] == made["nodes"]["right"]
    assert seen["left"]["runId"] == made["nodes"]["left"]
    assert await worker.work() == ["right", "load"]
    results = (await client.get(f"/v1/runs/{seen['load']['runId']}/parents")).json()["items"]
    assert [run["result"] for run in results] == ["left", "right"]
    assert (await client.get(f"/v1/workflows/{workflow}")).json()["status"] == "succeeded"
    assert (await client.post(f"/v1/workflows/{workflow}/retry")).status_code == 409
    again = await client.post(f"/v1/workflows/{workflow}/retry", json={"node": "left"})
    assert set(again.json()["nodes"]) == {"left"}, "a node that succeeded runs again if it is named"
    assert (await client.post(f"/v1/workflows/{workflow}/retry", json={"node": "up"})).status_code == 404


async def test_cancelling_a_workflow_cancels_its_active_nodes(client: httpx2.AsyncClient, worker: Worker) -> None:
    made = await submit(client)
    [run] = await claim(client, worker.id)
    response = await client.post(f"/v1/workflows/{made['workflowId']}/cancel")
    assert (response.status_code, response.json()["cancelled"]) == (202, 5)
    assert await states(client, made["workflowId"]) == {
        "extract": "cancelling",
        "left": "cancelled",
        "right": "cancelled",
        "load": "cancelled",
        "clean": "cancelled",
    }
    await client.post(f"/v1/runs/{run['runId']}/cancelled", json={"fence": run["fence"]})
    assert (await client.post(f"/v1/workflows/{made['workflowId']}/cancel")).status_code == 409
    retried = await client.post(f"/v1/workflows/{made['workflowId']}/retry")
    assert set(retried.json()["nodes"]) == set(DIAMOND["nodes"])


async def test_the_same_idempotency_key_creates_one_workflow(client: httpx2.AsyncClient) -> None:
    first = await submit(client, **{"idempotency-key": "once"})
    again = await submit(client, **{"idempotency-key": "once"})
    assert (again["workflowId"], again["nodes"]) == (first["workflowId"], first["nodes"])
    other = {"name": "other", "nodes": {str(number): {"task": "t"} for number in range(7)}}
    response = await client.post("/v1/workflows", json=other, headers={"idempotency-key": "once"})
    assert response.status_code == 409, response.text
    left = (await client.get("/v1/runs?status=queued")).json()["items"]
    assert [run["workflow"] for run in left] == ["nightly"], "no run of the other workflow was created"


BAD = {
    "circle": ({"a": {"task": "t", "after": ["b"]}, "b": {"task": "t", "after": ["a"]}}, "nodes.a.after"),
    "itself": ({"a": {"task": "t", "after": ["a"]}}, "nodes.a.after"),
    "unknown": ({"a": {"task": "t", "after": ["z"]}}, "nodes.a.after"),
    "twice": ({"a": {"task": "t"}, "b": {"task": "t", "after": ["a", "a"]}}, "nodes.b.after"),
    "recurring": ({"a": {"task": "t", "every": "1h"}}, "nodes.a.scheduleType"),
    "no task": ({"a": {}}, "nodes.a.task"),
    "empty": ({}, "nodes"),
}


@pytest.mark.parametrize("kind", BAD)
async def test_an_invalid_workflow_is_rejected_with_its_field(client: httpx2.AsyncClient, kind: str) -> None:
    nodes, field = BAD[kind]
    response = await client.post("/v1/workflows", json={"name": "bad", "nodes": nodes})
    assert (response.status_code, response.json()["field"]) == (400, field), response.text
    if kind == "circle":
        assert "a → b → a" in response.json()["detail"]
    assert (await client.get("/v1/runs")).json()["items"] == []


async def test_a_workflow_of_another_tenant_is_not_found(guarded: Service) -> None:
    mine, theirs = await guarded.key(Role.OPERATOR, "mine"), await guarded.key(Role.OPERATOR, "theirs")
    async with guarded.client(mine) as client, guarded.client(theirs) as stranger:
        made = await submit(client)
        assert (await client.get(f"/v1/workflows/{made['workflowId']}")).status_code == 200
        for method, verb in (("GET", ""), ("POST", "/cancel"), ("POST", "/retry")):
            response = await stranger.request(method, f"/v1/workflows/{made['workflowId']}{verb}")
            assert response.status_code == 404


async def test_later_pages_of_a_workflow_are_served_from_the_cache(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with service.client() as client:
        made = await submit(client)
        path = f"/v1/workflows/{made['workflowId']}"
        read = service.store.seen_by
        reads: list[object] = []

        def seen_by(tenant: str | None) -> Reads:
            reads.append(tenant)
            return read(tenant)

        monkeypatch.setattr(service.store, "seen_by", seen_by)
        first = (await client.get(f"{path}?limit=2")).json()
        once = len(reads)
        seen, cursor = list(first["nodes"]), first["nextCursor"]
        while cursor is not None:
            page = (await client.get(f"{path}?limit=2&cursor={cursor}")).json()
            assert page["counts"] == first["counts"]
            seen, cursor = seen + page["nodes"], page.get("nextCursor")
        assert [node["name"] for node in seen] == list(made["nodes"])
        assert len(reads) == once
        await client.post(f"{path}/cancel")
        assert (await client.get(f"{path}?limit=2")).json()["status"] == "cancelled", "the first page is read again"


async def test_workflows_are_listed_newest_first(client: httpx2.AsyncClient, worker: Worker) -> None:
    first = await submit(client)
    await worker.work("right")
    second = await submit(client, {**DIAMOND, "name": "weekly"})
    await client.post("/v1/jobs", json={"task": "t", "tags": ["workflow"], "name": "none of them"})
    found = (await client.get("/v1/workflows")).json()["items"]
    assert [one["workflowId"] for one in found] == [second["workflowId"], first["workflowId"]]
    assert [one["status"] for one in found] == ["running", "failed"]
    assert (found[0]["name"], found[0]["nodes"], found[0]["more"]) == ("weekly", 5, False)
    assert found[1]["counts"] == {"succeeded": 3, "failed": 1, "skipped": 1}
    assert found[1]["endTime"] >= found[1]["startTime"]
    assert "endTime" not in found[0]
    [one] = (await client.get("/v1/workflows", params={"text": "week"})).json()["items"]
    assert one["workflowId"] == second["workflowId"]


async def test_a_retried_workflow_is_listed_once(client: httpx2.AsyncClient, worker: Worker) -> None:
    made = await submit(client)
    await worker.work("extract")
    retried = await client.post(f"/v1/workflows/{made['workflowId']}/retry")
    assert retried.status_code == 201
    [one] = (await client.get("/v1/workflows")).json()["items"]
    assert (one["workflowId"], one["status"], one["nodes"]) == (made["workflowId"], "running", 5)
    await worker.work()
    [one] = (await client.get("/v1/workflows")).json()["items"]
    assert one["status"] == "succeeded"


async def test_the_list_counts_up_to_200_nodes_of_a_workflow(client: httpx2.AsyncClient) -> None:
    await submit(client, {"name": "large", "nodes": {f"n{number}": {"task": "t"} for number in range(250)}})
    [one] = (await client.get("/v1/workflows")).json()["items"]
    assert (one["status"], one["nodes"], one["more"]) == ("running", 200, True)


async def test_workflows_are_listed_in_pages_to_their_own_tenant(guarded: Service) -> None:
    mine, theirs = await guarded.key(Role.OPERATOR, "acme"), await guarded.key(Role.OPERATOR, "globex")
    async with guarded.client(mine) as client:
        made = [(await submit(client))["workflowId"] for _ in range(3)]
        page = (await client.get("/v1/workflows?limit=2")).json()
        rest = (await client.get(f"/v1/workflows?limit=2&cursor={page['nextCursor']}")).json()
        assert [one["workflowId"] for one in [*page["items"], *rest["items"]]] == made[::-1]
        assert rest["nextCursor"] is None
    async with guarded.client(theirs) as client:
        assert (await client.get("/v1/workflows")).json()["items"] == []


async def part(client: httpx2.AsyncClient, workflow: str, query: str = "") -> dict[str, Any]:
    response = await client.get(f"/v1/workflows/{workflow}/part?{query}")
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def names(found: dict[str, Any]) -> list[str]:
    return [node["name"] for node in found["nodes"]]


async def test_a_part_of_a_workflow_shows_failed_nodes_and_their_neighbors_first(
    client: httpx2.AsyncClient, worker: Worker
) -> None:
    wide = {f"n{number}": {"task": "t", "after": ["first"], "maxRetries": 0} for number in range(40)}
    nodes = {"first": {"task": "t"}, **wide, "end": {"task": "t", "after": ["n7"]}, "far": {"task": "t", "queue": "q"}}
    made = await submit(client, {"name": "large", "nodes": nodes})
    await worker.work("n7")
    found = await part(client, made["workflowId"], "limit=3")
    assert names(found) == ["first", "n7", "end"]
    assert (found["total"], found["status"], found["name"]) == (43, "running", "large")
    assert found["counts"] == {"succeeded": 40, "failed": 1, "skipped": 1, "queued": 1}
    # Nodes of the requested status come first, then others up to the limit.
    assert names(await part(client, made["workflowId"], "limit=1&status=skipped")) == ["end"]
    assert "far" in names(await part(client, made["workflowId"], "limit=10"))
    whole = (await client.get(f"/v1/workflows/{made['workflowId']}?limit=100")).json()
    found = await part(client, made["workflowId"], "limit=43")
    assert found["nodes"] == whole["nodes"]
    assert found["createdAt"] == whole["createdAt"]


async def test_a_part_of_a_workflow_is_centered_on_a_node(client: httpx2.AsyncClient, worker: Worker) -> None:
    nodes: dict[str, Any] = {**cast(dict[str, Any], DIAMOND["nodes"]), "alone": {"task": "t"}}
    made = await submit(client, {**DIAMOND, "nodes": nodes})
    await worker.work("right")
    await client.post(f"/v1/workflows/{made['workflowId']}/retry")
    found = await part(client, made["workflowId"], f"limit=5&around={made['nodes']['right']}")
    assert sorted(names(found)) == ["clean", "extract", "left", "load", "right"]
    assert found["total"] == 6
    by_name = {node["name"]: node for node in found["nodes"]}
    assert by_name["right"]["replayOf"] == made["nodes"]["right"]
    assert by_name["right"]["status"] == "queued"
    for stranger in ("0" * 32, "x"):
        response = await client.get(f"/v1/workflows/{made['workflowId']}/part?around={stranger}")
        assert response.status_code == 404


async def test_a_part_of_a_workflow_of_another_tenant_is_not_found(guarded: Service) -> None:
    mine, theirs = await guarded.key(Role.OPERATOR, "acme"), await guarded.key(Role.OPERATOR, "globex")
    async with guarded.client(mine) as client:
        made = await submit(client)
    async with guarded.client(theirs) as client:
        assert (await client.get(f"/v1/workflows/{made['workflowId']}/part")).status_code == 404
