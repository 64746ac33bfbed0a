"""Builds workflows: named calls and their dependencies."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import Duration, parse_duration
from mainspring.core.model.runs.names import check_name
from mainspring.core.model.runs.reserved import WORKFLOW
from mainspring.core.model.runs.view import RunView
from mainspring.core.model.schedules.job import Overlap
from mainspring.core.model.schedules.schedule import CronSchedule, Interval
from mainspring.core.model.workflows.fan_out import AT_A_TIME
from mainspring.core.model.workflows.workflow import Node, check_nodes
from mainspring.sdk.calls.new_runs import build_run
from mainspring.sdk.calls.options import Options, PreparedCall
from mainspring.sdk.dependencies import When, check_rule
from mainspring.sdk.fan_out import FanOut, OnFailure
from mainspring.sdk.handle import RunHandle
from mainspring.sdk.policies import CatchUp
from mainspring.sdk.task import Submitter

if TYPE_CHECKING:
    from mainspring.sdk.app import Mainspring

T = TypeVar("T")


class Step(Generic[T]):
    """A call of a workflow that is being built."""

    def __init__(self, flow: "Workflow", name: str, call: PreparedCall[T], after: tuple[str, ...], when: When) -> None:
        self.flow = flow
        self.name = name
        self.call = call
        self.after = after
        self.rule = check_rule(when)

    def __repr__(self) -> str:
        return f"Step({self.name!r})"


class Workflow:
    """A workflow that is being built.

    ``flow = app.workflow("nightly"); a = flow.add(extract.prepare()); flow.add(load.prepare(), after=[a])``
    """

    def __init__(self, app: "Mainspring", name: str) -> None:
        self._app = app
        self.name = check_name("name", name)
        self._steps: dict[str, Step[Any]] = {}

    def add(
        self,
        call: PreparedCall[T],
        *,
        after: "Sequence[Step[Any]]" = (),
        when: When = "all-succeeded",
        name: str | None = None,
    ) -> Step[T]:
        """Add a call that depends on the steps in ``after``. ``when`` is the dependency rule, as in
        ``task.options``.

        The default name is the name of the task, with a number if that is taken.
        """
        if not isinstance(call, PreparedCall):
            raise Invalid("call", f"{call!r:.40} is not prepared", "flow.add(task.prepare(…))")
        if call.options.depends_on:
            raise Invalid("depends_on", "does not go with a workflow", "flow.add(call, after=[…])")
        for step in after:
            if not isinstance(step, Step) or step.flow is not self:
                raise Invalid("after", f"{step!r:.40} is not a step of this workflow", "what flow.add has returned")
        chosen = self._free(call.task) if name is None else check_name("name", name)
        if chosen in self._steps:
            raise Invalid("name", f"there is a step {chosen!r} already")
        step = self._steps[chosen] = Step(self, chosen, call, tuple(one.name for one in after), when)
        return step

    def map(
        self,
        task: Submitter[..., T],
        items: "Iterable[object] | Step[Any]",
        *,
        after: "Sequence[Step[Any]]" = (),
        when: When = "all-succeeded",
        name: str | None = None,
        at_a_time: int = AT_A_TIME,
        on_failure: OnFailure = "fail",
    ) -> "Step[FanOut[T]]":
        """Add a fan-out as a single step, like ``task.map``: one call for each item.

        ``items`` may be a step: the fan-out depends on it, and its result is the list of items. The default name is
        the name of the task, with a number if that is taken.
        """
        if not isinstance(task, Submitter):
            raise Invalid("task", f"{task!r:.40} is no task", "flow.map(task, items)")
        step = items if isinstance(items, Step) else None
        prepared = task.prepare_map(
            None if isinstance(items, Step) else items,
            each="" if step is None else step.name,
            at_a_time=at_a_time,
            on_failure=on_failure,
        )
        behind = after if step is None or step in after else [*after, step]
        return self.add(prepared, after=behind, when=when, name=self._free(task.task_name) if name is None else name)

    def _free(self, task: str) -> str:
        if task not in self._steps:
            return task
        number = len(self._steps) + 1
        while f"{task}-{number}" in self._steps:
            number += 1
        return f"{task}-{number}"

    def cron(
        self,
        expression: str,
        *,
        timezone: str = "UTC",
        overlap: Overlap = Overlap.ALLOW,
        catch_up: CatchUp | Literal["none", "latest", "all"] = "latest",
    ) -> None:
        """Run the workflow at every tick of a cron expression. Call this after all steps are added."""
        schedule = CronSchedule(expression=expression, timezone=timezone)
        self._app.schedule_call(self._plan(), schedule, self.name, overlap, catch_up)

    def every(
        self,
        interval: Duration,
        *,
        overlap: Overlap = Overlap.ALLOW,
        catch_up: CatchUp | Literal["none", "latest", "all"] = "latest",
    ) -> None:
        """Run the workflow at a fixed rate. Call this after all steps are added."""
        schedule = Interval(every=parse_duration(interval, "every"))
        self._app.schedule_call(self._plan(), schedule, self.name, overlap, catch_up)

    def _plan(self) -> PreparedCall[Any]:
        """Return the call that creates an instance."""
        # Imported here, because it takes 100 ms and most programs have no recurring workflow.
        from mainspring.http.schemas.workflows import WorkflowPlan
        from mainspring.sdk.backends.remote import build_node_in

        nodes, _ = self._nodes()
        plan = WorkflowPlan(name=self.name, nodes={node.name: build_node_in(node) for node in nodes})
        return PreparedCall(WORKFLOW, msgspec.json.encode(plan), Options(), lambda result: result)

    def _nodes(self) -> tuple[list[Node], str]:
        steps = list(self._steps.values())
        check_nodes({step.name: step.after for step in steps})
        tenants = {step.call.options.tenant or self._app.tenant for step in steps}
        if len(tenants) > 1:
            raise Invalid("tenant", "is not the same for all steps", ", ".join(sorted(tenants)))
        [tenant] = tenants
        return [_node(step, tenant) for step in steps], tenant

    async def submit(self) -> "WorkflowHandle":
        """Submit the whole workflow. When this returns, everything is committed; if it raises, nothing is."""
        nodes, tenant = self._nodes()
        steps = list(self._steps.values())
        workflow, accepted = await (await self._app.backend()).submit_workflow(self.name, nodes, tenant)
        handles: dict[str, RunHandle[Any]] = {
            step.name: RunHandle(self._app, answer.id, answer.state, step.call.read, new=answer.new)
            for step, answer in zip(steps, accepted, strict=True)
        }
        return WorkflowHandle(workflow, self.name, handles)

    def submit_sync(self) -> "WorkflowHandle":
        """Submit the workflow like ``submit``, from blocking code."""
        return self._app.block_on(self.submit())


def _node(step: Step[Any], tenant: str) -> Node:
    if step.call.options.unique is not None:
        raise Invalid("unique", "does not go with a workflow", "submit the workflow once")
    run = build_run(RunId(""), step.call, tenant)
    return Node(name=step.name, run=run, after=step.after, rule=step.rule)


class WorkflowHandle(Mapping[str, RunHandle[Any]]):
    """A submitted workflow: the handles of its runs, by the names of its steps."""

    def __init__(self, workflow: RunId, name: str, handles: dict[str, RunHandle[Any]]) -> None:
        self.id = workflow
        self.name = name
        self._handles = handles

    def __getitem__(self, step: "str | Step[Any]") -> RunHandle[Any]:
        return self._handles[step.name if isinstance(step, Step) else step]

    def __iter__(self) -> Iterator[str]:
        return iter(self._handles)

    def __len__(self) -> int:
        return len(self._handles)

    def __repr__(self) -> str:
        return f"WorkflowHandle({self.id}, {self.name!r})"

    async def wait(self, timeout: Duration = "1h") -> dict[str, RunView]:
        """Wait until all runs have ended with any outcome, and return their details."""
        return {name: await handle.wait(timeout) for name, handle in self._handles.items()}
