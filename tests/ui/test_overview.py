"""The charts and panels of the overview, without a browser."""

import html
import re
from typing import Any, cast

import httpx2
import msgspec

from mainspring.config.pages import PAGES
from mainspring.core.model.base.instant import HOUR, MINUTE, SECOND, Instant
from mainspring.web.app import DashboardSettings, build_dashboard
from tests.api.conftest import Service
from tests.support.builders import some_runs
from tests.support.clock import START, ManualClock


def make_service() -> Service:
    """An API at noon, within a minute: charts have a point for each minute and one for now."""
    return Service(auth=False, clock=ManualClock(START + 12 * HOUR + 30 * SECOND))


async def overview(service: Service, query: str = "") -> str:
    transport = httpx2.ASGITransport(
        app=cast(Any, build_dashboard(service.api, service.app, PAGES, DashboardSettings()))
    )
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answer = await client.get(f"/{query}")
    assert answer.status_code == 200, answer.text
    return answer.text


def read_chart(page: str, title: str) -> Any:
    """Return the data of the chart in a panel."""
    panel = page[page.index(f'<section class="panel" aria-label="{title}"') :]
    found = re.search(r'data-chart="([^"]*)"', panel)
    assert found is not None
    return msgspec.json.decode(html.unescape(found[1]))


def read_values(chart: Any, name: str) -> dict[Instant, float]:
    """Return the values of a series by minute, without gaps; the last one is now."""
    [series] = [series for series in chart["series"] if series["name"] == name]
    return {at: value for at, value in zip(chart["x"], series["values"], strict=True) if value is not None}


async def test_a_queue_without_workers_is_drawn_with_its_waiting_runs() -> None:
    service = make_service()
    await service.store.submit(some_runs(3))
    looked = await service.store.sample_load()
    await service.store.submit(some_runs(2))
    page = await overview(service)
    load = read_chart(page, "Load")
    waiting = read_values(load, "queued")
    assert waiting.pop(load["x"][-1]) == 5
    assert waiting == {looked // MINUTE * 60: 3}
    assert set(read_values(load, "running").values()) == {0}
    lags = read_values(read_chart(page, "Lateness"), "lag")
    assert [at for at in lags if at != load["x"][-1]] == [looked // MINUTE * 60]


async def test_every_series_is_in_the_legend() -> None:
    page = await overview(make_service())
    for title in ("Throughput", "Load", "Lateness", "Duration"):
        panel = page[page.index(f'<section class="panel" aria-label="{title}"') :].split("</section>")[0]
        shown = re.findall(r'<span class="is-(\w+)">(\w+)</span>', panel)
        drawn = read_chart(page, title)["series"]
        assert shown == [(one["colour"][2:].removesuffix("-fill"), one["name"]) for one in drawn]
        assert len({state for state, _ in shown}) == len(shown) > 1


async def test_the_busiest_minutes_are_ordered_by_time() -> None:
    service = make_service()
    hours = [20, 19, 21]
    async with service.client() as client:
        for jobs, hour in zip((3, 2, 1), hours, strict=True):
            for number in range(jobs):
                body = {"task": "t", "name": f"at {hour} {number}", "cronExpression": f"0 {hour} * * *"}
                assert (await client.post("/v1/jobs", json=body)).status_code == 201
    page = await overview(service)
    panel = page[page.index('<section class="panel" aria-label="Coming up"') :].split("</section>")[0]
    # Each one has its time of day and the distance from now.
    times = re.findall(r'<time datetime="([^"]*)"[^>]*?( data-style="clock")?>', panel)
    assert [style.strip() for _, style in times] == ['data-style="clock"', ""] * 3
    assert [int(at[11:13]) for at, _ in times[::2]] == [hours[1], hours[0], hours[2]]


async def test_without_samples_only_the_current_load_is_drawn() -> None:
    service = make_service()
    await service.store.submit(some_runs(3))
    for query in ("", "?range=24h"):
        load = read_chart(await overview(service, query), "Load")
        assert list(read_values(load, "queued").values()) == [3]
        assert len(load["x"]) > 60


async def test_failed_attempts_are_not_shown_as_retries() -> None:
    """The figure counts the last attempt of a failed run, too."""
    page = await overview(make_service())
    assert "0.0 %, 0 failed attempts" in page
