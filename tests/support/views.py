"""Runs as a catalog returns them, with defaults for what a test does not care about."""

from typing import Any

from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import RunView
from tests.support.builders import an_id


def a_run_view(state: RunState = RunState.QUEUED, **fields: Any) -> RunView:
    usual: dict[str, Any] = {
        "id": an_id(),
        "task": "greet",
        "queue": "default",
        "tenant": "default",
        "priority": 5,
        "attempt": 0,
        "due": 0,
        "created_at": 0,
    }
    return RunView(state=state, **usual | fields)
