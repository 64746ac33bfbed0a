"""Submits calls: one, many, by name, to every worker, or in a transaction of the caller."""

from collections.abc import Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from typing import (
    TYPE_CHECKING,
    Any,
    TypeVar,
    cast,
)

from mainspring.config.runtime import Runtime
from mainspring.core.model.base.errors import Conflict, Invalid
from mainspring.core.model.base.ids import RunId, check_id
from mainspring.core.model.base.instant import Duration
from mainspring.core.model.runs.names import check_name
from mainspring.core.model.runs.run import RunState
from mainspring.core.ports.storage.answers import SubmitResult
from mainspring.core.ports.storage.transactions import Request, Transactional
from mainspring.sdk.arguments.named import NamedArguments
from mainspring.sdk.backends.embedded import Backend, check_times, make_run_ids
from mainspring.sdk.calls.new_runs import build_run, build_runs, collect_given_options
from mainspring.sdk.calls.options import Options, PreparedCall
from mainspring.sdk.handle import RunHandle, SyncHandle
from mainspring.sdk.limits import Unique
from mainspring.sdk.loops.per_loop import PerLoop
from mainspring.sdk.task import Submitter, Task
from mainspring.sdk.transactions import find_connection, require_transactional, submit_on, submit_on_blocking
from mainspring.sdk.workflow import Workflow

if TYPE_CHECKING:
    from mainspring.sdk.app import Mainspring
    from mainspring.sdk.backends.remote import RemoteBackend

T = TypeVar("T")


