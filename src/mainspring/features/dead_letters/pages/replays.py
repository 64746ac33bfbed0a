"""Dashboard page of one replay: progress and canaries."""

import asyncio
from typing import Any

from mainspring.core.model.access.access import Permission
from mainspring.core.model.base.errors import NotFound
from mainspring.features.dead_letters.operations.replays import ReplayOut, show_replay, stop_replay
from mainspring.web.page import ActionReply, Pages, Reply, Visit

replays = Pages()

_MAX_CANARIES = 20


@replays.page("GET", "/dead-letters/replays/{id}", permission=Permission.READ)
async def show_replay_page(visit: Visit[Any]) -> Reply:
    found: ReplayOut = await visit.ask(show_replay, path=visit.path)
    canaries = await asyncio.gather(*[_find_run(visit, run) for run in found.canary_run_ids[:_MAX_CANARIES]])
    return visit.show(
        "dead_letters/replay.html",
        replay=found,
        canaries=[run for run in canaries if run is not None],
        open=found.state in ("canary", "going"),
    )


@replays.page("POST", "/dead-letters/replays/{id}/stop", permission=Permission.OPERATE)
async def do_stop(visit: Visit[Any]) -> Reply:
    await visit.ask(stop_replay, path=visit.path, body={"why": visit.form.get("why", "").strip()})
    return ActionReply(words="Replay stopped. It creates no more runs.", to=f"dead-letters/replays/{visit.path['id']}")


async def _find_run(visit: Visit[Any], run: str) -> Any:
    try:
        return await visit.ask("get_run", path={"id": run})
    except NotFound:
        # The run is past retention, or a chosen canary is not created yet.
        return None
