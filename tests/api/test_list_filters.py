"""Each filter of each list with rare matches, on every store: pages are full, or have the time that was reached."""

from collections.abc import Callable
from typing import Any, NamedTuple, get_origin

import httpx2
import msgspec
import pytest

from mainspring.config.resources import RESOURCES
from mainspring.core.model.access.access import Role
from mainspring.core.model.base.ids import made_at
from mainspring.core.model.base.instant import HOUR, Instant, isoformat, parse_instant
from mainspring.http import search
from mainspring.http.schemas.common import Page
from tests.api.conftest import Service
from tests.contracts.test_search import SMALL
from tests.support.builders import an_id

pytestmark = pytest.mark.api

#: Many times what one read of a store examines here.
_COMMON = 60
_RARE = 3
#: How a page is asked for, and not what is in it.
_PAGING = {"limit", "cursor", "ids"}


class _List(NamedTuple):
    """A list, what identifies its items, and the value of each filter that few items match."""

    path: str
    key: str
    filters: dict[str, tuple[str, Callable[[dict[str, Any]], bool]]]


def _equal(field: str, value: str) -> tuple[str, Callable[[dict[str, Any]], bool]]:
    return value, lambda item: item[field] == value


def _made(key: str, bound: Instant, is_after: bool) -> tuple[str, Callable[[dict[str, Any]], bool]]:
    return isoformat(bound), lambda item: (made_at(item[key]) >= bound) == is_after


def _times(key: str, first: str, last: str) -> dict[str, tuple[str, Callable[[dict[str, Any]], bool]]]:
    """``first``: the first common item, made after the first rare ones; ``last``: the last rare item."""
    return {
        "createdAfter": _made(key, made_at(last), True),
        "createdBefore": _made(key, made_at(first), False),
    }


