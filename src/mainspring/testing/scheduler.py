"""``TestScheduler``: an application under test, with a runtime of its own in virtual time."""

import asyncio
from collections.abc import Coroutine
from contextlib import ExitStack
from datetime import datetime
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar, cast, runtime_checkable

from mainspring.config.runtime import Runtime
from mainspring.core.model.base.errors import Invalid, NotFound
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import (
    LATEST,
    Duration,
    Instant,
    from_datetime,
    isoformat,
    parse_duration,
    parse_instant,
    to_datetime,
)
from mainspring.core.model.schedules.job import LedgerEntry
from mainspring.core.ports.storage.catalog import RunFilter
from mainspring.sdk.app import Mainspring
from mainspring.testing.bridge import build_bridge
from mainspring.testing.cluster import VirtualCluster
from mainspring.testing.faults import Fault
from mainspring.testing.loop import RuntimeLoop
from mainspring.testing.runs import Runs

T = TypeVar("T")


class Named(Protocol):
    """An object with the name of a task, such as a task."""

    @property
    def name(self) -> str: ...


@runtime_checkable
class OneRun(Protocol):
    """A handle, or a run that ``runs`` returned."""

    @property
    def id(self) -> RunId: ...


_PAGE = 10_000


class _Session:
    """A running test runtime, and the application that uses it."""

    def __init__(self, app: Mainspring, start: Instant) -> None:
        self.app = app
        self.loop = RuntimeLoop(start)
        self.cluster = VirtualCluster(app, self.loop)
        self._bridge = build_bridge(self.cluster.runtime, self.loop)
        self._stack = ExitStack()

    def start(self) -> None:
        self.loop.begin()
        self._stack.callback(self.loop.end)
        try:
            self._stack.enter_context(self.app.replace_runtime(self._runtime))
            self._stack.callback(lambda: self.loop.command(self.cluster.close()).result())
            self.loop.command(self.cluster.open()).result()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        self._stack.close()

    async def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the runtime's loop, from any loop."""
        return await (work if self.loop.runs_here else asyncio.wrap_future(self.loop.command(work)))

    def _runtime(self) -> Runtime:
        return self.cluster.runtime if self.loop.runs_here else self._bridge

    def find_task(self, task: Named | str) -> str:
        name = task if isinstance(task, str) else task.name
        if name not in self.app.handlers():
            raise NotFound(f"the application has no task {name!r}")
        return name

    async def runs(self, task: str) -> Runs:
        store = self.cluster.store
        ids: list[RunId] = []
        after: RunId | None = None
        while True:
            page = await store.list_runs(RunFilter(tenant=None, task=task), after, _PAGE)
            ids += [view.id for view in page.items]
            if page.after is None:
                break
            after = RunId(page.after)
        views = [view for view in await store.runs(ids) if view is not None]
        return Runs(sorted(views, key=lambda view: (view.created_at, view.id)))

    async def log(self, run: RunId) -> str:
        return "\n".join(piece.text for piece in await self.cluster.store.log(run, 0, 1 << 31))

    async def ledger(self, schedule: str) -> list[LedgerEntry]:
        store = self.cluster.store
        job = await store.job_named(self.app.tenant, schedule)
        if job is None:
            raise NotFound(f"there is no schedule {schedule!r}")
        return await store.ledger(job, 0, LATEST, 1 << 31)

    async def cancel(self, what: OneRun | Named | str) -> int:
        if isinstance(what, OneRun):
            ids = [what.id]
        else:
            ids = [view.id for view in await self.runs(self.find_task(what)) if not view.state.ended]
        return len(await self.cluster.runtime.jobs.cancel_runs(ids))


