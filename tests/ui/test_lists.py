"""Lists: their filters, counts and links, on the memory store and without a browser."""

import html
import re
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from mainspring.http import search
from tests.api.conftest import Service
from tests.api.test_lists import ThreeAtATime, fill_lists
from tests.api.test_replays import work
from tests.support.builders import SHARDS
from tests.support.clock import ManualClock
from tests.ui.test_door import KEY, ui


@pytest.fixture
def local() -> Service:
    return Service(auth=False)


async def create_schedules(service: Service, count: int) -> list[str]:
    made = []
    async with service.client() as api:
        for number in range(count):
            body = {"task": "t", "name": f"n{number}", "every": "1h"}
            made.append(str((await api.post("/v1/jobs", json=body)).json()["jobId"]))
    return made


def links(page: str, words: str) -> list[str]:
    return [html.unescape(link) for link in re.findall(rf'href="([^"]+)"[^>]*>{words}', page)]


async def test_a_bulk_action_affects_only_jobs_of_the_shown_status(local: Service) -> None:
    jobs = await create_schedules(local, 4)
    async with local.client() as api, ui(local) as client:
        await api.post(f"/v1/jobs/{jobs[0]}/pause")
        shown = (await client.get("/jobs?status=paused")).text
        # Paused jobs cannot be paused again.
        assert links(shown, "Pause matching") == []
        [link] = links(shown, "Cancel matching")
        page = (await client.get(link)).text
        assert "Cancel 1 schedule<" in page
        assert re.findall(r'class="row-link" href="/jobs/(\w+)"', page) == jobs[:1]
        assert links(page, "Back") == ["/jobs?status=paused"]
        assert (await client.post(link, data={"csrf": KEY.findall(page)[0]})).status_code == 303
        states = [(await api.get(f"/v1/jobs/{job}")).json()["status"] for job in jobs]
        assert states == ["cancelled", *["scheduled"] * 3]


async def test_a_bulk_action_on_a_final_or_unknown_status_changes_nothing(local: Service) -> None:
    jobs = await create_schedules(local, 2)
    async with local.client() as api, ui(local) as client:
        token = KEY.findall((await client.get("/jobs/all?action=cancel")).text)[0]
        for status in ("cancelled", "finished", "nonsense"):
            path = f"/jobs/all?action=cancel&status={status}"
            assert "Nothing to cancel" in (await client.get(path)).text
            assert (await client.post(path, data={"csrf": token})).status_code == 303
        assert {(await api.get(f"/v1/jobs/{job}")).json()["status"] for job in jobs} == {"scheduled"}


async def test_counts_follow_the_filters_or_are_left_out(local: Service) -> None:
    async with local.client() as api, ui(local) as client:
        for queue in ("mail", "mail", "reports"):
            await api.post("/v1/jobs", json={"task": "t", "queue": queue, "delay": "1h"})

        async def counts(query: str) -> list[str]:
            page = (await client.get(f"/runs{query}")).text
            return re.findall(r'class="tab"[^>]*>(\w+<span class="n[^>]*>[^<]+)<', page)

        assert [one.rpartition(">")[2] for one in await counts("")] == ["3"]
        assert [one.rpartition(">")[2] for one in await counts("?queue=mail")] == ["2"]
        for none in ("?queue=nosuchqueue", "?text=t", "?task=t", "?tag=a", f"?job={'0' * 32}", "?queue=mail&task=t"):
            assert await counts(none) == [], none


async def test_links_to_dead_letter_actions_carry_the_filters(local: Service) -> None:
    async with local.client() as api, ui(local) as client:
        for task in ("charge", "mail"):
            await api.post("/v1/jobs", json={"task": task})
        assert len(await work(api, fail=True)) == 2
        for query, words in (("", "all"), ("?task=charge", "matching")):
            page = (await client.get(f"/dead-letters{query}")).text
            # The part of the page that filters and events replace.
            live = page[page.index('id="live"') :]
            for action in ("Discard", "Replay"):
                assert links(live, f"<svg.*?</svg>{action} {words}") == [
                    f"/dead-letters/{action.lower()}{query or '?'}"
                ]
        assert "Discard" not in (await client.get("/dead-letters?task=unknown")).text


