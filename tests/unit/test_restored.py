"""Of which runs a restored store cannot know whether they were done."""

import pytest

from mainspring.domain.ids import RunId
from mainspring.domain.restored import Doubt, Restored, Unfinished, doubt_of, why_held
from mainspring.domain.run import RunState, RunView

RESTORED = Restored(taken_at=1_000, restored_at=2_000, store_id="x", unfinished=Unfinished.HOLD)


def a_view(**fields: object) -> RunView:
    usual = {"state": RunState.QUEUED, "attempt": 0, "due": 900, "created_at": 900}
    about = {"id": RunId("a"), "task": "t", "queue": "q", "tenant": "default", "priority": 5}
    return RunView(**about | usual | fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "doubt"),
    [
        ({}, Doubt.WAITED),
        ({"attempt": 1}, Doubt.STARTED),
        ({"state": RunState.RUNNING, "attempt": 1}, Doubt.STARTED),
        ({"state": RunState.BLOCKED}, Doubt.WAITED),
        # It came due between the two.
        ({"state": RunState.SCHEDULED, "due": 1_500}, Doubt.WAITED),
        # Not before the restore, so it cannot have run.
        ({"state": RunState.SCHEDULED, "due": 2_001}, None),
        # Of this life.
        ({"created_at": 2_500, "due": 1_500}, None),
        ({"created_at": 2_500, "due": 1_500, "scheduled_at": 1_500}, Doubt.TICK),
        ({"created_at": 2_500, "due": 2_500, "scheduled_at": 2_400}, None),
        # It waited for others, and they have ended here.
        ({"due": 2_500, "parents": 1}, Doubt.WAITED),
        ({"state": RunState.BLOCKED, "due": 3_001, "parents": 1}, None),
        ({"created_at": 2_400, "due": 2_500, "parents": 1}, None),
        # It is known how it ended.
        ({"state": RunState.SUCCEEDED}, None),
        ({"state": RunState.CANCELLED, "attempt": 1}, None),
    ],
)
def test_what_is_in_doubt(fields: dict[str, object], doubt: Doubt | None) -> None:
    assert doubt_of(a_view(**fields), RESTORED, 3_000) is doubt


def test_the_pause_says_what_to_do() -> None:
    assert "mainspring restore review" in why_held(RESTORED)
    assert "1970-01-01T00:00:00.001" in why_held(RESTORED)
