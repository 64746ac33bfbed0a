"""Live updates: one event stream per open page; scripts refresh what the events refer to."""

from typing import Any

from mainspring.core.model.access.access import Permission
from mainspring.features.events.operations import follow_events
from mainspring.web.page import Pages, Reply, StreamReply, Visit

live = Pages()


@live.page("GET", "/live", permission=Permission.READ)
async def follow(visit: Visit[Any]) -> Reply:
    last = visit.headers.get("last-event-id", "")
    return StreamReply(await visit.ask(follow_events, headers={"last-event-id": last} if last else {}))
