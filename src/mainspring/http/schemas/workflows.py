"""Runs that wait for others, over the wire."""

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

from msgspec import UNSET, Meta, UnsetType

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.fingerprint import last_line
from mainspring.core.model.base.ids import RunId, is_id
from mainspring.core.model.runs.names import MAX_NAME
from mainspring.core.model.runs.view import RunView
from mainspring.core.model.workflows.dependencies import MAX_PARENTS, Dependencies, Rule
from mainspring.core.model.workflows.workflow import MAX_NODES
from mainspring.http.schemas.common import Name, Request, Wire, time_of
from mainspring.http.schemas.jobs import JobFields, JobIn, When

WorkflowState: TypeAlias = Literal["running", "succeeded", "failed", "cancelled"]


class NodeIn(JobFields, omit_defaults=True):
    """A one-off job by its name in the workflow, and what it waits for."""

    after: Annotated[tuple[Name, ...], Meta(max_length=MAX_PARENTS)] = ()
    """The names of the nodes that it waits for."""
    when: When | UnsetType = UNSET


class WorkflowPlan(Request, omit_defaults=True):
    """Jobs by their names, some of which wait for others."""

    name: Name
    nodes: Annotated[dict[Name, NodeIn], Meta(min_length=1, max_length=MAX_NODES)]


class WorkflowIn(WorkflowPlan, omit_defaults=True):
    """A workflow to be made."""

    tenant: Name | UnsetType = UNSET
    idempotency_key: Annotated[str, Meta(min_length=1, max_length=MAX_NAME)] | UnsetType = UNSET
    """Sent again with the same body it makes no second workflow. The header `Idempotency-Key` does the same."""


class WorkflowMade(Wire):
    workflow_id: str
    name: str
    nodes: dict[str, str]
    """The run of each node."""
    warnings: list[str] = []


class NodeOut(Wire):
    name: str
    run_id: str
    status: str
    task: str
    queue: str
    attempt_number: int
    after: tuple[str, ...] = ()
    when: str | None = None
    reason: str = ""
    error: str | None = None
    """The last line of what its newest attempt failed with; its run has all of it."""
    start_time: str | None = None
    end_time: str | None = None
    replay_of: str | None = None


class WorkflowOut(Wire):
    workflow_id: str
    name: str
    status: WorkflowState
    tenant: str
    created_at: str
    counts: dict[str, int]
    """Nodes by their status."""
    nodes: list[NodeOut]
    next_cursor: str | None = None


class WorkflowPart(Wire):
    """Some of the nodes of a workflow."""

    workflow_id: str
    name: str
    status: WorkflowState
    tenant: str
    created_at: str
    total: int
    """How many nodes it has."""
    counts: dict[str, int]
    """All nodes by their status."""
    nodes: list[NodeOut]


class WorkflowSummary(Wire):
    """A workflow in a list."""

    workflow_id: str
    name: str
    tenant: str
    created_at: str
    status: WorkflowState | None
    """Null: it has more nodes than were looked at, and these have ended."""
    nodes: int
    """How many were looked at, the newest."""
    more: bool
    """There are more of them."""
    counts: dict[str, int]
    """Of those that were looked at, by status."""
    start_time: str | None = None
    end_time: str | None = None
    """Once all have ended."""


class WorkflowRetryIn(Request):
    node: Name | UnsetType = UNSET
    """The node to begin with; without one all that failed or were cancelled."""


class WorkflowStopped(Wire):
    workflow_id: str
    status: WorkflowState
    cancelled: int
    """How many had not ended, and are cancelled or being stopped."""


def rule_of(when: When | UnsetType) -> Rule:
    return Rule.ALL_SUCCEEDED if when is UNSET else Rule(when)


def family_of(fields: JobIn, batch: Mapping[str, RunId] | None = None) -> Dependencies | None:
    """What a one-off job waits for; `#0` is the first job of the same batch."""
    if fields.depends_on is UNSET or not fields.depends_on:
        if fields.when is not UNSET:
            raise Invalid("when", "is said of nothing", "give dependsOn as well")
        return None
    parents = []
    for word in fields.depends_on:
        known = RunId(word) if is_id(word) else (batch or {}).get(word)
        if known is None:
            hint = (
                "the id of a one-off job, or of a run" if batch is None else "an id, or #0 for the first of the batch"
            )
            raise Invalid("dependsOn", f"{word!r:.40} is not known", hint)
        parents.append(known)
    found = Dependencies(parents=tuple(parents), rule=rule_of(fields.when))
    found.check()
    return found


def node_out(name: str, run: RunView) -> NodeOut:
    return NodeOut(
        name=name,
        run_id=run.id,
        status=run.state.value,
        task=run.task,
        queue=run.queue,
        attempt_number=run.attempt,
        after=() if run.about is None else run.about.after,
        when=None if run.rule is None else run.rule.value,
        reason=run.reason,
        error=last_line(run.error) if run.error else None,
        start_time=time_of(run.started_at),
        end_time=time_of(run.finished_at),
        replay_of=run.replay_of,
    )
