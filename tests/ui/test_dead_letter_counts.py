"""The previews of replay and discard count the dead letters that the action affects."""

import re

import httpx2
import pytest

from mainspring.core.model.access.access import Role
from mainspring.features.dead_letters.operations import groups as dead_letters
from tests.api.conftest import Service
from tests.ui.test_door import KEY, sign_in, ui

HEADING = re.compile(r"<h1>(.*?)</h1>")
BUTTON = re.compile(r'<button class="button[^"]*primary">(?:<svg.*?</svg>)?(.*?)</button>', re.DOTALL)


async def make_dead_letters(api: httpx2.AsyncClient, queue: str, tasks: list[str]) -> None:
    """Make one dead letter of each task."""
    for task in tasks:
        made = await api.post("/v1/jobs", json={"task": task, "queue": queue})
        assert made.status_code == 201, made.text
    worker = (await api.post("/v1/workers/register", json={"name": queue, "queues": [queue]})).json()["workerId"]
    failed = 0
    while runs := (await api.post(f"/v1/workers/{worker}/claim", json={"limit": 100})).json()["runs"]:
        for run in runs:
            body = {"fence": run["fence"], "error": "SmtpError: no", "retry": False}
            await api.post(f"/v1/runs/{run['runId']}/fail", json=body)
        failed += len(runs)
    assert failed == len(tasks)


async def read_preview(client: httpx2.AsyncClient, act: str) -> tuple[str, str, str]:
    """Return the heading, the button and the text of the page."""
    text = (await client.get(f"/dead-letters/{act}")).text
    return HEADING.findall(text)[0], BUTTON.findall(text)[0], text


@pytest.fixture
def local() -> Service:
    return Service(auth=False)


async def test_a_preview_counts_all_groups_not_only_those_shown(local: Service) -> None:
    async with local.client() as api, ui(local) as client:
        await make_dead_letters(api, "default", [f"task_{number}" for number in range(103)])
        for act, words in (("discard", "Discard 103 dead letters"), ("replay", "Replay 103 dead letters")):
            heading, button, text = await read_preview(client, act)
            assert (heading, button) == (words, words)
            assert "and 40 smaller groups or more" in text
        token = KEY.findall(text)[0]
        await client.post("/dead-letters/discard", data={"csrf": token})
        assert (await api.get("/v1/dead-letters")).json()["items"] == []


async def test_a_preview_shows_that_there_are_more_than_one_discard_can_take(
    local: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "_MAX_RUNS", 5)
    async with local.client() as api, ui(local) as client:
        await make_dead_letters(api, "default", ["t"] * 7)
        heading, button, text = await read_preview(client, "discard")
        assert (heading, button) == ("Discard 5 dead letters", "Discard 5 dead letters")
        assert "Only the newest 5 are discarded at once" in text
        # A replay has no limit.
        heading, button, text = await read_preview(client, "replay")
        assert (heading, button) == ("Replay more than 5 dead letters", "Replay more than 5 dead letters")


@pytest.mark.parametrize("act", ["discard", "replay"])
async def test_a_user_bound_to_queues_sees_only_their_dead_letters(act: str) -> None:
    closed = Service(auth=True)
    async with closed.client(await closed.key(Role.ADMIN, "acme")) as api:
        await make_dead_letters(api, "mail", ["send"] * 2)
        await make_dead_letters(api, "bank", ["charge"] * 3)
    async with ui(closed) as client:
        await sign_in(client, await closed.key(Role.OPERATOR, "acme", ("mail",)))
        heading, button, text = await read_preview(client, act)
        words = f"{act.capitalize()} 2 dead letters"
        assert (heading, button) == (words, words)
        assert "<span>send</span>" in text
        assert "<span>charge</span>" not in text
        # The preview of another queue is denied, too.
        assert (await client.get(f"/dead-letters/{act}?queue=bank")).status_code == 403
