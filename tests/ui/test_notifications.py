"""The page of alerts, on the memory store and without a browser."""

import re
from importlib import resources

import pytest

from mainspring.core.model.access.access import Role
from mainspring.core.model.alerts.alert_messages import QUEUE, AlertStage
from mainspring.core.model.alerts.notification_rules import ProblemEvent
from mainspring.core.ports.storage.catalog import RunFilter
from mainspring.features.alerts.alert_state import AlertState
from mainspring.web.navigation import SECTIONS
from tests.api.conftest import Service
from tests.api.test_notifications import NOW, RULES
from tests.api.test_replays import work
from tests.ui.test_door import KEY, sign_in, ui

_POST = re.compile(r'<form method="post" action="/notifications/channels/(\w+)/test"')


@pytest.fixture
async def local() -> Service:
    service = Service(auth=False)
    service.api.notifications = RULES
    state = AlertState(RULES, "store")
    for number in range(3):
        state.add_failure(
            ProblemEvent(
                stage=AlertStage.DEAD,
                tenant="default",
                subject=f"task:charge{number}",
                fingerprint="f",
                at=NOW,
                name=f"charge{number}",
                task=f"charge{number}",
                run="019a8c4b6f2c70008042b1c2d3e4f506",
                error="<script>alert(1)</script>",
            )
        )
    assert await service.store.change_notification_rows(0, state.take_changes())
    return service


async def test_the_page_shows_problems_channels_and_rules(local: Service) -> None:
    async with ui(local) as client:
        page = (await client.get("/notifications")).text
        assert "3 problems" in page
        assert "charge2" in page
        assert "&lt;script&gt;alert(1)" in page
        assert "<script>alert" not in page
        assert "22:00–07:00 Europe/Paris" in page
        assert "urgent: ignores quiet hours" in page
        # In its own column, or below the name on a narrow screen.
        assert re.search(r'class="sub show-m">matches .*tenant default', page)
        assert re.search(r'class="hide-m muted only-cell">.*tenant default', page)
        assert "SLACK_URL" not in page
        # A channel that writes to owners has no test button, because the owner is unknown.
        assert _POST.findall(page) == ["ops"]


async def test_every_live_page_names_events_that_the_stream_has(local: Service) -> None:
    listened = (resources.files("mainspring.web") / "static/live.js").read_text()
    runs = re.search(r"kinds = (\[.*?\])\.map", listened, re.DOTALL)
    others = re.search(r"\[\.\.\.kinds, (.*?)\]", listened)
    assert runs is not None
    assert others is not None
    kinds = [f"run.{kind}" for kind in re.findall(r'"(\w+)"', runs[1])] + re.findall(r'"([\w.]+)"', others[1])
    assert {"run.failed", "job.slo_missed"} <= set(kinds)
    async with ui(local) as client:
        for path in ("", *(section.path for section in SECTIONS)):
            for named in re.findall(r'data-live="([^"]*)"', (await client.get(f"/{path}")).text):
                for word in named.split(" "):
                    assert any(kind.startswith(word) for kind in kinds), (path, word)


async def test_the_test_button_needs_the_token_of_the_page(local: Service) -> None:
    async def count_messages() -> int:
        return len((await local.store.list_runs(RunFilter(tenant=None, queue=QUEUE), None, 10)).items)

    async with ui(local) as client:
        token = KEY.findall((await client.get("/notifications")).text)[0]
        path = "/notifications/channels/ops/test"
        assert (await client.post(path, data={"csrf": "another"})).status_code == 403
        assert await count_messages() == 0
        assert (await client.post(path, data={"csrf": token})).status_code == 303
        assert await count_messages() == 1
        page = (await client.get("/notifications")).text
        assert "queued" in page
        assert (await client.post("/notifications/channels/unknown/test", data={"csrf": token})).status_code == 404
    async with ui(local, read_only=True) as client:
        assert _POST.findall((await client.get("/notifications")).text) == []


async def test_only_administrators_of_all_tenants_see_the_page() -> None:
    closed = Service(auth=True)
    for role, tenant, status in ((Role.ADMIN, None, 200), (Role.ADMIN, "acme", 403), (Role.VIEWER, None, 403)):
        async with ui(closed) as client:
            await sign_in(client, await closed.key(role, tenant))
            assert (await client.get("/notifications")).status_code == status
            assert ("/notifications" in (await client.get("/jobs")).text) == (status == 200)


async def test_failed_runs_without_a_rule_are_not_reported_as_fine() -> None:
    service = Service(auth=False)
    async with service.client() as api, ui(service) as client:
        await api.post("/v1/jobs", json={"task": "charge", "maxRetries": 0})
        assert len(await work(api, fail=True)) == 1
        page = (await client.get("/notifications")).text
    assert "Nothing is wrong" not in page
    assert "No rules configured" in page
    assert re.search(r'href="/runs\?status=failed">1 run failed<', page)
