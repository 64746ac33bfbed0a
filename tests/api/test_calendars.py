"""Calendars over the API, on every store."""

from datetime import UTC, date, datetime, timedelta

import httpx2
import msgspec

from mainspring.core.model.access.access import Role
from mainspring.core.model.base.instant import HOUR, isoformat
from mainspring.core.ports.storage.slos import SloResult
from tests.api.conftest import Service

WEEKENDS = {"timezone": "Europe/Paris", "closedDays": ["sat", "sun"]}
ICAL = """BEGIN:VCALENDAR
VERSION:2.0
PRODID:-//test//EN
BEGIN:VEVENT
UID:1@test
DTSTART;VALUE=DATE:20200714
RRULE:FREQ=YEARLY
SUMMARY:Fête nationale
END:VEVENT
END:VCALENDAR
"""


def start_in_paris(summer_day: date, later: int = 0) -> str:
    """The time at which a day begins, or one so many days later."""
    return f"{summer_day + timedelta(days=later - 1)}T22:00:00Z"


async def test_a_calendar_is_created_imported_previewed_and_deleted(client: httpx2.AsyncClient) -> None:
    made = await client.put("/v1/calendars/office", json={**WEEKENDS, "why": "we rest"})
    assert made.status_code == 200, made.text
    assert (made.json()["version"], made.json()["why"], made.json()["closedDays"]) == (1, "we rest", ["sat", "sun"])
    assert (await client.put("/v1/calendars/office", json=WEEKENDS)).json()["version"] == 1
    assert (await client.get("/v1/calendars/office")).json() == made.json()
    assert [one["name"] for one in (await client.get("/v1/calendars")).json()["items"]] == ["office"]

    imported = await client.post("/v1/calendars/office/import", json={"ical": ICAL})
    assert imported.status_code == 200, imported.text
    found = imported.json()
    assert (found["version"], found["timezone"], found["closedDays"]) == (2, "Europe/Paris", ["sat", "sun"])
    assert len(found["holidays"]) >= 10
    assert found["holidays"][0]["label"] == "Fête nationale"
    versions = (await client.get("/v1/calendars/office/versions")).json()["items"]
    assert [one["version"] for one in versions] == [2, 1]

    # An import keeps the years around it. A holiday beside a weekend would be one period with it.
    holidays = (date(datetime.now(UTC).year + more, 7, 14) for more in range(1, 8))
    holiday = next(day for day in holidays if day.weekday() in (1, 2, 3))
    saturday = holiday + timedelta(days=5 - holiday.weekday())
    query = {"since": f"{holiday - timedelta(days=1)}T12:00:00Z", "limit": "2"}
    closed = (await client.get("/v1/calendars/office/preview", params=query)).json()["closed"]
    assert closed == [
        {"start": start_in_paris(holiday), "end": start_in_paris(holiday, 1), "label": "Fête nationale"},
        {"start": start_in_paris(saturday), "end": start_in_paris(saturday, 2)},
    ]
    assert (await client.delete("/v1/calendars/office")).json() == {"name": "office", "deleted": True}
    assert (await client.delete("/v1/calendars/office")).status_code == 404
    assert (await client.get("/v1/calendars/office")).status_code == 404


async def test_the_ticks_of_a_job_show_the_closed_periods_of_its_calendars(client: httpx2.AsyncClient) -> None:
    # The next tick is hours away, so that none is due while the test runs.
    hour = (datetime.now(UTC) + timedelta(hours=12)).hour
    body = {"name": "report", "task": "t", "cronExpression": f"0 {hour} * * *", "calendars": ["office"]}
    refused = await client.post("/v1/jobs", json=body)
    assert (refused.status_code, refused.json()["field"]) == (400, "calendars")
    days = ["mon", "tue", "wed", "thu", "fri", "sat"]
    await client.put("/v1/calendars/office", json={"closedDays": days})
    job = (await client.post("/v1/jobs", json=body)).json()
    assert (job["calendars"], job["whenClosed"]) == (["office"], "skip")
    assert len(job["nextFires"]) == 5
    coming = (await client.get(f"/v1/jobs/{job['jobId']}/next", params={"n": "7"})).json()
    assert coming["nextFires"][:5] == job["nextFires"]
    assert len(coming["ticks"]) == 7
    starting = [tick for tick in coming["ticks"] if tick["starts"] is not None]
    assert [tick["starts"] for tick in starting] == [coming["nextFires"][0]]
    closed = [tick for tick in coming["ticks"] if tick["starts"] is None]
    assert {tick["reason"] for tick in closed} == {"calendar: office, version 1"}

    moved = (await client.patch(f"/v1/jobs/{job['jobId']}", json={"whenClosed": "after"})).json()
    assert (moved["whenClosed"], moved["version"]) == ("after", 2)
    used = await client.delete("/v1/calendars/office")
    assert used.status_code == 409
    assert "report" in used.text


