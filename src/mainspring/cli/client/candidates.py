"""Chooses one object among those that a short id or a name may mean."""

from collections.abc import Sequence

import msgspec

from mainspring.core.model.base.errors import Invalid

#: Candidates that an error lists.
_MAX_LISTED = 8


class Candidate(msgspec.Struct, rename="camel"):
    """The fields of a job, run, workflow or replay that tell it from others."""

    job_id: str = ""
    run_id: str = ""
    workflow_id: str = ""
    replay_id: str = ""
    tenant: str = ""
    name: str = ""
    task: str = ""
    status: str | None = None
    state: str = ""

    @property
    def identifier(self) -> str:
        # A run also has the id of its job.
        return self.run_id or self.workflow_id or self.replay_id or self.job_id

    def describe(self) -> str:
        words = " ".join(filter(None, (self.name or self.task, self.status or self.state)))
        return f"{self.identifier} ({words})" if words else self.identifier


def choose_one(found: Sequence[Candidate], noun: str, problem: str) -> str:
    """Return the id of the only candidate. If there are several, raise an error that lists them."""
    if len(found) == 1:
        return found[0].identifier
    listed = ", ".join(one.describe() for one in found[:_MAX_LISTED])
    rest = f" and {len(found) - _MAX_LISTED:,} more" if len(found) > _MAX_LISTED else ""
    raise Invalid(noun, problem, f"one of {listed}{rest}")
