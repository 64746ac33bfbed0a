"""What a handler may ask for by taking a ``Context`` as its first parameter."""

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
from mainspring.core.worker.reporting.capture import TASKS, line_of
from mainspring.core.worker.reporting.telling import Telling, current
from mainspring.sdk.arguments.values import encode_result
from mainspring.sdk.families import Parents

if TYPE_CHECKING:
    from mainspring.sdk.app import Mainspring
    from mainspring.sdk.handle import RunHandle, SyncHandle
    from mainspring.sdk.task import Prepared

T = TypeVar("T")
_LONGEST_NOTE = 1_000


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """The attempt that is running. ``run_id`` and ``fence`` make outside effects idempotent."""

    run_id: RunId
    attempt: int
    """From 1; grows with every try."""
    fence: int
    """Grows with every acquisition of the run: an outside system that keeps the largest can refuse a stale attempt."""
    due: Instant
    """When the run could start at the earliest, in microseconds since 1970."""
    job_id: JobId | None = None
    scheduled_at: Instant | None = None
    """The tick of a recurring job that this run is for."""
    tenant: str = "default"
    task: str = ""
    queue: str = "default"
    _held: HeldRun | None = None
    _telling: Telling[Any] | None = None
    _app: Any = None
    _spawned: Iterator[int] = msgspec.field(default_factory=count)

    @property
    def scheduled_for(self) -> datetime:
        """The tick that this run is for, or when it was due; in UTC."""
        return to_datetime(self.due if self.scheduled_at is None else self.scheduled_at)

    @property
    def cancelled(self) -> bool:
        """Whether this attempt should stop: it was cancelled, is out of time, or its worker leaves.

        For code that blocks and looks now and then. Async code is cancelled as asyncio does it.
        """
        return self._telling is not None and self._telling.stop is not None

    @property
    def log(self) -> "RunLog":
        """A logger. Its lines are kept with the run, and go where the process logs, too."""
        return RunLog(self)

    @property
    def state(self) -> Any:
        """What the attempt before this one left by ``checkpoint``; None if none did."""
        held = self._held
        return None if held is None or held.state is None else msgspec.json.decode(held.state)

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Say how far it is. Never waits; only the newest is kept. Is a sign of life, too."""
        if not 0 <= done < math.inf or (total is not None and not 0 < total < math.inf):
            raise Invalid("progress", f"{done!r:.40} of {total!r:.40} is no progress", "0 or more of more than 0")
        if self._telling is not None:
            self._telling.progress(float(done), None if total is None else float(total), self._plain(note))

    def heartbeat(self) -> None:
        """Show life: for tasks with ``heartbeat=…``. Never waits."""
        if self._telling is not None:
            self._telling.heartbeat()

    def spend(self, unit: str, amount: float) -> None:
        """Add to what this attempt has used of a unit of your own, such as ``"tokens"``. Never waits. Summed by day and
        job, task or tenant, whatever becomes of the attempt; what a process that dies has spent is not known."""
        check_unit(unit)
        check_amount(amount)
        if self._telling is not None:
            self._telling.spend(unit, float(amount))

    def checkpoint(self, state: object) -> None:
        """Keep something with the run, as JSON, for the next attempt. Never waits; only the newest is kept."""
        encoded = encode_result(state, "checkpoint") or b"null"
        if len(encoded) > MAX_STATE:
            raise Invalid("checkpoint", f"is {len(encoded)} bytes", f"at most {MAX_STATE}")
        if self._telling is not None:
            self._telling.checkpoint(encoded)

    async def spawn(self, *calls: "Prepared[T]") -> "list[RunHandle[T]]":
        """Submit runs that know this one as their parent: ``await context.spawn(task.prepare(1), …)``.

        Made once, by their order: another attempt that spawns the same calls in the same order makes nothing, and gets
        the handles of the first. Another call at the same place is a ``Conflict``. Holds for a day.
        """
        return await self._application.submit_many(self._children(calls))

    def spawn_sync(self, *calls: "Prepared[T]") -> "list[SyncHandle[T]]":
        """As ``spawn``, for code that blocks."""
        return self._application.submit_many_sync(self._children(calls))

    async def parents(self) -> Parents:
        """The runs that this one waited for, with their results: ``(await context.parents())["extract"].result``.

        Every attempt sees the same, as long as they are kept.
        """
        if self._held is None:
            return Parents([])
        return Parents(await (await self._application.backend()).parents(self.run_id))

    def parents_sync(self) -> Parents:
        """As ``parents``, for code that blocks."""
        return self._application.block_on(self.parents())

    def secret(self, name: str) -> str:
        """The value of a secret that the run's tenant may use. It is hidden in whatever the run tells or returns.

        Read anew each time. A name that there is none by, or that the tenant may not use, ends the run without another
        try.
        """
        from mainspring.config.tasks import make_keyring

        return make_keyring(self._application.settings()).read(self.tenant, name)

    def _plain(self, note: str) -> str:
        text = str(note).encode("utf-8", "replace").decode().replace("\x00", "�")
        # Masked before it is cut: half a secret is not found.
        return (masks.text(self.tenant, text) if masks.any else text)[:_LONGEST_NOTE]

    @property
    def _application(self) -> "Mainspring":
        app: Mainspring | None = self._app
        if app is None:
            raise Invalid("context", "belongs to no application", "take the context that the task is called with")
        return app

    def _children(self, calls: "tuple[Prepared[T], ...]") -> "list[Prepared[T]]":
        if self._held is None:
            # Called directly: there is no run to be the parent.
            return list(calls)
        replace = msgspec.structs.replace
        children = []
        for call in calls:
            place, options = next(self._spawned), call.options
            children.append(
                replace(
                    call,
                    options=replace(
                        options,
                        unique=options.unique or f"spawn:{self.run_id}:{place}",
                        tenant=options.tenant or self.tenant,
                        about=replace(options.about or About(), parent=self.run_id),
                    ),
                )
            )
        return children


class RunLog(logging.LoggerAdapter[logging.Logger]):
    """The logger of one attempt, whatever thread uses it."""

    def __init__(self, context: Context) -> None:
        super().__init__(_logger(context.task), {"run_id": context.run_id, "attempt": context.attempt})
        self._telling = context._telling

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        token = current.set(self._telling)
        try:
            super().log(level, msg, *args, **{**kwargs, "stacklevel": kwargs.get("stacklevel", 1) + 1})
        finally:
            current.reset(token)


@cache
def _logger(task: str) -> logging.Logger:
    parent = logging.getLogger(TASKS)
    if parent.level == logging.NOTSET:
        # What a task logs by its context is meant to be kept, also where the application shows warnings only.
        parent.setLevel(logging.INFO)
    logger = parent.getChild(task) if task else parent
    logger.addFilter(_keep)
    return logger


def _keep(record: logging.LogRecord) -> bool:
    telling = current.get()
    if telling is not None:
        telling.log(line_of(record))
    return True


def local_context(app: Any, task: str, tenant: str, queue: str) -> Context:
    """What a task gets that is called directly, as the plain function it is: what it tells goes nowhere."""
    return Context(run_id=RunId("0" * 32), attempt=1, fence=0, due=0, tenant=tenant, task=task, queue=queue, _app=app)


#: The context of the attempt whose code this is, where it was made before its function was called.
attempt_context: ContextVar[Context | None] = ContextVar("mainspring context", default=None)


def context_for(held: HeldRun, app: Any = None) -> Context:
    """One for each attempt: it counts what is spawned."""
    made = attempt_context.get()
    return made if made is not None and made._held is held else context_of(held, app)


def context_of(held: HeldRun, app: Any = None) -> Context:
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
        _telling=current.get(),
        _app=app,
    )
