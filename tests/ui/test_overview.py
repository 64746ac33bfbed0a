"""What the overview draws, without a browser."""

import html
import re
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import httpx2
import msgspec

from mainspring.domain.instant import MINUTE, Instant
from mainspring.ui.app import UiSettings, make_ui
from tests.api.conftest import Service
from tests.support.builders import some_runs


async def overview(service: Service, query: str = "") -> str:
    transport = httpx2.ASGITransport(app=cast(Any, make_ui(service.api, service.app, UiSettings())))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answer = await client.get(f"/{query}")
    assert answer.status_code == 200, answer.text
    return answer.text


def chart_of(page: str, title: str) -> Any:
    """What stands in the chart of a panel."""
    panel = page[page.index(f'<section class="panel" aria-label="{title}"') :]
    found = re.search(r'data-chart="([^"]*)"', panel)
    assert found is not None
    return msgspec.json.decode(html.unescape(found[1]))


def values_of(chart: Any, name: str) -> dict[Instant, float]:
    """By minute, where there is something to say; the last is now."""
    [series] = [series for series in chart["series"] if series["name"] == name]
    return {at: value for at, value in zip(chart["x"], series["values"], strict=True) if value is not None}


async def test_a_queue_that_nobody_works_off_is_drawn_as_full() -> None:
    service = Service(auth=False)
    await service.store.submit(some_runs(3))
    looked = await service.store.sample_load()
    await service.store.submit(some_runs(2))
    page = await overview(service)
    load = chart_of(page, "Load")
    waiting = values_of(load, "waiting")
    assert waiting.pop(load["x"][-1]) == 5
    assert waiting == {looked // MINUTE * 60: 3}
    assert set(values_of(load, "running").values()) == {0}
    lags = values_of(chart_of(page, "Lateness"), "lag")
    assert [at for at in lags if at != load["x"][-1]] == [looked // MINUTE * 60]


async def test_every_colour_has_its_name() -> None:
    page = await overview(Service(auth=False))
    for title in ("Throughput", "Load", "Lateness", "Duration"):
        panel = page[page.index(f'<section class="panel" aria-label="{title}"') :].split("</section>")[0]
        shown = re.findall(r'<span class="is-(\w+)">(\w+)</span>', panel)
        drawn = chart_of(page, title)["series"]
        assert shown == [(one["colour"][2:].removesuffix("-fill"), one["name"]) for one in drawn]
        assert len({state for state, _ in shown}) == len(shown) > 1


async def test_the_busiest_minutes_come_in_the_order_of_their_time() -> None:
    service = Service(auth=False)
    now = datetime.now(UTC)
    hours = [(now + timedelta(hours=ahead)).hour for ahead in (8, 7, 9)]
    async with service.client() as client:
        for jobs, hour in zip((3, 2, 1), hours, strict=True):
            for number in range(jobs):
                body = {"task": "t", "name": f"at {hour} {number}", "cronExpression": f"0 {hour} * * *"}
                assert (await client.post("/v1/jobs", json=body)).status_code == 201
    page = await overview(service)
    panel = page[page.index('<section class="panel" aria-label="Coming up"') :].split("</section>")[0]
    # On the clock, and how far away that is.
    told = re.findall(r'<time datetime="([^"]*)"[^>]*?( data-style="clock")?>', panel)
    assert [style.strip() for _, style in told] == ['data-style="clock"', ""] * 3
    assert [int(at[11:13]) for at, _ in told[::2]] == [hours[1], hours[0], hours[2]]


async def test_where_nobody_looked_nothing_is_drawn_but_how_it_is_now() -> None:
    service = Service(auth=False)
    await service.store.submit(some_runs(3))
    for query in ("", "?range=24h"):
        load = chart_of(await overview(service, query), "Load")
        assert list(values_of(load, "waiting").values()) == [3]
        assert len(load["x"]) > 60
