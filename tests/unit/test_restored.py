"""Runs of a restored store whose outcome is in doubt."""

from typing import Any

import pytest

from mainspring.core.model.runs.restored import RestoreRecord, Uncertainty, Unfinished, find_uncertainty, why_held
from mainspring.core.model.runs.run import RunState
from tests.support.views import a_run_view

RESTORED = RestoreRecord(taken_at=1_000, restored_at=2_000, store_id="x", unfinished=Unfinished.HOLD)


@pytest.mark.parametrize(
    ("fields", "doubt"),
    [
        ({}, Uncertainty.WAITED),
        ({"attempt": 1}, Uncertainty.STARTED),
        ({"state": RunState.RUNNING, "attempt": 1}, Uncertainty.STARTED),
        ({"state": RunState.BLOCKED}, Uncertainty.WAITED),
        # Became due between backup and restore.
        ({"state": RunState.SCHEDULED, "due": 1_500}, Uncertainty.WAITED),
        # Due only after the restore, so it cannot have run.
        ({"state": RunState.SCHEDULED, "due": 2_001}, None),
        # Created after the restore.
        ({"created_at": 2_500, "due": 1_500}, None),
        ({"created_at": 2_500, "due": 1_500, "scheduled_at": 1_500}, Uncertainty.TICK),
        ({"created_at": 2_500, "due": 2_500, "scheduled_at": 2_400}, None),
        # Waited for parents that ended after the restore.
        ({"due": 2_500, "parents": 1}, Uncertainty.WAITED),
        ({"state": RunState.BLOCKED, "due": 3_001, "parents": 1}, None),
        ({"created_at": 2_400, "due": 2_500, "parents": 1}, None),
        # The outcome is known.
        ({"state": RunState.SUCCEEDED}, None),
        ({"state": RunState.CANCELLED, "attempt": 1}, None),
    ],
)
def test_a_run_is_in_doubt_if_it_may_have_run_after_the_backup(
    fields: dict[str, Any], doubt: Uncertainty | None
) -> None:
    run = a_run_view(**{"due": 900, "created_at": 900} | fields)
    assert find_uncertainty(run, RESTORED, 3_000) is doubt


def test_the_reason_of_the_pause_names_the_review_command() -> None:
    assert "mainspring restore review" in why_held(RESTORED)
    assert "1970-01-01T00:00:00.001" in why_held(RESTORED)
