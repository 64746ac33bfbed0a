"""Workflows in the wire format."""

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

from msgspec import UNSET, Meta, UnsetType

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.headline import find_headline
from mainspring.core.model.base.ids import RunId, is_id
from mainspring.core.model.runs.names import MAX_NAME
from mainspring.core.model.runs.view import RunView
from mainspring.core.model.workflows.dependencies import MAX_PARENTS, Dependencies, DependencyRule
from mainspring.core.model.workflows.workflow import MAX_NODES
from mainspring.http.schemas.common import Name, Request, Wire, format_time
from mainspring.http.schemas.jobs import JobFields, JobIn, When

WorkflowState: TypeAlias = Literal["running", "succeeded", "failed", "cancelled"]


class NodeIn(JobFields, omit_defaults=True):
    """A one-off job in a workflow, and the nodes that it depends on."""

    after: Annotated[tuple[Name, ...], Meta(max_length=MAX_PARENTS)] = ()
    """The names of the nodes that it depends on."""
    when: When | UnsetType = UNSET


class WorkflowPlan(Request, omit_defaults=True):
    """Jobs by name, with the dependencies between them."""

    name: Name
    nodes: Annotated[dict[Name, NodeIn], Meta(min_length=1, max_length=MAX_NODES)]


class WorkflowIn(WorkflowPlan, omit_defaults=True):
    """A workflow to create."""

    tenant: Name | UnsetType = UNSET
    idempotency_key: Annotated[str, Meta(min_length=1, max_length=MAX_NAME)] | UnsetType = UNSET
    """The same request with the same key creates no second workflow. The header `Idempotency-Key` does the same."""


class WorkflowMade(Wire):
    workflow_id: str
    name: str
    nodes: dict[str, str]
    """The run id of each node."""
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
    """The line that names the error of its newest attempt; the run has the whole error."""
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
    """Nodes by status."""
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
    """How many nodes the workflow has."""
    counts: dict[str, int]
    """All nodes by status."""
    nodes: list[NodeOut]


class WorkflowSummary(Wire):
    """A workflow in a list."""

    workflow_id: str
    name: str
    tenant: str
    created_at: str
    status: WorkflowState | None
    """Null: not all nodes were examined, and those that were have ended."""
    nodes: int
    """How many nodes were examined, the newest first."""
    more: bool
    """There are more nodes."""
    counts: dict[str, int]
    """The examined nodes by status."""
    start_time: str | None = None
    end_time: str | None = None
    """Set once all nodes have ended."""


class WorkflowRetryIn(Request):
    node: Name | UnsetType = UNSET
    """The node to start with; without it, all nodes that failed or were cancelled."""


class WorkflowStopped(Wire):
    workflow_id: str
    status: WorkflowState
    cancelled: int
    """How many nodes had not ended, and are cancelled or being cancelled."""


def read_rule(when: When | UnsetType) -> DependencyRule:
    return DependencyRule.ALL_SUCCEEDED if when is UNSET else DependencyRule(when)


def read_dependencies(fields: JobIn, batch: Mapping[str, RunId] | None = None) -> Dependencies | None:
    """Return the dependencies of a one-off job; `#0` is the first job of the same batch."""
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
    found = Dependencies(parents=tuple(parents), rule=read_rule(fields.when))
    found.check()
    return found


def render_node(name: str, run: RunView) -> NodeOut:
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
        error=find_headline(run.error) if run.error else None,
        start_time=format_time(run.started_at),
        end_time=format_time(run.finished_at),
        replay_of=run.replay_of,
    )
