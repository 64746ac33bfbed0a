"""Lists over HTTP: filtered pages are full, or the answer has the time to which the search went back."""

from typing import Any, get_origin

import httpx2
import pytest

from mainspring.config.resources import RESOURCES
from mainspring.core.model.base.ids import JobId, RunId, made_at
from mainspring.core.model.base.instant import isoformat
from mainspring.core.model.runs.view import RunView
from mainspring.core.model.schedules.job import Job
from mainspring.core.ports.storage.catalog import JobFilter, Page, RunFilter
from mainspring.http import search
from mainspring.http.schemas.common import Page as PageOut
from mainspring.stores.memory import MemoryStore
from tests.api.conftest import Service
from tests.support.builders import SHARDS, a_policy, a_run, some_runs
from tests.support.clock import ManualClock
from tests.support.store_harness import MemoryHarness

pytestmark = pytest.mark.api

#: Every list that is searched by the newest id, with a filter that half of its items match, and its ids.
SEARCHED = {
    "/v1/runs": ({"queue": "billing"}, "runId"),
    "/v1/jobs": ({"queue": "billing"}, "jobId"),
    "/v1/dead-letters/runs": ({"queue": "billing"}, "runId"),
    "/v1/workflows": ({"text": "billing"}, "workflowId"),
    "/v1/jobs/{id}/runs": ({}, "runId"),
}
#: Lists whose pages are exact: an index has their items in order, or one statement reads them.
EXACT = {"/v1/audit", "/v1/runs/{id}/parents", "/v1/runs/{id}/children", "/v1/jobs/{id}/ledger"}


class ThreeAtATime(MemoryStore):
    """A store that examines three rows in one read."""

    async def list_runs(self, wanted: RunFilter, after: RunId | None, limit: int) -> Page[RunView]:
        examined = (await super().list_runs(RunFilter(tenant=None), after, 3)).after
        found = (await super().list_runs(wanted, after, limit)).items
        return _down_to(examined, found, limit)

    async def list_jobs(self, wanted: JobFilter, after: JobId | None, limit: int) -> Page[Job]:
        examined = (await super().list_jobs(JobFilter(tenant=None), after, 3)).after
        found = (await super().list_jobs(wanted, after, limit)).items
        return _down_to(examined, found, limit)


def _down_to(examined: str | None, found: list[Any], limit: int) -> Page[Any]:
    items = [item for item in found if examined is None or item.id >= examined]
    return Page(items, items[-1].id if len(items) == limit else examined)


async def fill_lists(client: httpx2.AsyncClient, store: MemoryStore) -> str:
    """Make items for every list, half of them in the queue or with the name that is searched for; the id of a job."""
    harness = MemoryHarness()
    harness.store = store
    dead = [a_run(queue="billing" if number % 2 else "default", policy=a_policy(retries=0)) for number in range(8)]
    held = await harness.start(*dead)
    await harness.fail(*held)
    for number in range(8):
        name = "billing" if number % 2 else "default"
        await client.post("/v1/jobs", json={"task": "t", "queue": name})
        job = {"task": "t", "queue": name, "every": "1h", "name": f"job {number}"}
        made = (await client.post("/v1/jobs", json=job)).json()["jobId"]
        nodes = {"first": {"task": "t", "queue": "nodes"}, "last": {"task": "t", "queue": "nodes", "after": ["first"]}}
        await client.post("/v1/workflows", json={"name": f"{name} {number}", "nodes": nodes})
        await client.post(f"/v1/jobs/{made}/run")
    for _ in range(4):
        await client.post(f"/v1/jobs/{made}/run")
    return str(made)


async def _walk(client: httpx2.AsyncClient, path: str, job: str, limit: int) -> list[dict[str, Any]]:
    """All pages of a list."""
    pages: list[dict[str, Any]] = []
    query: dict[str, Any] = {**SEARCHED[path][0], "limit": limit}
    while not pages or pages[-1]["nextCursor"] is not None:
        answer = await client.get(path.replace("{id}", job), params=query)
        assert answer.status_code == 200, answer.text
        pages.append(answer.json())
        query["cursor"] = pages[-1]["nextCursor"]
    return pages


def _ids(path: str, pages: list[dict[str, Any]]) -> list[str]:
    return [item[SEARCHED[path][1]] for page in pages for item in page["items"]]


async def test_a_page_is_full_although_thousands_of_newer_runs_do_not_match() -> None:
    service = Service(auth=False)
    await service.store.submit([a_run(queue="billing") for _ in range(60)])
    await service.store.submit(some_runs(2_500))
    async with service.client() as client:
        answer = (await client.get("/v1/runs?queue=billing&status=queued&limit=50")).json()
    assert len(answer["items"]) == 50
    assert answer["nextCursor"] == answer["items"][-1]["runId"]
    assert "searchedBackTo" not in answer


@pytest.mark.parametrize("path", SEARCHED)
async def test_every_list_fills_its_pages_or_answers_how_far_it_searched(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    store = ThreeAtATime(clock, SHARDS)
    async with Service(auth=False, store=store, clock=clock).client() as client:
        job = await fill_lists(client, store)
        [whole] = await _walk(client, path, job, 100)
        assert len(whole["items"]) >= 3
        full = await _walk(client, path, job, 3)
        assert [len(page["items"]) for page in full[:-1]] == [3] * (len(full) - 1)
        assert not [page for page in full if "searchedBackTo" in page]
        # Each request then reads its store once.
        monkeypatch.setattr(search, "SEARCH_TIME", 0)
        stopped = await _walk(client, path, job, 100)
    assert _ids(path, full) == _ids(path, stopped) == _ids(path, [whole])
    assert len(stopped) > 1
    for page in stopped:
        searched = None if page["nextCursor"] is None else isoformat(made_at(page["nextCursor"]))
        assert page.get("searchedBackTo") == searched


def test_the_lists_of_this_file_are_all_paged_lists_of_the_api() -> None:
    paged = {
        operation.path
        for resource in RESOURCES
        for operation in resource.operations
        if get_origin(operation.answers.get(200)) is PageOut
    }
    assert paged == SEARCHED.keys() | EXACT