async def test_the_times_of_an_audit_filter_are_in_the_time_zone_of_the_viewer(local: Service) -> None:
    await create_schedules(local, 1)
    async with local.client() as api, ui(local) as client:
        [entry] = (await api.get("/v1/audit")).json()["items"]
        made = datetime.fromisoformat(entry["time"])
        client.headers["cookie"] = "mainspring_zone=Asia%2FTokyo"

        async def is_found(minutes: int, zone: str, query: str = "") -> bool:
            since = (made + timedelta(minutes=minutes)).astimezone(ZoneInfo(zone))
            page = (await client.get(f"/audit?since={since:%Y-%m-%dT%H:%M:%S}{query}")).text
            assert 'title="Asia/Tokyo">Tokyo<' in page or query
            return "jobs.put" in page

        assert await is_found(-1, "Asia/Tokyo")
        assert not await is_found(1, "Asia/Tokyo")
        # A zone in the URL takes precedence over the viewer's.
        assert not await is_found(1, "Europe/Paris", "&zone=Europe/Paris")
        assert await is_found(-1, "Europe/Paris", "&zone=Europe/Paris")


async def test_a_run_with_many_dependencies_links_to_the_full_list(local: Service) -> None:
    async with local.client() as api, ui(local) as client:

        async def submit(**more: object) -> str:
            return str((await api.post("/v1/jobs", json={"task": "t", **more})).json()["jobId"])

        parents = [await submit(delay="1h") for _ in range(23)]
        child = await submit(dependsOn=parents)
        assert (await client.get(f"/runs/{parents[0]}")).text.count("more: <a") == 0
        shown = (await client.get(f"/runs/{child}")).text
        assert "and 3 more" in shown
        [link] = links(shown, "all of them")
        page = (await client.get(link)).text
        assert re.findall(r'class="row-link" href="/runs/(\w+)"', page) == parents
        children = {await submit(dependsOn=parents[:1]) for _ in range(104)} | {child}
        shown = (await client.get(f"/runs/{parents[0]}")).text
        assert "and more than 80 more" in shown
        [link] = links(shown, "all of them")
        found: list[str] = []
        while link:
            page = (await client.get(link)).text
            found += re.findall(r'class="row-link" href="/runs/(\w+)"', page)
            link = next(iter(links(page, "More<")), "")
        assert len(found) == 105
        assert set(found) == children


#: Lists of the dashboard that search, with a filter that half of their items match, and what their rows link to.
SEARCHED = {
    "/runs?queue=billing": "runs",
    "/jobs?queue=billing": "jobs",
    "/jobs?queue=billing&kind=oneOff": "runs",
    "/workflows?text=billing": "workflows",
    "/dead-letters/{fingerprint}": "runs",
}


@pytest.mark.parametrize("path", SEARCHED)
async def test_a_list_whose_search_stopped_says_how_far_it_looked_and_continues(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    store = ThreeAtATime(clock, SHARDS)
    service = Service(auth=False, store=store, clock=clock)
    row = re.compile(rf'class="row-link[^"]*" href="/{SEARCHED[path]}/(\w+)"')
    async with service.client() as api, ui(service) as client:
        await fill_lists(api, store)
        [group] = (await api.get("/v1/dead-letters")).json()["items"]
        path = path.replace("{fingerprint}", group["fingerprint"])
        whole = (await client.get(path)).text
        expected = row.findall(whole)
        assert len(expected) >= 3
        assert "Searched back to" not in whole
        # Each request then reads its store once.
        monkeypatch.setattr(search, "SEARCH_TIME", 0)
        found: list[str] = []
        pages = 0
        link = path
        while link:
            page = (await client.get(link)).text
            found += row.findall(page)
            pages += 1
            searched = re.search(r"Searched back to <time", page)
            link = next(iter(links(page, "Continue")), "")
            assert bool(searched) == bool(link), "the time and the link come together"
            assert links(page, "Older") == []
            if not row.search(page):
                # An empty page claims only what is known.
                assert ("so far" in page) == bool(link)
        assert pages > 1
    assert found == expected


async def test_a_full_page_leads_to_older_items(local: Service) -> None:
    async with local.client() as api, ui(local) as client:
        for _ in range(51):
            await api.post("/v1/jobs", json={"task": "t", "queue": "mail", "delay": "1h"})
        page = (await client.get("/runs?queue=mail")).text
        assert len(links(page, "Older")) == 1
        assert "Searched back to" not in page
