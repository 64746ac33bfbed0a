"""Operation that streams events."""

from typing import Annotated

from msgspec import Meta

from mainspring.core.model.access.access import Permission
from mainspring.http.context import Api
from mainspring.http.operation import Answer, Call, Empty, Resource
from mainspring.http.schemas.common import Name, Request

events = Resource("Events", "Changes of runs as server-sent events.")


class Follow(Request):
    tenant: Name | None = None
    last_event_id: (
        Annotated[
            str, Meta(max_length=100, description="Same as the header `Last-Event-ID`, for clients that cannot set it.")
        ]
        | None
    ) = None


@events.operation(
    "GET",
    "/v1/events",
    permission=Permission.READ,
    query=Follow,
    answers={200: str},
    media_type="text/event-stream",
    streams=True,
)
async def follow_events(api: Api, call: Call[Empty, Follow]) -> Answer:
    """Follow all changes of runs as server-sent events.

    `run.submitted`, `run.queued`, `run.started`, `run.succeeded`, `run.failed`, `run.retried` and so on, with
    several runs in one event. `Last-Event-ID` resumes without a gap for ten minutes; after that the first event is
    `gap`. If nothing else is sent for two minutes, an event `position` gives you an id to resume at.
    """
    last = call.headers.get("last-event-id") or call.query.last_event_id
    tenant = api.choose_listed(call.principal, call.query.tenant)
    return Answer(200, api.open_stream(call.principal, api.hub.follow(tenant, last or None)))
