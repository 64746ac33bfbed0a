"""Limits, breakers and unique runs over HTTP."""

from typing import Any

import httpx2
import pytest

from mainspring.core.model.base.instant import HOUR, MINUTE
from mainspring.core.model.limits.limits import Breaker, Limit
from mainspring.core.model.runs.unique import Unique
from mainspring.http.jobs.reading import build_run
from mainspring.sdk.backends.remote import build_job_in
from tests.api.test_remote import submit
from tests.support.builders import a_run

LIMITS = [{"key": "customer:{payload.customer}", "most": 1}, {"key": "api", "most": 100, "per": "1m"}]


async def made(client: httpx2.AsyncClient, **fields: Any) -> dict[str, Any]:
    response = await client.post("/v1/jobs", json={"task": "t", **fields})
    assert response.status_code == 201, response.text
    found: dict[str, Any] = response.json()
    return found


async def test_a_run_over_the_limit_is_blocked_and_shows_its_limits(client: httpx2.AsyncClient) -> None:
    first = await made(client, limits=LIMITS, payload={"customer": 7})
    second = await made(client, limits=LIMITS, payload={"customer": 7})
    other = await made(client, limits=LIMITS, payload={"customer": 8})
    assert [job["status"] for job in (first, second, other)] == ["queued", "blocked", "queued"]
    read = (await client.get(f"/v1/jobs/{second['jobId']}")).json()
    assert read["limits"] == [{"key": "customer:7", "most": 1}, {"key": "api", "most": 100, "per": "1m"}]
    explained = (await client.get(f"/v1/runs/{second['jobId']}/explain")).json()
    assert explained["reasons"] == [f"blocked by limit 'customer:7': 1 at a time, held by {first['jobId']}"]


async def test_a_breaker_is_shown_with_its_job(client: httpx2.AsyncClient) -> None:
    job = await made(client, breaker={"failures": 3})
    read = (await client.get(f"/v1/jobs/{job['jobId']}")).json()
    assert read["breaker"]["failures"] == 3


async def test_limits_can_be_changed_and_survive_other_changes(client: httpx2.AsyncClient) -> None:
    await made(client, limits=[{"key": "a", "most": 1}])
    job = await made(client, limits=[{"key": "a", "most": 1}], breaker={"failures": 3})
    changed = (await client.patch(f"/v1/jobs/{job['jobId']}", json={"priority": 2})).json()
    assert (changed["limits"], changed["status"]) == ([{"key": "a", "most": 1}], "blocked")
    assert changed["breaker"]["failures"] == 3
    changed = (await client.patch(f"/v1/jobs/{job['jobId']}", json={"limits": [], "breaker": None})).json()
    assert changed["status"] == "queued"
    assert "limits" not in changed
    assert "breaker" not in changed


async def test_a_recurring_job_can_have_limits_but_not_a_unique_key(client: httpx2.AsyncClient) -> None:
    job = await made(client, name="nightly", cronExpression="@daily", limits=LIMITS, payload={"customer": 7})
    read = (await client.get(f"/v1/jobs/{job['jobId']}")).json()
    assert [limit["key"] for limit in read["limits"]] == ["customer:7", "api"]
    refused = await client.post(
        "/v1/jobs", json={"name": "n", "task": "t", "cronExpression": "@daily", "unique": {"key": "x"}}
    )
    assert (refused.status_code, refused.json()["field"]) == (400, "unique")


async def test_a_unique_key_keeps_rejects_or_replaces_the_run(client: httpx2.AsyncClient) -> None:
    unique = {"key": "report:{payload.customer}"}
    first = await made(client, unique=unique, payload={"customer": 7}, delay="1h")
    again = await made(client, unique=unique, payload={"customer": 7, "page": 2})
    assert again["jobId"] == first["jobId"]
    assert (await made(client, unique=unique, payload={"customer": 8}))["jobId"] != first["jobId"]
    refused = await client.post(
        "/v1/jobs", json={"task": "t", "unique": {**unique, "otherwise": "reject"}, "payload": {"customer": 7}}
    )
    assert refused.status_code == 409
    assert refused.json()["detail"] == f"unique key 'report:7' is taken by job {first['jobId']}"
    newer = await made(client, unique={**unique, "otherwise": "replace"}, payload={"customer": 7})
    assert newer["jobId"] != first["jobId"]
    assert (await client.get(f"/v1/jobs/{first['jobId']}")).json()["status"] == "skipped"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"limits": [{"key": "a"}]}, "limits[0].most"),
        ({"limits": [{"key": "a", "most": 0}]}, "limits[0].most"),
        ({"limits": [{"key": "", "most": 1}]}, "limits[0].key"),
        ({"limits": [{"key": "a", "most": 1, "per": "soon"}]}, "limits[0].per"),
        ({"limits": [{"key": "a", "most": 20_000, "per": "1m"}]}, "limits.most"),
        ({"limits": [{"key": str(n), "most": 1} for n in range(5)]}, "limits"),
        ({"limits": [{"key": "{payload.nobody}", "most": 1}]}, "limits.key"),
        ({"breaker": {"failures": 0}}, "breaker.failures"),
        ({"breaker": {"pause": "1ms"}}, "breaker.pause"),
        ({"unique": {"key": "x", "otherwise": "perhaps"}}, "unique.otherwise"),
        ({"unique": {"key": "{payload.nobody}"}}, "unique.key"),
    ],
)
async def test_invalid_limits_are_rejected_with_their_field(
    client: httpx2.AsyncClient, fields: dict[str, Any], field: str
) -> None:
    refused = await client.post("/v1/jobs", json={"task": "t", "payload": {}, **fields})
    assert (refused.status_code, refused.json()["field"]) == (400, field), refused.text
    await submit(client)


def test_a_run_survives_the_round_trip_through_json() -> None:
    run = a_run(
        limits=(Limit(key="a", most=3), Limit(key="b", most=9, per=MINUTE)),
        breaker=Breaker(failures=2, pause=MINUTE),
        unique=Unique(key="u", period=HOUR, otherwise="replace"),
    )
    again = build_run(build_job_in(run), run.id, run.tenant, "")
    assert (again.policy, again.unique) == (run.policy, run.unique)