class Submitting:
    """The methods of an application that submit calls."""

    tenant: str
    _tasks: dict[str, Task[..., Any, Any]]
    _remote: "PerLoop[RemoteBackend] | None"

    async def backend(self) -> Backend:
        """Return the store or API that calls are submitted to."""
        raise NotImplementedError

    async def runtime(self) -> Runtime:
        """Return the open runtime of this event loop. It is opened on first use and closed when the loop ends."""
        raise NotImplementedError

    def block_on(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop of a separate thread, and block until it is done."""
        raise NotImplementedError

    def named(self, task: str) -> Submitter[..., Any]:
        """Return a task by its name, for code that cannot import it:
        ``app.named("send_welcome").submit(user_id=42)``.

        Its arguments must be named. If another program declares the task, its registered options and argument
        schema apply. Values from ``options`` override them.
        """
        other = Options(given=frozenset())
        return self._tasks.get(task) or Submitter(
            cast("Mainspring", self), check_name("task", task), NamedArguments(), other
        )

    async def submit(
        self,
        task: str,
        payload: Mapping[str, object] | None = None,
        *,
        at: datetime | None = None,
        delay: Duration | None = None,
        queue: str | None = None,
        priority: int | None = None,
        retries: int | None = None,
        timeout: Duration | None = None,
        ordering_key: str | None = None,
        unique: str | Unique | None = None,
        connection: object | None = None,
    ) -> RunHandle[Any]:
        """Submit a task by its name: ``await app.submit("send_welcome", {"user_id": 42}, delay="10m")``.

        ``payload``: the arguments by name. If another program declares the task, its registered options apply
        unless you set them here. For more options see ``app.named(task).options(…)``.
        """
        call = self._named_call(
            task,
            payload,
            at=at,
            delay=delay,
            queue=queue,
            priority=priority,
            retries=retries,
            timeout=timeout,
            ordering_key=ordering_key,
            unique=unique,
        )
        return (await self.submit_many([call], connection=connection))[0]

    def submit_sync(
        self,
        task: str,
        payload: Mapping[str, object] | None = None,
        *,
        at: datetime | None = None,
        delay: Duration | None = None,
        queue: str | None = None,
        priority: int | None = None,
        retries: int | None = None,
        timeout: Duration | None = None,
        ordering_key: str | None = None,
        unique: str | Unique | None = None,
        connection: object | None = None,
    ) -> SyncHandle[Any]:
        """Submit a task by its name like ``submit``, from blocking code."""
        call = self._named_call(
            task,
            payload,
            at=at,
            delay=delay,
            queue=queue,
            priority=priority,
            retries=retries,
            timeout=timeout,
            ordering_key=ordering_key,
            unique=unique,
        )
        return self.submit_many_sync([call], connection=connection)[0]

    def _named_call(self, task: str, payload: Mapping[str, object] | None, **options: Any) -> PreparedCall[Any]:
        if payload is not None and not isinstance(payload, Mapping):
            raise Invalid("payload", f"{payload!r:.40} does not name its arguments", 'for example {"user_id": 42}')
        return self.named(task).options(**options).prepare_call((), payload or {})

    async def submit_many(
        self, calls: Iterable[PreparedCall[T]], *, connection: object | None = None
    ) -> list[RunHandle[T]]:
        """Submit calls of one or several tasks in one round trip: ``await app.submit_many([task.prepare(1), …])``.

        The handles are in the order of the calls. When it returns, all are committed. Raises ``Conflict`` if a key
        was used for something else; the other calls are committed then.

        ``connection``: your connection to the store's own database, in a transaction. The calls commit with that
        transaction.
        """
        wanted = list(calls)
        chosen = find_connection(wanted, connection)
        if chosen is not None:
            return self._handles(wanted, await submit_on(chosen, *await self._requests(wanted)))
        backend = await self.backend()
        ids = make_run_ids(backend, wanted, self.tenant)
        runs = build_runs(ids, wanted, self.tenant)
        return self._handles(wanted, await backend.submit(runs, collect_given_options(runs, wanted)))

    def submit_many_sync(
        self, calls: Iterable[PreparedCall[T]], *, connection: object | None = None
    ) -> list[SyncHandle[T]]:
        """Submit calls like ``submit_many``, from blocking code."""
        wanted = list(calls)
        chosen = find_connection(wanted, connection)
        if chosen is None:
            handles = self.block_on(self.submit_many(wanted))
        else:
            accepted = submit_on_blocking(chosen, *self.block_on(self._requests(wanted)))
            handles = self._handles(wanted, accepted)
        return [handle.sync for handle in handles]

    def workflow(self, name: str) -> Workflow:
        """Create an empty workflow, which you build and submit as a whole: ``flow = app.workflow("nightly")``."""
        return Workflow(cast("Mainspring", self), name)

    async def broadcast(self, call: PreparedCall[T]) -> list[RunHandle[T]]:
        """Run a call once on every live worker that knows its task: ``await app.broadcast(task.prepare(…))``.

        Each worker gets one run, and retries stay on that worker. If the worker leaves before the run is done, the
        run is ``skipped``. Workers that start later get none.
        """
        backend = await self.backend()
        [run_id] = make_run_ids(backend, [call], self.tenant)
        run = build_run(run_id, call, self.tenant)
        accepted = await backend.broadcast(run, collect_given_options([run], [call]))
        return self._handles([call] * len(accepted), accepted)

    def broadcast_sync(self, call: PreparedCall[T]) -> list[SyncHandle[T]]:
        """Run a call on every live worker like ``broadcast``, from blocking code."""
        return [handle.sync for handle in self.block_on(self.broadcast(call))]

    def _handles(self, wanted: Sequence[PreparedCall[T]], accepted: Sequence[SubmitResult]) -> list[RunHandle[T]]:
        handles: list[RunHandle[T]] = []
        for answer, call in zip(accepted, wanted, strict=True):
            if answer.conflict and isinstance(call.options.unique, str):
                reason = f"unique key {call.options.unique!r} was used for something else, run {answer.id}"
                raise Conflict(reason, answer.id)
            if answer.conflict:
                raise Conflict(f"its unique key is taken by run {answer.id}", answer.id)
            handles.append(RunHandle(cast("Mainspring", self), answer.id, answer.state, call.read, new=answer.new))
        return handles

    async def _requests(self, wanted: Sequence[PreparedCall[T]]) -> tuple[Transactional, list[Request]]:
        """Return the statements that submit calls on a connection of the caller."""
        if self._remote is not None:
            raise Invalid("connection", "is of no use to an API", "give the application the store itself")
        runtime = await self.runtime()
        store = require_transactional(runtime.store)
        ids = runtime.jobs.new_run_ids([call.options.policy.ordering_key for call in wanted], tenant=self.tenant)
        runs = build_runs(ids, wanted, self.tenant)
        runs = list(await runtime.catalog.fill_in(runs, collect_given_options(runs, wanted)))
        for run in runs:
            run.check()
        await check_times(runtime, runs)
        if runtime.tracing is not None and (submitting := runtime.tracing.submitting(runs, runtime.clock)) is not None:
            # The span ends when the statements are built, because the caller decides when they commit.
            with submitting:
                return store, await store.requests_for(submitting.runs)
        return store, await store.requests_for(runs)

    def handle(self, run_id: str) -> RunHandle[Any]:
        """Return the handle of a run by its id."""
        check_id("run", run_id)
        return RunHandle(cast("Mainspring", self), RunId(run_id), RunState.QUEUED, NamedArguments().read_result)
