"""Dead letters by fingerprint."""

from mainspring.http.schemas.common import Wire


class GroupOut(Wire):
    fingerprint: str
    task: str
    reason: str
    count: int
    first_seen: str
    last_seen: str
    sample_run_id: str
    error_message: str
    trend: tuple[int, ...] = ()
    """How many failed in each of the last 24 hours, the oldest first."""


class Groups(Wire):
    items: list[GroupOut]
