"""Words for states in filters: our own, and those of other schedulers."""

from collections.abc import Collection, Mapping
from typing import TypeVar

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.schedules.job import JobState

State = TypeVar("State", RunState, JobState)

RUN_WORDS: Mapping[str, frozenset[RunState]] = {
    **{state.value: frozenset({state}) for state in RunState},
    "pending": frozenset({RunState.SCHEDULED, RunState.BLOCKED, RunState.QUEUED}),
    "in_progress": frozenset({RunState.RUNNING}),
    "success": frozenset({RunState.SUCCEEDED}),
    "completed": frozenset({RunState.SUCCEEDED}),
    "canceled": frozenset({RunState.CANCELLED}),
}
JOB_WORDS: Mapping[str, frozenset[JobState]] = {
    **{state.value: frozenset({state}) for state in JobState},
    "canceled": frozenset({JobState.CANCELLED}),
}


def run_states(text: str | None) -> frozenset[RunState]:
    """Return the states of runs that a filter names. Case does not matter."""
    return _states(text, RUN_WORDS, RUN_WORDS.keys())


def job_states(text: str | None) -> frozenset[JobState]:
    """Return the states of recurring jobs that a filter names."""
    return _states(text, JOB_WORDS, JOB_WORDS.keys())


def states_of_both(text: str | None) -> tuple[frozenset[JobState], frozenset[RunState]]:
    """Return the states of recurring jobs and of runs that a filter names. A word may be for one kind only."""
    known = RUN_WORDS.keys() | JOB_WORDS.keys()
    return _states(text, JOB_WORDS, known), _states(text, RUN_WORDS, known)


def _states(text: str | None, words: Mapping[str, frozenset[State]], known: Collection[str]) -> frozenset[State]:
    found: set[State] = set()
    for part in (text or "").split(","):
        word = part.strip().lower()
        if not word:
            continue
        if word not in known:
            raise Invalid("status", f"{word[:40]!r} is no status", ", ".join(sorted(known)))
        found |= words.get(word, frozenset())
    return frozenset(found)


#: The states of a one-off job that has not started.
WAITING = ("scheduled", "queued", "blocked")
