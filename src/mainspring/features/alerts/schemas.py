"""Alert channels, alert rules and open problems in the wire format."""

from typing import Annotated

from msgspec import Meta

from mainspring.core.model.runs.names import MAX_NAME
from mainspring.http.schemas.common import Request, Wire


class ChannelOut(Wire):
    name: str
    kind: str
    tenant: str
    """The tenant that owns the runs that send the messages."""
    group: str
    """Alerts within this time of the first are sent in one message."""
    rate_per_hour: int
    to: list[str] = []
    quiet_from: str | None = None
    quiet_until: str | None = None
    quiet_zone: str | None = None
    waiting: int = 0
    """Problems whose alerts, or recovery alerts, are not sent yet."""


class RuleOut(Wire):
    name: str
    on: list[str]
    to: str
    tenant: str
    tasks: list[str] = []
    queues: list[str] = []
    jobs: list[str] = []
    tags: list[str] = []
    urgent: bool = False


class ProblemOut(Wire):
    problem_id: str
    state: str
    tenant: str
    name: str
    task: str
    queue: str
    error: str
    count: int
    since: str
    last_at: str
    notified: list[str]
    """Targets that have been notified, or will be once their channel sends."""
    owner: str = ""
    run_id: str | None = None
    """The newest run that failed."""
    job_id: str | None = None


class NotificationsOut(Wire, omit_defaults=False):
    channels: list[ChannelOut]
    rules: list[RuleOut]
    problems: list[ProblemOut]
    """Newest first, at most 200."""
    problem_count: int


class ChannelTestIn(Request):
    owner: Annotated[str, Meta(max_length=MAX_NAME)] = ""
    """The owner to write to, for a channel that writes to owners."""


class ChannelTestOut(Wire):
    run_id: str