async def test_a_batch_rejects_only_the_job_with_an_unknown_calendar(client: httpx2.AsyncClient) -> None:
    jobs = [{"name": name, "task": "t", "every": "1h"} for name in ("a", "b")]
    answer = (await client.post("/v1/jobs/batch", json={"jobs": [jobs[0], {**jobs[1], "calendars": ["x"]}]})).json()
    assert (answer["accepted"], answer["refused"]) == (1, 1)
    assert answer["items"][1]["problem"]["field"] == "calendars"


async def test_an_invalid_calendar_is_rejected_with_its_field(client: httpx2.AsyncClient) -> None:
    for body, field in (
        ({"openHours": [{"days": ["mon"], "start": "17:00", "end": "09:00"}]}, "openHours[0].end"),
        ({"freezes": [{"start": "2026-01-02T00:00:00Z", "end": "2026-01-01T00:00:00Z"}]}, "freezes[0].end"),
        ({"holidays": [{"date": "2026-02-30"}]}, "holidays[0].date"),
        ({"closedDays": ["caturday"]}, "closedDays[0]"),
        ({"covers": {}}, "covers"),
    ):
        refused = await client.put("/v1/calendars/office", json=body)
        assert (refused.status_code, refused.json()["field"]) == (400, field), refused.text
    bad = await client.post("/v1/calendars/office/import", json={"ical": "hello"})
    assert (bad.status_code, bad.json()["field"]) == (400, "ical")
    once = {"task": "t", "calendars": ["office"]}
    assert (await client.post("/v1/jobs", json=once)).json()["field"] == "calendars"
    stale = await client.put("/v1/calendars/office", json={**WEEKENDS, "expectedVersion": 3})
    assert stale.status_code == 409


async def test_calendars_belong_to_one_tenant(guarded: Service) -> None:
    key, other = await guarded.key(Role.OPERATOR, "acme"), await guarded.key(Role.OPERATOR, "zeta")
    async with guarded.client(key) as mine, guarded.client(other) as theirs:
        assert (await mine.put("/v1/calendars/office", json=WEEKENDS)).json()["tenant"] == "acme"
        assert (await theirs.get("/v1/calendars/office")).status_code == 404
        assert (await theirs.get("/v1/calendars")).json()["items"] == []
        refused = await theirs.put("/v1/calendars/office", json={**WEEKENDS, "tenant": "acme"})
        assert (refused.status_code, refused.json()["field"]) == (400, "tenant")


async def test_a_job_shows_its_slo_and_whether_it_is_missed(service: Service, client: httpx2.AsyncClient) -> None:
    body = {"name": "backup", "task": "t", "every": "1h", "slo": {"startWithin": "5m", "succeedEvery": 93600}}
    job = (await client.post("/v1/jobs", json=body)).json()
    assert job["slo"] == {"startWithin": "5m", "succeedEvery": "1d2h"}
    shown = (await client.get(f"/v1/jobs/{job['jobId']}")).json()
    assert shown["sloState"] == {"missed": []}
    [due] = await service.store.slos_due(10)
    state = msgspec.structs.replace(due.state, quiet_since=due.state.judged)
    result = SloResult(job=due.job.id, rev=due.rev, state=state, next_check=due.state.judged + HOUR)
    await service.store.save_slos([result])
    shown = (await client.get(f"/v1/jobs/{job['jobId']}")).json()
    assert shown["sloState"] == {"missed": ["success"], "missedSince": isoformat(state.judged)}
    missed = (await client.get("/v1/stats/slos")).json()["items"]
    assert missed == [{"jobId": job["jobId"], "name": "backup", "tenant": "default", "sloState": shown["sloState"]}]
    assert (await client.get("/v1/stats/slos?tenant=acme")).json()["items"] == []
    changed = (
        await client.patch(f"/v1/jobs/{job['jobId']}", json={"slo": None, "preset": "payouts", "priority": 1})
    ).json()
    assert ("slo" in changed, changed["timeout"]) == (False, "1m")
    refused = await client.post("/v1/jobs", json={"name": "x", "task": "t", "every": "1h", "slo": {}})
    assert (refused.status_code, refused.json()["field"]) == (400, "slo")
