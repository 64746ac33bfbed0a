"""Workflows: named runs that are submitted together, with dependencies between them.

A workflow has no row of its own. Its runs carry its id, its name and their node, and are found by a tag.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from mainspring.core.model.base.errors import Conflict, Invalid, NotFound
from mainspring.core.model.base.ids import RunId, decode_shard, derived_id
from mainspring.core.model.runs.names import MAX_NAME, check_name
from mainspring.core.model.runs.new_run import About, NewRun
from mainspring.core.model.runs.replay import again
from mainspring.core.model.runs.reserved import WORKFLOW as WORKFLOW
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.model.workflows.dependencies import MAX_PARENTS, Dependencies, DependencyRule, find_circle

MAX_NODES = 10_000
#: The tag of the first node of every workflow, by which workflows are listed.
FIRST_TAG = "workflow"

State: TypeAlias = Literal["running", "succeeded", "failed", "cancelled"]


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a workflow with its node name, and the names of the nodes that it depends on."""

    name: str
    run: NewRun
    after: tuple[str, ...] = ()
    rule: DependencyRule = DependencyRule.ALL_SUCCEEDED


def build_workflow_tag(workflow: RunId) -> str:
    """Return the tag by which the runs of a workflow are found."""
    return f"workflow:{workflow}"


def check_nodes(after: Mapping[str, Sequence[str]]) -> None:
    """Refuse invalid names, missing parents and cycles, and name the field that is wrong."""
    if not 0 < len(after) <= MAX_NODES:
        raise Invalid("nodes", "are none, or too many", f"1 to {MAX_NODES:,}")
    for name, parents in after.items():
        check_name("nodes", name)
        field = f"nodes.{name}.after"
        if len(parents) > MAX_PARENTS:
            raise Invalid(field, "are too many", f"at most {MAX_PARENTS:,}; wider joins are made of several layers")
        if len(set(parents)) < len(parents):
            raise Invalid(field, "has a node twice")
        for parent in parents:
            if parent not in after:
                raise Invalid(field, f"{parent!r:.60} is not a node of this workflow")
    circle = find_circle(after)
    if circle is not None:
        raise Invalid(f"nodes.{circle[0]}.after", f"goes round in a circle: {' → '.join(circle)}")


def wired(workflow: RunId, name: str, nodes: Sequence[Node], ids: Sequence[RunId]) -> list[NewRun]:
    """Return the runs of a workflow with these ids, in the order of the nodes."""
    check_name("name", name)
    if len({node.name for node in nodes}) < len(nodes):
        twice = next(one for one, count in Counter(node.name for node in nodes).items() if count > 1)
        raise Invalid("nodes", f"{twice!r:.60} is there twice", "each has a name of its own")
    check_nodes({node.name: node.after for node in nodes})
    by_name = {node.name: run_id for node, run_id in zip(nodes, ids, strict=True)}
    return [
        msgspec.structs.replace(
            node.run,
            id=by_name[node.name],
            after=dependencies([by_name[parent] for parent in node.after], node.rule),
            about=_about(node, workflow, name, first=node is nodes[0]),
        )
        for node in nodes
    ]


def dependencies(parents: Iterable[RunId], rule: DependencyRule) -> Dependencies | None:
    found = tuple(parents)
    return Dependencies(parents=found, rule=rule) if found else None


def _about(node: Node, workflow: RunId, name: str, *, first: bool) -> About:
    said = node.run.about or About()
    own = (
        (build_workflow_tag(workflow), FIRST_TAG)
        if first and FIRST_TAG not in said.tags
        else (build_workflow_tag(workflow),)
    )
    return msgspec.structs.replace(
        said,
        name=said.name or f"{name}/{node.name}"[-MAX_NAME:].strip(),
        tags=(*said.tags, *own),
        workflow=workflow,
        workflow_name=name,
        node=node.name,
        after=node.after,
    )


def newest(runs: Iterable[RunView]) -> dict[str, RunView]:
    """Return the current run of each node, in order of creation: a retried run is replaced by its retry."""
    views = sorted(runs, key=lambda run: (run.created_at, run.id))
    replaced = {run.replay_of for run in views}
    found: dict[str, RunView] = {}
    for run in views:
        if run.about is None or not run.about.node:
            continue
        known = found.get(run.about.node)
        if known is None or run.id not in replaced:
            found[run.about.node] = run
    return found


def compute_state(states: Collection[RunState]) -> State:
    """Return the state of a workflow. Skipped nodes do not count: the node that caused the skip does."""
    if not all(state.ended for state in states):
        return "running"
    if RunState.FAILED in states:
        return "failed"
    return "cancelled" if RunState.CANCELLED in states else "succeeded"


def layers(after: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Group the nodes by depth: the length of the longest chain of dependencies before them."""
    depth: dict[str, int] = {}
    for start in after:
        stack = [start]
        while stack:
            node = stack[-1]
            parents = [parent for parent in after[node] if parent in after]
            missing = [parent for parent in parents if parent not in depth]
            if missing:
                stack += missing
            else:
                depth[node] = 1 + max((depth[parent] for parent in parents), default=-1)
                stack.pop()
    found: list[list[str]] = [[] for _ in range(1 + max(depth.values(), default=-1))]
    for node in after:
        found[depth[node]].append(node)
    return found


def to_retry(nodes: Mapping[str, RunView], start: str | None = None) -> list[str]:
    """Return the nodes to run again: ``start``, or all nodes that failed or were cancelled.

    Their direct and indirect dependents are included if they have ended without success.
    """
    if start is None:
        first = [name for name, run in nodes.items() if run.state in (RunState.FAILED, RunState.CANCELLED)]
        if not first:
            raise Conflict("no node of the workflow failed or was cancelled")
    elif start not in nodes:
        raise NotFound(f"the workflow has no node {start!r:.60}")
    elif not nodes[start].state.ended:
        raise Conflict(f"node {start!r:.60} is {nodes[start].state.value}; only one that has ended can be retried")
    else:
        first = [start]
    children: dict[str, list[str]] = {}
    for name, run in nodes.items():
        for parent in _after(run):
            children.setdefault(parent, []).append(name)
    seen = set(first)
    line = list(first)
    for name in line:
        for child in children.get(name, ()):
            if child not in seen:
                seen.add(child)
                line.append(child)
    again_too = {
        name for name in seen if nodes[name].state.ended and nodes[name].state is not RunState.SUCCEEDED
    } | set(first)
    return [name for name in nodes if name in again_too]


def retried(
    nodes: Mapping[str, RunView], payloads: Mapping[str, bytes | None], chosen: Sequence[str], author: str
) -> list[NewRun]:
    """Return new runs for these nodes, which depend on each other and on the old runs of all other nodes.

    Their ids derive from the old ones, so that of two simultaneous requests only one creates them.
    """
    ids = {name: _retry_id(nodes[name]) for name in chosen}
    runs = []
    for name in chosen:
        old = nodes[name]
        # A parent that is no longer stored had succeeded: otherwise it would not have been deleted before its child.
        parents = [ids.get(parent) or nodes[parent].id for parent in _after(old) if parent in nodes]
        new = again(old, payloads[name], author, ids[name])
        runs.append(msgspec.structs.replace(new, after=dependencies(parents, old.rule or DependencyRule.ALL_SUCCEEDED)))
    return runs


def _after(run: RunView) -> tuple[str, ...]:
    return () if run.about is None else run.about.after


def _retry_id(run: RunView) -> RunId:
    ended = run.finished_at or run.created_at
    return RunId(derived_id(ended, decode_shard(run.id), run.id, "workflow"))
