"""Previews of new and changed jobs."""

import httpx2
import pytest

from mainspring.core.model.access.access import Role
from tests.api.conftest import Service

PARIS = {"name": "report", "task": "t", "cronExpression": "0 30 2 * * *", "timezone": "Europe/Paris"}


async def test_the_preview_of_a_schedule_has_words_ticks_and_clock_changes(client: httpx2.AsyncClient) -> None:
    answer = await client.post("/v1/jobs/preview?n=3", json=PARIS)
    found = answer.json()
    assert answer.status_code == 200, answer.text
    assert found["scheduleType"] == "cron"
    assert found["words"] == "every day at 02:30 (Europe/Paris)"
    assert len(found["nextFires"]) == 3
    assert {change["kind"] for change in found["clockChanges"]} == {"gap", "fold"}
    assert "02:30 does not exist: runs once, at 03:00" in str(found["clockChanges"])
    assert found["warnings"] == ["no worker is running; the job waits until one starts: mainspring worker MODULE:APP"]
    assert (await client.get("/v1/jobs")).json()["items"] == []


async def test_the_preview_of_a_one_off_job_has_words_and_its_time(client: httpx2.AsyncClient) -> None:
    found = (await client.post("/v1/jobs/preview", json={"task": "t"})).json()
    assert (found["scheduleType"], found["words"], len(found["nextFires"])) == ("immediate", "at once", 1)
    later = (await client.post("/v1/jobs/preview", json={"task": "t", "delay": "10m"})).json()
    assert later["words"] == "once, 10m from now"
    past = await client.post("/v1/jobs/preview", json={"task": "t", "scheduleTime": "2020-01-01T00:00:00Z"})
    assert (past.status_code, past.json()["field"]) == (400, "scheduleTime")


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"cronExpression": "0 61 * * *"}, "cronExpression"),
        ({"timezone": "Europe/Pari"}, "timezone"),
        ({"name": ""}, "name"),
        ({"calendars": ["holidays"]}, "calendars"),
        ({"overlap": "sometimes"}, "overlap"),
        ({"timeout": "soon"}, "timeout"),
    ],
)
async def test_the_preview_of_an_invalid_job_is_rejected_with_its_field(
    client: httpx2.AsyncClient, changed: dict[str, object], field: str
) -> None:
    refused = await client.post("/v1/jobs/preview", json={**PARIS, **changed})
    assert (refused.status_code, refused.json()["field"]) == (400, field)


async def test_the_preview_notes_expressions_that_are_easily_misread(client: httpx2.AsyncClient) -> None:
    hashed = (await client.post("/v1/jobs/preview", json={**PARIS, "cronExpression": "0 H 2 * * *"})).json()
    assert "H is resolved" in hashed["notes"][0]
    either = (await client.post("/v1/jobs/preview", json={**PARIS, "cronExpression": "0 2 13 * FRI"})).json()
    assert "either one is enough" in either["notes"][0]


async def test_the_preview_marks_ticks_in_closed_periods(client: httpx2.AsyncClient) -> None:
    days = ["mon", "tue", "wed", "thu", "fri"]
    await client.put("/v1/calendars/weekend", json={"closedDays": days, "covers": {"all": True}})
    found = (await client.post("/v1/jobs/preview?n=7", json={**PARIS, "timezone": "UTC"})).json()
    assert len(found["ticks"]) == 7
    assert sum(tick["starts"] is None for tick in found["ticks"]) == 5


async def test_the_preview_of_a_change_lists_changed_fields_and_changes_nothing(client: httpx2.AsyncClient) -> None:
    job = (await client.post("/v1/jobs", json={**PARIS, "payload": {"to": "board"}})).json()["jobId"]
    path = f"/v1/jobs/{job}"
    found = (await client.post(f"{path}/preview", json={"every": "2h", "payload": {"to": "all"}})).json()
    assert found["words"] == "every 2h"
    assert found["changes"]["payload"] == {"before": {"to": "board"}, "after": {"to": "all"}}
    assert set(found["changes"]) >= {"every", "cronExpression", "timezone", "payload"}
    assert "changes" not in (await client.post(f"{path}/preview", json={})).json()
    for body, status in (({"name": "other"}, 400), ({"expectedVersion": 7}, 409)):
        assert (await client.post(f"{path}/preview", json=body)).status_code == status
    assert (await client.get(path)).json()["version"] == 1
    await client.delete(path)
    assert (await client.post(f"{path}/preview", json={})).status_code == 409


async def test_a_preview_requires_the_permission_to_create_the_job() -> None:
    service = Service(auth=True)
    async with service.client(await service.key(Role.VIEWER, "acme")) as client:
        assert (await client.post("/v1/jobs/preview", json=PARIS)).status_code == 403
    async with service.client(await service.key(Role.SUBMITTER, "acme", ("mail",))) as client:
        assert (await client.post("/v1/jobs/preview", json=PARIS)).status_code == 403
        assert (await client.post("/v1/jobs/preview", json={**PARIS, "queue": "mail"})).status_code == 200
