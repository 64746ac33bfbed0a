"""Dependencies: what happens to a run that waits for others, as a function of their states alone."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Literal, TypeVar

import msgspec

from mainspring.core.model.base.checks import check_kind
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import RunId, check_id

T = TypeVar("T", bound=str)

#: The maximum per run. Wider joins need several layers.
MAX_PARENTS = 1_000


class DependencyRule(StrEnum):
    """The rule that starts a run with dependencies."""

    #: All parents have succeeded. As soon as one has not, the run is skipped.
    ALL_SUCCEEDED = "all-succeeded"
    #: All parents have ended, with any outcome.
    ALL_DONE = "all-done"
    #: One parent has succeeded. If all have ended otherwise, the run is skipped.
    ANY_SUCCEEDED = "any-succeeded"
    #: One parent has failed: for a clean-up. If all have ended otherwise, the run is skipped.
    ANY_FAILED = "any-failed"


class Dependencies(msgspec.Struct, frozen=True, kw_only=True):
    """The parents of a run, in the same tenant, and its rule."""

    parents: tuple[RunId, ...]
    rule: DependencyRule = DependencyRule.ALL_SUCCEEDED

    def check(self) -> None:
        if not isinstance(self.parents, tuple) or not 0 < len(self.parents) <= MAX_PARENTS:
            raise Invalid("dependsOn", "are none, or too many, or no tuple", f"1 to {MAX_PARENTS} runs")
        for parent in self.parents:
            check_id("dependsOn", parent)
        if len(set(self.parents)) < len(self.parents):
            raise Invalid("dependsOn", "has a run twice")
        check_kind("dependsOn.rule", self.rule, DependencyRule)


class EndedParent(msgspec.Struct, frozen=True, kw_only=True):
    """How many parents of a run have ended, and with which outcome."""

    parents: int
    succeeded: int = 0
    #: Failed, cancelled or skipped.
    otherwise: int = 0
    #: The failed ones among ``otherwise``.
    failed: int = 0


def decide(rule: DependencyRule, ended: EndedParent) -> Literal["wait", "go", "skip"]:
    """Decide whether the run waits, starts or is skipped. A "go" or "skip" stays so as more parents end."""
    all_ended = ended.succeeded + ended.otherwise == ended.parents
    match rule:
        case DependencyRule.ALL_SUCCEEDED:
            met, hopeless = ended.succeeded == ended.parents, ended.otherwise > 0
        case DependencyRule.ALL_DONE:
            met, hopeless = all_ended, False
        case DependencyRule.ANY_SUCCEEDED:
            met, hopeless = ended.succeeded > 0, all_ended
        case DependencyRule.ANY_FAILED:
            met, hopeless = ended.failed > 0, all_ended
    return "go" if met else "skip" if hopeless else "wait"


def reason_of_skip(rule: DependencyRule, parent: RunId, state: str) -> str:
    """Return the reason of a skipped run for its history: the parent that decided it."""
    if rule is DependencyRule.ANY_FAILED:
        return "nothing to clean up"
    return f"parent {parent} {state}"


def find_circle(edges: Mapping[str, Iterable[str]]) -> list[str] | None:
    """Return a cycle in child → parents as a list of names, with the first repeated at the end; None: there is none."""
    done: set[str] = set()
    for start in edges:
        path: list[str] = []
        on_path: set[str] = set()
        #: A node and its unvisited parents. An explicit stack, as chains may be thousands of nodes long.
        stack: list[tuple[str, list[str]]] = [(start, list(edges.get(start, ())))]
        while stack:
            node, left = stack[-1]
            if node in done:
                stack.pop()
                continue
            if node not in on_path:
                path.append(node)
                on_path.add(node)
            if left:
                parent = left.pop()
                if parent in on_path:
                    return [*path[path.index(parent) :], parent]
                if parent not in done:
                    stack.append((parent, list(edges.get(parent, ()))))
            else:
                stack.pop()
                path.pop()
                on_path.discard(node)
                done.add(node)
    return None


def parents_first(edges: Mapping[T, Iterable[T]]) -> list[T]:
    """Return the children in topological order: each after those of its parents that are among them.

    Raise ``Invalid`` if there is a cycle.
    """
    check_no_circle({str(child): [str(parent) for parent in parents] for child, parents in edges.items()})
    children: dict[T, list[T]] = {}
    missing: dict[T, int] = {}
    for child, parents in edges.items():
        known = [parent for parent in dict.fromkeys(parents) if parent in edges]
        missing[child] = len(known)
        for parent in known:
            children.setdefault(parent, []).append(child)
    order = [child for child, count in missing.items() if count == 0]
    for parent in order:
        for child in children.get(parent, ()):
            missing[child] -= 1
            if missing[child] == 0:
                order.append(child)
    return order


def check_no_circle(edges: Mapping[str, Iterable[str]]) -> None:
    circle = find_circle(edges)
    if circle is not None:
        raise Invalid("dependsOn", f"goes round in a circle: {' → '.join(circle)}")
