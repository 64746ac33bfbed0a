"""The tasks ``fan_out`` and ``fan_in``: many runs of one task, made in parts with limited concurrency, then counted.

No task holds a slot while it waits. The root checks the progress of its members from time to time. A gathering is a
``fan_in`` run that is blocked until the members of its part have ended; it then makes the next part.
``core/model/workflows/fan_out.py`` has a diagram.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice

import msgspec
from msgspec import UNSET

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import MILLISECOND, Micros
from mainspring.core.model.runs.handler_errors import GiveUp, Snooze
from mainspring.core.model.runs.names import MAX_NAME, MAX_RESULT
from mainspring.core.model.runs.new_run import About, NewRun
from mainspring.core.model.runs.reserved import FAN_IN, FAN_OUT
from mainspring.core.model.runs.run import HeldRun, RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.model.tasks.task_entry import TaskEntry
from mainspring.core.model.workflows.dependencies import Dependencies, DependencyRule
from mainspring.core.model.workflows.fan_out import (
    MOST_RESULTS,
    OWN_PRIORITY,
    FanOutCounts,
    FanOutLayout,
    FanOutNames,
    FanOutSurvey,
    build_fan_out_tag,
    choose_parts,
    count,
    look_after,
    plan_layout,
)
from mainspring.core.store import Store
from mainspring.core.submit.jobs import Jobs
from mainspring.core.worker.handler import AsyncHandler
from mainspring.core.worker.reporting.attempt_reporter import current
from mainspring.http.plans.fan_out import FanOut, Items, read_fan_out
from mainspring.http.schemas.fan_out import FanOutResult, PartOf

Connect = Callable[[], Awaitable[tuple[Jobs, Store]]]

#: Interval of the checks whether a cancelled gathering has stopped.
_STOP_CHECK_INTERVAL: Micros = 200 * MILLISECOND
#: Runs read per query, and parts probed per step of the search for the first missing one.
_RUNS_PAGE = 500
_PROBES = 40
#: Results read per query: each may be large.
_RESULTS_PAGE = 100
_decode_survey = msgspec.json.Decoder(FanOutSurvey).decode
_decode_counts = msgspec.json.Decoder(FanOutCounts).decode
_decode_part = msgspec.json.Decoder(PartOf).decode


def build_fan_out_handler(connect: Connect) -> AsyncHandler:
    async def invoke(held: HeldRun) -> bytes | None:
        jobs, store = await connect()
        return await _FanOutRun(held.id, held.tenant, held.queue, held.payload, jobs, store).check(held)

    return AsyncHandler(FAN_OUT, invoke, harmless=True)


def build_fan_in_handler(connect: Connect) -> AsyncHandler:
    async def invoke(held: HeldRun) -> bytes | None:
        jobs, store = await connect()
        try:
            payload = _decode_part(held.payload)
        except msgspec.MsgspecError as error:
            raise GiveUp(f"payload: {error}") from None
        view = (await store.runs([RunId(payload.root)], payloads=True))[0]
        if view is None or (view.tenant, view.task) != (held.tenant, FAN_OUT):
            raise GiveUp(f"fan-out {payload.root} does not exist any more")
        root = _open_fan_out(view, jobs, store)
        if payload.part is UNSET:
            return await root.clean_up(view)
        return await root.gather(held.id, payload.part, is_active=not view.state.ended and not view.cancel_requested)

    return AsyncHandler(FAN_IN, invoke, harmless=True)


async def cancel_members(roots: Sequence[RunId], jobs: Jobs, store: Store) -> None:
    """Cancel the members of cancelled fan-outs, as far as possible at once. Their clean-up runs cancel the rest."""
    for view in await store.runs(roots, payloads=True):
        if view is not None:
            with suppress(GiveUp, Snooze):
                await _open_fan_out(view, jobs, store).clean_up(view)


def _open_fan_out(view: RunView, jobs: Jobs, store: Store) -> "_FanOutRun":
    return _FanOutRun(view.id, view.tenant, view.queue, view.payload or b"null", jobs, store)


class _FanOutRun:
    """A fan-out, as used by its root run, its gatherings and its clean-up run."""

    def __init__(self, run: RunId, tenant: str, queue: str, payload: bytes, jobs: Jobs, store: Store) -> None:
        self._id = run
        self._names = FanOutNames(run)
        self._tenant = tenant
        self._queue = queue
        self._jobs = jobs
        self._store = store
        try:
            self._plan: FanOut = read_fan_out(payload, tenant)
        except Invalid as error:
            raise GiveUp(str(error)) from None

    async def check(self, held: HeldRun) -> bytes | None:
        """Run one check of the root: the first check makes the first parts, the last one returns the result."""
        survey = (
            await self._start(held) if held.state is None else await self._find_gathered(_decode_survey(held.state))
        )
        reporter = current.get()
        if reporter is not None:
            reporter.checkpoint(msgspec.json.encode(survey))
            reporter.progress(survey.counts.members, survey.members, "")
        if survey.counts.members < survey.members:
            raise Snooze(look_after(held.started_at - survey.began), "waiting for members")
        return await self._build_result(survey.counts)

    async def _start(self, held: HeldRun) -> FanOutSurvey:
        items = await self._read_items()
        layout = plan_layout(items.count, self._plan.at_a_time)
        if layout.parts:
            await self._jobs.submit_whole([self._build_clean_up_run()])
        for part in layout.first_parts():
            await self._create_part(layout, items, part)
        return FanOutSurvey(members=items.count, began=held.started_at)

    async def _read_items(self) -> Items:
        if self._plan.items is not None:
            return self._plan.items
        each = self._plan.each
        for parent in await self._store.parents(self._id):
            if each in (parent.id, "" if parent.about is None else parent.about.node):
                if parent.state is not RunState.SUCCEEDED:
                    raise GiveUp(f"{each!r:.60}, which returns the items, is {parent.state.value}")
                try:
                    return self._plan.items_in(parent.result)
                except Invalid as error:
                    raise GiveUp(str(error)) from None
        raise GiveUp(f"payload.each: {each!r:.60} is not one of its parents")

    def _build_members(self, layout: FanOutLayout, items: Items, part: int) -> list[NewRun]:
        shards, placement_groups = self._store.shards, getattr(self._store, "place_count", 0)
        return self._plan.members(self._names, items, part, layout.list_members(part), shards, placement_groups)

    async def _create_part(self, layout: FanOutLayout, items: Items, part: int, after: RunId | None = None) -> bool:
        """Make all runs of a part in one transaction, unless they exist. Return whether the part is new.

        ``after``: the gathering that makes the part. The new gathering becomes its child, so that another attempt of
        ``after`` sees that it has already made a part.
        """
        members = self._plan.filled_in(self._build_members(layout, items, part), await self._find_task())
        gathering = self._build_internal_run(
            self._names.gathering(part),
            f"part {part + 1:,} of {layout.parts:,}",
            PartOf(root=self._id, part=part),
            [member.id for member in members] + ([] if after is None else [after]),
        )
        return (await self._jobs.submit_whole([*members, gathering]))[-1].new

    async def _find_task(self) -> TaskEntry | None:
        """Return the current declaration of the members' task."""
        task = self._plan.template.task
        known = (known.entry for known in await self._store.list_tasks())
        return next((entry for entry in known if entry.name == task), None)

    def _build_clean_up_run(self) -> NewRun:
        return self._build_internal_run(self._names.clean_up(), "clean-up", PartOf(root=self._id), [self._id])

    def _build_internal_run(self, run: RunId, name: str, payload: PartOf, parents: Sequence[RunId]) -> NewRun:
        """Build a ``fan_in`` run. It uses the root's queue, so that the root's workers serve it.

        Its priority puts it before the members.
        """
        return NewRun(
            id=run,
            task=FAN_IN,
            payload=msgspec.json.encode(payload),
            queue=self._queue,
            tenant=self._tenant,
            priority=OWN_PRIORITY,
            after=Dependencies(parents=tuple(parents), rule=DependencyRule.ALL_DONE),
            about=About(name=f"{self._plan.template.task}: {name}"[-MAX_NAME:].strip(), parent=self._id),
        )

    async def _find_gathered(self, survey: FanOutSurvey) -> FanOutSurvey:
        """Find the parts that have been gathered since the last check."""
        layout = plan_layout(survey.members, self._plan.at_a_time)
        ahead = survey.ahead(layout.parts)
        gathered: dict[int, FanOutCounts] = {}
        missing: list[int] = []
        end, unfinished = survey.end, False
        while parts := list(islice(ahead, _RUNS_PAGE)):
            views = await self._read_gatherings(parts)
            for part, view in zip(parts, views, strict=True):
                if view is None:
                    missing.append(part)
                    continue
                end = max(end, part + 1)
                if view.state is RunState.SUCCEEDED and view.result is not None:
                    gathered[part] = _decode_counts(view.result)
                elif view.state.ended:
                    raise GiveUp(f"part {part + 1:,} of {layout.parts:,} was not gathered: {_describe_outcome(view)}")
                else:
                    unfinished = True
            if not any(views[-layout.open :]):
                break
        if missing and not unfinished:
            await self._create_missing(layout, missing)
        return survey.after(end, gathered)

    async def _create_missing(self, layout: FanOutLayout, missing: Sequence[int]) -> None:
        """Make missing parts that no gathering will make: one was deleted, or ended without making its next part."""
        items = await self._read_items()
        for part in missing[: layout.open]:
            await self._create_part(layout, items, part)

    async def _read_gatherings(self, parts: Iterable[int]) -> list[RunView | None]:
        return await self._store.runs([self._names.gathering(part) for part in parts])

    async def _build_result(self, total: FanOutCounts) -> bytes:
        if self._plan.on_failure == "fail" and (wrong := total.words()):
            raise GiveUp(f"{wrong}; to list them, filter by the tag {build_fan_out_tag(self._id)}")
        result = FanOutResult(**msgspec.structs.asdict(total))
        results = await self._read_results(total.members) if total.members <= MOST_RESULTS else None
        complete = result if results is None else msgspec.structs.replace(result, results=results)
        encoded = msgspec.json.encode(complete)
        return encoded if len(encoded) <= MAX_RESULT else msgspec.json.encode(result)

    async def _read_results(self, members: int) -> list[msgspec.Raw] | None:
        """Return the members' results in order, or None if they exceed the limit."""
        layout, items = plan_layout(members, self._plan.at_a_time), await self._read_items()
        ids = [run.id for part in range(layout.parts) for run in self._build_members(layout, items, part)]
        found: list[msgspec.Raw] = []
        size = 0
        for start in range(0, members, _RESULTS_PAGE):
            for view in await self._store.runs(ids[start : start + _RESULTS_PAGE]):
                result = b"null" if view is None or view.result is None else view.result
                size += len(result)
                found.append(msgspec.Raw(result))
            if size > MAX_RESULT:
                return None
        return found

    async def gather(self, run: RunId, part: int, *, is_active: bool) -> bytes:
        """Make the next part and count the outcomes, after all members of a part have ended."""
        items = await self._read_items()
        layout = plan_layout(items.count, self._plan.at_a_time)
        if is_active and not await self._store.children(run, None, 1):
            await self._create_next(layout, items, part, run)
        # The parents include the gathering that made this part; it is not a member.
        states = [view.state for view in await self._store.parents(run) if view.task != FAN_IN]
        return msgspec.json.encode(count(len(layout.list_members(part)), states))

    async def _create_next(self, layout: FanOutLayout, items: Items, part: int, after: RunId) -> None:
        while candidates := choose_parts(await self._find_missing(layout), part, layout.open):
            for following in candidates:
                if await self._create_part(layout, items, following, after=after):
                    return
                # Another gathering made it first.

    async def _find_missing(self, layout: FanOutLayout) -> list[int]:
        """Return the first missing parts. The initial parts are left to the root, which may still be making them."""
        low, high = layout.open, layout.parts
        while low < high:
            probed = sorted({low + (high - low) * step // _PROBES for step in range(_PROBES)})
            for part, view in zip(probed, await self._read_gatherings(probed), strict=True):
                if view is None:
                    high = part
                    break
                low = part + 1
        # Gatherings make parts concurrently, so a few may be missing before others that exist.
        near = range(max(layout.open, low - 2 * layout.open), min(low + layout.open, layout.parts))
        return [part for part, view in zip(near, await self._read_gatherings(near), strict=True) if view is None]

    async def clean_up(self, root: RunView) -> bytes | None:
        """Cancel everything that is left of a fan-out whose root did not succeed."""
        if root.state is RunState.SUCCEEDED:
            return None
        items = await self._read_items()
        layout = plan_layout(items.count, self._plan.at_a_time)
        stopped: set[int] = set()
        while parts := [part for part in await self._list_open_parts(layout) if part not in stopped]:
            # Cancel the gatherings first: one may make another part until it has stopped.
            states = await self._jobs.cancel_runs([self._names.gathering(part) for part in parts])
            for part in parts:
                members = self._build_members(layout, items, part)
                await self._jobs.cancel_runs([run.id for run in members])
            if not all(state.ended for state in states.values()):
                raise Snooze(_STOP_CHECK_INTERVAL, "waiting for a gathering to stop")
            stopped.update(parts)
        return None

    async def _list_open_parts(self, layout: FanOutLayout) -> list[int]:
        """Return the parts that were made but not gathered, including cancelled ones."""
        found: list[int] = []
        for start in range(0, layout.parts, _RUNS_PAGE):
            parts = range(start, min(start + _RUNS_PAGE, layout.parts))
            views = await self._read_gatherings(parts)
            made = [(part, view) for part, view in zip(parts, views, strict=True) if view is not None]
            found += [part for part, view in made if view.state is not RunState.SUCCEEDED]
            if not any(views[-layout.open :]):
                break
        return found


def _describe_outcome(view: RunView | None) -> str:
    if view is None:
        return "the run was deleted"
    last = (view.error or view.reason).strip().rpartition("\n")[2]
    return f"run {view.id} {view.state.value}" + (f" ({last})" if last else "")