class _Queries:
    """Methods that take no virtual time, for async and blocking tests."""

    _session: _Session

    @property
    def now(self) -> datetime:
        """The virtual time, in UTC."""
        return to_datetime(self._session.loop.now)

    def runs(self, task: Named | str | None = None) -> Runs:
        """Return the runs of a task, or all runs, in the order they were created.

        A name may also be that of a task outside the application, if something was submitted to it.
        """
        if task is None:
            return self._query(self._session.runs(""))
        found = self._query(self._session.runs(task if isinstance(task, str) else task.name))
        if not found:
            self._session.find_task(task)
        return found

    def log(self, run: OneRun) -> str:
        """Return what a run printed and logged, as far as it was kept."""
        return self._query(self._session.log(run.id))

    def ledger(self, schedule: str) -> list[LedgerEntry]:
        """Return the decision about every tick of a schedule, in order: run, or skipped and why."""
        return self._query(self._session.ledger(schedule))

    def fail(
        self,
        task: Named | str,
        error: BaseException | type[BaseException] | str = "provoked by the test",
        times: int = 1,
    ) -> None:
        """Make the next attempts of a task fail with this error, without calling its function."""
        if isinstance(error, str):
            error = RuntimeError(error)
        self._inject_fault(task, error() if isinstance(error, type) else error, times)

    def lose(self, task: Named | str, times: int = 1) -> None:
        """Kill the worker in the next attempts of a task. Its runs are found lost when its lease has expired.

        All other runs of that worker are lost, too. Another worker starts at once.
        """
        self._inject_fault(task, None, times)

    def _inject_fault(self, task: Named | str, fault: Fault, times: int) -> None:
        if times < 1:
            raise Invalid("times", f"{times} is too few", "1 or more")
        self._session.cluster.faults.inject(self._session.find_task(task), fault, times)

    def _query(self, query: Coroutine[Any, Any, T]) -> T:
        """Return the result of a query at once: the memory store answers without awaiting."""
        if not self._session.loop.runs_here:
            return self._session.loop.command(query).result()
        try:
            query.send(None)
        except StopIteration as answer:
            return cast(T, answer.value)
        raise AssertionError("the query waits")

    def _compute_end(self, duration: Duration) -> Instant:
        return self._session.loop.now + parse_duration(duration)

    def _check_future(self, moment: datetime | str) -> Instant:
        chosen = _parse_moment(moment, "moment")
        if chosen < self._session.loop.now:
            raise Invalid("moment", f"{isoformat(chosen)} is past", f"not before {isoformat(self._session.loop.now)}")
        return chosen


class BlockingTestScheduler(_Queries):
    """The scheduler of ``with TestScheduler(app)``, for tests without a loop. Methods return when they are done."""

    def __init__(self, session: _Session) -> None:
        self._session = session

    def advance(self, duration: Duration) -> None:
        """Advance the virtual time. Everything that is due by then happens."""
        self._do(self._session.cluster.sleep_until(self._compute_end(duration)))

    def advance_to(self, moment: datetime | str) -> None:
        """Advance the virtual time to this moment."""
        self._do(self._session.cluster.sleep_until(self._check_future(moment)))

    def run_until_idle(self) -> None:
        """Run everything that is due now to its end, and let time pass as far as that needs.

        Later retries are not awaited.
        """
        self._do(self._session.cluster.run_until_idle())

    def outage(self, duration: Duration) -> None:
        """Stop the scheduler and the worker for this long, then start them again. Attempts in progress are released."""
        self._do(self._session.cluster.outage(parse_duration(duration)))

    def cancel(self, what: OneRun | Named | str) -> int:
        """Request cancellation of a run, or of all runs of a task that have not ended; return how many."""
        return self._do(self._session.cancel(what))

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return self._session.loop.command(work).result()


class TestScheduler(_Queries):
    """Declares the schedules of an application, and runs them with a real scheduler and worker in virtual time.

        async with TestScheduler(app) as s:
            await s.advance("1 day")
            assert s.runs(report).succeeded == 24

    Inside the block, all submits of the application go to this scheduler. Time passes only in methods that are awaited,
    here and on handles. Without a loop: ``with TestScheduler(app) as s: s.advance("1 day")``.
    """

    #: Keeps pytest from collecting it as a test class.
    __test__ = False

    def __init__(self, app: Mainspring, *, start: datetime | str = "2026-01-01T00:00:00Z") -> None:
        """Create a test scheduler. ``start`` is the start of virtual time."""
        self._app = app
        self._start = _parse_moment(start, "start")

    async def __aenter__(self) -> Self:
        self._session = _Session(self._app, self._start)
        await asyncio.to_thread(self._session.start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._session.stop)

    def __enter__(self) -> BlockingTestScheduler:
        self._session = _Session(self._app, self._start)
        self._session.start()
        return BlockingTestScheduler(self._session)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session.stop()

    async def advance(self, duration: Duration) -> None:
        """Advance the virtual time. Everything that is due by then happens."""
        await self._session.do(self._session.cluster.sleep_until(self._compute_end(duration)))

    async def advance_to(self, moment: datetime | str) -> None:
        """Advance the virtual time to this moment."""
        await self._session.do(self._session.cluster.sleep_until(self._check_future(moment)))

    async def run_until_idle(self) -> None:
        """Run everything that is due now to its end, and let time pass as far as that needs.

        Later retries are not awaited.
        """
        await self._session.do(self._session.cluster.run_until_idle())

    async def outage(self, duration: Duration) -> None:
        """Stop the scheduler and the worker for this long, then start them again. Attempts in progress are released."""
        await self._session.do(self._session.cluster.outage(parse_duration(duration)))

    async def cancel(self, what: OneRun | Named | str) -> int:
        """Request cancellation of a run, or of all runs of a task that have not ended; return how many."""
        return await self._session.do(self._session.cancel(what))


def _parse_moment(moment: datetime | str, field: str) -> Instant:
    return parse_instant(moment, field) if isinstance(moment, str) else from_datetime(moment, field)
