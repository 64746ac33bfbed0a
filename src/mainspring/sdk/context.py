"""The context that a handler gets if it takes a ``Context`` as its first parameter."""

import logging
import math
from collections.abc import Iterator, MutableMapping
from contextvars import ContextVar
from datetime import datetime
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import JobId, RunId
from mainspring.core.model.base.instant import Instant, to_datetime
from mainspring.core.model.runs.names import MAX_STATE
from mainspring.core.model.runs.new_run import About
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.model.runs.usage import check_amount, check_unit
from mainspring.core.runtime.masking import masks
from mainspring.core.worker.reporting.attempt_reporter import AttemptReporter, current
from mainspring.core.worker.reporting.capture import TASKS, format_line
from mainspring.sdk.arguments.values import encode_result
from mainspring.sdk.dependencies import Parents

if TYPE_CHECKING:
    from mainspring.sdk.app import Mainspring
    from mainspring.sdk.calls.options import PreparedCall
    from mainspring.sdk.handle import RunHandle, SyncHandle

T = TypeVar("T")
_LONGEST_NOTE = 1_000


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """The current attempt. Use ``run_id`` and ``fence`` to make external effects idempotent."""

    run_id: RunId
    attempt: int
    """Starts at 1 and grows with every attempt."""
    fence: int
    """Grows with every claim of the run. An external system that stores the largest value can refuse a stale
    attempt.
    """
    due: Instant
    """The earliest start time of the run, in microseconds since 1970."""
    job_id: JobId | None = None
    scheduled_at: Instant | None = None
    """The tick of a recurring job that this run is for."""
    tenant: str = "default"
    task: str = ""
    queue: str = "default"
    _held: HeldRun | None = None
    _reporter: AttemptReporter[Any] | None = None
    _app: Any = None
    _spawned: Iterator[int] = msgspec.field(default_factory=count)

    @property
    def scheduled_for(self) -> datetime:
        """The tick that this run is for, or the time it was due, in UTC."""
        return to_datetime(self.due if self.scheduled_at is None else self.scheduled_at)

    @property
    def cancelled(self) -> bool:
        """Whether this attempt should stop, because of a cancellation, a timeout or a worker shutdown.

        Blocking code should check it regularly. Async code is cancelled by asyncio.
        """
        return self._reporter is not None and self._reporter.stop is not None

    @property
    def log(self) -> "RunLog":
        """A logger. Its lines are stored with the run and also go to the log of the process."""
        return RunLog(self)

    @property
    def state(self) -> Any:
        """The state that an earlier attempt saved with ``checkpoint``, or None."""
        held = self._held
        return None if held is None or held.state is None else msgspec.json.decode(held.state)

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Report the progress. Returns immediately; only the newest report is kept. Also counts as a heartbeat."""
        if not 0 <= done < math.inf or (total is not None and not 0 < total < math.inf):
            raise Invalid("progress", f"{done!r:.40} of {total!r:.40} is no progress", "0 or more of more than 0")
        if self._reporter is not None:
            self._reporter.progress(float(done), None if total is None else float(total), self._plain(note))

    def heartbeat(self) -> None:
        """Send a heartbeat, for tasks with ``heartbeat=…``. Returns immediately."""
        if self._reporter is not None:
            self._reporter.heartbeat()

    def spend(self, unit: str, amount: float) -> None:
        """Add to the usage of this attempt in a unit of your own, such as ``"tokens"``. Returns immediately.

        Usage is summed by day and job, task or tenant, with any outcome of the attempt. Usage of a process that
        crashes is lost.
        """
        check_unit(unit)
        check_amount(amount)
        if self._reporter is not None:
            self._reporter.spend(unit, float(amount))

    def checkpoint(self, state: object) -> None:
        """Save a state as JSON for the next attempt. Returns immediately; only the newest state is kept."""
        encoded = encode_result(state, "checkpoint") or b"null"
        if len(encoded) > MAX_STATE:
            raise Invalid("checkpoint", f"is {len(encoded)} bytes", f"at most {MAX_STATE}")
        if self._reporter is not None:
            self._reporter.checkpoint(encoded)

    async def spawn(self, *calls: "PreparedCall[T]") -> "list[RunHandle[T]]":
        """Submit runs with this run as their parent: ``await context.spawn(task.prepare(1), …)``.

        Calls are deduplicated by their order. If a later attempt spawns the same calls in the same order, it gets
        the handles of the first attempt. A different call at the same position raises ``Conflict``. This holds for
        one day.
        """
        return await self._application.submit_many(self._children(calls))

    def spawn_sync(self, *calls: "PreparedCall[T]") -> "list[SyncHandle[T]]":
        """Submit child runs like ``spawn``, from blocking code."""
        return self._application.submit_many_sync(self._children(calls))

    async def parents(self) -> Parents:
        """Return the runs that this run depended on, with their results: ``(await
        context.parents())["extract"].result``.

        Every attempt sees the same runs as long as they are kept.
        """
        if self._held is None:
            return Parents([])
        return Parents(await (await self._application.backend()).parents(self.run_id))

    def parents_sync(self) -> Parents:
        """Return the parents like ``parents``, from blocking code."""
        return self._application.block_on(self.parents())

    def secret(self, name: str) -> str:
        """Return the value of a secret that the run's tenant may use. It is masked in reports and results of the
        run.

        The secret is read on every call. An unknown name, or one that the tenant may not use, fails the run without
        a retry.
        """
        from mainspring.config.tasks import make_keyring

        return make_keyring(self._application.settings()).read(self.tenant, name)

    def _plain(self, note: str) -> str:
        text = str(note).encode("utf-8", "replace").decode().replace("\x00", "�")
        # Masked before it is cut, because a part of a secret would not be recognized.
        return (masks.text(self.tenant, text) if masks.any else text)[:_LONGEST_NOTE]

    @property
    def _application(self) -> "Mainspring":
        app: Mainspring | None = self._app
        if app is None:
            raise Invalid("context", "belongs to no application", "take the context that the task is called with")
        return app

    def _children(self, calls: "tuple[PreparedCall[T], ...]") -> "list[PreparedCall[T]]":
        if self._held is None:
            # Called directly: there is no parent run.
            return list(calls)
        replace = msgspec.structs.replace
        children = []
        for call in calls:
            number, options = next(self._spawned), call.options
            children.append(
                replace(
                    call,
                    options=replace(
                        options,
                        unique=options.unique or f"spawn:{self.run_id}:{number}",
                        tenant=options.tenant or self.tenant,
                        about=replace(options.about or About(), parent=self.run_id),
                    ),
                )
            )
        return children


class RunLog(logging.LoggerAdapter[logging.Logger]):
    """The logger of one attempt, usable on any thread."""

    def __init__(self, context: Context) -> None:
        super().__init__(_logger(context.task), {"run_id": context.run_id, "attempt": context.attempt})
        self._reporter = context._reporter

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        token = current.set(self._reporter)
        try:
            super().log(level, msg, *args, **{**kwargs, "stacklevel": kwargs.get("stacklevel", 1) + 1})
        finally:
            current.reset(token)


@cache
def _logger(task: str) -> logging.Logger:
    parent = logging.getLogger(TASKS)
    if parent.level == logging.NOTSET:
        # Log lines of tasks are kept even if the application only shows warnings.
        parent.setLevel(logging.INFO)
    logger = parent.getChild(task) if task else parent
    logger.addFilter(_keep)
    return logger


def _keep(record: logging.LogRecord) -> bool:
    reporter = current.get()
    if reporter is not None:
        reporter.log(format_line(record))
    return True


def build_local_context(app: Any, task: str, tenant: str, queue: str) -> Context:
    """Return the context for a task that is called directly as a function. Its reports are discarded."""
    return Context(run_id=RunId("0" * 32), attempt=1, fence=0, due=0, tenant=tenant, task=task, queue=queue, _app=app)


#: The context of the current attempt, if it was created before the function was called.
attempt_context: ContextVar[Context | None] = ContextVar("mainspring context", default=None)


def build_context(held: HeldRun, app: Any = None) -> Context:
    """Return the context of an attempt. There is one per attempt, because it counts the spawned calls."""
    made = attempt_context.get()
    return made if made is not None and made._held is held else find_context(held, app)


def find_context(held: HeldRun, app: Any = None) -> Context:
    return Context(
        run_id=held.id,
        attempt=held.attempt,
        fence=held.fence,
        due=held.due,
        job_id=held.job_id,
        scheduled_at=held.scheduled_at,
        tenant=held.tenant,
        task=held.task,
        queue=held.queue,
        _held=held,
        _reporter=current.get(),
        _app=app,
    )