async def _post(client: httpx2.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await client.post(path, json=body)
    assert answer.is_success, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def _fail(client: httpx2.AsyncClient, queue: str, error: str) -> None:
    """Run everything in a queue; nothing of it succeeds."""
    body = {"name": "w", "queues": [queue]}
    worker = (await _post(client, "/v1/workers/register", body))["workerId"]
    for run in (await _post(client, f"/v1/workers/{worker}/claim", {"limit": 100}))["runs"]:
        report = {"fence": run["fence"], "error": error, "retry": False}
        await _post(client, f"/v1/runs/{run['runId']}/fail", report)


async def _make_runs(client: httpx2.AsyncClient, *, ended: bool) -> list[_List]:
    """Runs and one-off jobs: rare ones before, between and after common ones."""
    job = (await _post(client, "/v1/jobs", {"task": "t", "name": "j", "every": "1h", "queue": "rare"}))["jobId"]
    rare = {"task": "rare", "queue": "rare", "tenant": "rare", "name": "a rare one", "tags": ["rare"]}
    made = [await _post(client, "/v1/jobs", rare) for _ in range(2)]
    await _post(client, f"/v1/jobs/{job}/run", {})
    common = [await _post(client, "/v1/jobs", {"task": "common", "queue": "common"}) for _ in range(_COMMON)]
    made.append(await _post(client, "/v1/jobs", rare))
    await _fail(client, "rare", "RareError: it happens")
    if ended:
        await _fail(client, "common", "CommonError: again")
    times = _times("runId", common[0]["jobId"], made[-1]["jobId"])
    fingerprint = (await client.get(f"/v1/runs/{made[0]['jobId']}")).json()["fingerprint"]
    dead = {
        "fingerprint": _equal("fingerprint", fingerprint),
        "task": _equal("task", "rare"),
        "queue": _equal("queue", "rare"),
        "tenant": _equal("tenant", "rare"),
    }
    if ended:
        return [_List("/v1/dead-letters/runs", "runId", dead)]
    runs = {
        "status": _equal("status", "failed"),
        "jobId": _equal("jobId", job),
        "task": _equal("task", "rare"),
        "queue": _equal("queue", "rare"),
        "tag": ("rare", lambda item: "rare" in item.get("tags", ())),
        "tenant": _equal("tenant", "rare"),
        "text": ("RARE", lambda item: "rare" in f"{item.get('name', '')}{item['task']}"),
        **times,
    }
    return [_List("/v1/runs", "runId", runs), _List(f"/v1/jobs/{job}/runs", "runId", {})]


async def _make_jobs(client: httpx2.AsyncClient) -> list[_List]:
    """Schedules, and one-off jobs that are as rare among them."""
    rare = {"task": "rare", "queue": "rare", "tenant": "rare", "tags": ["rare"], "every": "1h"}
    made = [await _post(client, "/v1/jobs", {**rare, "name": f"rare {number}"}) for number in range(2)]
    declared = {"name": "declared", "task": "rare", "every": "1h"}
    await _post(client, "/v1/schedules/reconcile", {"source": "rare", "schedules": [declared]})
    await _post(client, "/v1/jobs", {"task": "t", "queue": "rare"})
    common = [
        await _post(client, "/v1/jobs", {"task": "common", "name": f"{number}", "every": "1h"})
        for number in range(_COMMON)
    ]
    made.append(await _post(client, "/v1/jobs", {**rare, "name": "rare 3"}))
    await _post(client, f"/v1/jobs/{made[0]['jobId']}/pause", {})
    return [
        _List(
            "/v1/jobs",
            "jobId",
            {
                "status": _equal("status", "paused"),
                "kind": ("oneOff", lambda item: "version" not in item),
                "task": _equal("task", "rare"),
                "queue": _equal("queue", "rare"),
                "tag": ("rare", lambda item: "rare" in item.get("tags", ())),
                "source": ("rare", lambda item: item.get("name") == "declared"),
                "tenant": _equal("tenant", "rare"),
                "text": ("Rare", lambda item: "rare" in f"{item.get('name', '')}{item['task']}"),
                **_times("jobId", common[0]["jobId"], made[-1]["jobId"]),
            },
        )
    ]


async def _make_workflows(client: httpx2.AsyncClient) -> list[_List]:
    for number in range(_COMMON + _RARE):
        about = {"name": "a rare one", "tenant": "rare"} if number % 30 == 1 else {"name": "common"}
        await _post(client, "/v1/workflows", {**about, "nodes": {"only": {"task": "t"}}})
    text = ("RARE", lambda item: "rare" in item["name"])
    return [_List("/v1/workflows", "workflowId", {"text": text, "tenant": _equal("tenant", "rare")})]


async def _make_audit(client: httpx2.AsyncClient) -> list[_List]:
    first = await _post(client, "/v1/jobs", {"task": "t", "name": "j", "every": "1h", "tenant": "rare"})
    for _ in range(_COMMON // 2):
        for action in ("pause", "resume"):
            await client.post(f"/v1/queues/common/{action}")
    entries = (await client.get("/v1/audit", params={"limit": 1_000})).json()["items"]
    since, until = entries[2]["time"], entries[-3]["time"]
    return [
        _List(
            "/v1/audit",
            "position",
            {
                "tenant": _equal("tenant", "rare"),
                "target": _equal("target", first["jobId"]),
                "author": _equal("author", "nobody-of-this-name"),
                "action": ("jobs", lambda item: item["action"].startswith("jobs.")),
                "since": (since, lambda item: parse_instant(item["time"]) >= parse_instant(since)),
                "until": (until, lambda item: parse_instant(item["time"]) < parse_instant(until)),
            },
        )
    ]


_MAKERS: dict[str, Callable[[httpx2.AsyncClient], Any]] = {
    "runs": lambda client: _make_runs(client, ended=False),
    "dead letters": lambda client: _make_runs(client, ended=True),
    "jobs": _make_jobs,
    "workflows": _make_workflows,
    "audit": _make_audit,
}


async def _walk(client: httpx2.AsyncClient, path: str, query: dict[str, Any], limit: int) -> list[dict[str, Any]]:
    pages: list[dict[str, Any]] = []
    cursor = None
    while not pages or cursor is not None:
        given = {**query, "limit": limit, **({"cursor": cursor} if cursor is not None else {})}
        answer = await client.get(path, params=given)
        assert answer.status_code == 200, answer.text
        pages.append(answer.json())
        cursor = pages[-1]["nextCursor"]
    return pages


@pytest.mark.parametrize("what", _MAKERS)
async def test_each_filter_fills_its_pages_or_has_the_time_that_was_reached(
    what: str, client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, bound in SMALL.items():
        monkeypatch.setattr(f"mainspring.stores.{name}", bound)
    monkeypatch.setattr(search, "SEARCH_TIME", HOUR)
    await client.put("/v1/tenants", json={"name": "rare"})
    for path, key, filters in await _MAKERS[what](client):
        everything = [item for page in await _walk(client, path, {}, 10) for item in page["items"]]
        for name, (value, matches) in filters.items():
            expected = [item[key] for item in everything if matches(item)]
            # The filter for an author finds nothing at all: also that is an answer.
            assert bool(expected) == (name != "author"), (path, name)
            monkeypatch.setattr(search, "SEARCH_TIME", HOUR)
            pages = await _walk(client, path, {name: value}, 2)
            assert [item[key] for page in pages for item in page["items"]] == expected, (path, name)
            assert all(len(page["items"]) == 2 for page in pages[:-1]), (path, name)
            assert not any("searchedBackTo" in page for page in pages), (path, name)
            # A search that has no time left.
            monkeypatch.setattr(search, "SEARCH_TIME", 0)
            pages = await _walk(client, path, {name: value}, 2)
            assert [item[key] for page in pages for item in page["items"]] == expected, (path, name)
            for page in pages[:-1]:
                assert len(page["items"]) == 2 or "searchedBackTo" in page, (path, name)


def test_the_filters_of_this_file_are_all_filters_of_paged_lists() -> None:
    declared = {
        operation.path: {field.encode_name for field in msgspec.structs.fields(operation.query)} - _PAGING
        for resource in RESOURCES
        for operation in resource.operations
        if get_origin(operation.answers.get(200)) is Page
    }
    times = {"createdAfter", "createdBefore"}
    assert {path: names for path, names in declared.items() if names} == {
        "/v1/runs": {"status", "jobId", "task", "queue", "tag", "tenant", "text", *times},
        "/v1/jobs": {"status", "kind", "task", "queue", "tag", "source", "tenant", "text", *times},
        "/v1/dead-letters/runs": {"fingerprint", "task", "queue", "tenant"},
        "/v1/workflows": {"text", "tenant"},
        "/v1/audit": {"tenant", "target", "author", "action", "since", "until"},
        # Reads the ticks of a span in one piece.
        "/v1/jobs/{id}/ledger": {"since", "until"},
    }


async def test_lists_answer_the_items_of_given_ids(service: Service, client: httpx2.AsyncClient) -> None:
    await client.put("/v1/tenants", json={"name": "rare"})
    schedule = (await _post(client, "/v1/jobs", {"task": "t", "name": "j", "every": "1h"}))["jobId"]
    runs = [(await _post(client, "/v1/jobs", {"task": "t", "name": f"n{number}"}))["jobId"] for number in range(4)]
    foreign = (await _post(client, "/v1/jobs", {"task": "t", "tenant": "rare"}))["jobId"]
    nodes = {"first": {"task": "t"}, "last": {"task": "t", "after": ["first"]}}
    flows = [
        (await _post(client, "/v1/workflows", {"name": f"flow {number}", "nodes": nodes}))["workflowId"]
        for number in range(3)
    ]
    unknown = an_id()
    for path, key, ids, limit in (
        ("/v1/runs", "runId", [runs[2], runs[0]], "1"),
        ("/v1/jobs", "jobId", [runs[1], schedule], "1"),
        ("/v1/workflows", "workflowId", [flows[2], flows[0]], "1"),
    ):
        listed = (await client.get(path, params={"limit": 100})).json()["items"]
        answer = await client.get(path, params={"ids": ", ".join([unknown, *reversed(ids)]), "limit": limit})
        # Newest first, with the same fields as in the list.
        assert answer.json() == {"items": [item for item in listed if item[key] in ids], "nextCursor": None}
        assert len(answer.json()["items"]) == 2
        for query, words in (
            ({"ids": runs[0], "text": "n"}, "contradicts text"),
            ({"ids": "nonsense"}, "is not an id"),
            ({"ids": ",".join(an_id() for _ in range(101))}, "names 101 ids"),
        ):
            refused = await client.get(path, params=query)
            assert (refused.status_code, words in refused.text) == (400, True), refused.text
    api = Service(auth=True, store=service.store)
    async with api.client(await api.key(Role.VIEWER, "default")) as viewer:
        found = (await viewer.get("/v1/runs", params={"ids": f"{foreign},{runs[0]}"})).json()["items"]
        assert [item["runId"] for item in found] == runs[:1]
        assert (await viewer.get("/v1/jobs", params={"ids": foreign})).json()["items"] == []
