"""A task: a function that can still be called, and that can be submitted."""

import inspect
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Generic, Literal, ParamSpec, TypeVar

import msgspec

from mainspring.domain.errors import Invalid
from mainspring.domain.ids import RunId
from mainspring.domain.instant import Duration, Instant, from_datetime, parse_duration
from mainspring.domain.rank import DEFAULT_PRIORITY, check_priority
from mainspring.domain.retry import check_retries
from mainspring.domain.run import HeldRun, NewRun, RunPolicy, check_policy, check_queue
from mainspring.sdk.arguments import Arguments, encode_result
from mainspring.sdk.context import LOCAL
from mainspring.worker.handler import AsyncHandler, Handler, SyncHandler

if TYPE_CHECKING:
    from mainspring.sdk.app import Mainspring
    from mainspring.sdk.handle import RunHandle

P = ParamSpec("P")
R = TypeVar("R")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How a task's runs are submitted unless a call says otherwise."""

    queue: str = "default"
    priority: int = DEFAULT_PRIORITY
    policy: RunPolicy = RunPolicy()
    at: Instant | None = None
    delay: int = 0
    start_within: int | None = None
    deadline: int | None = None


class Submitter(Generic[P]):
    """A task with options of its own for one call: ``task.options(delay="10m").submit(…)``."""

    def __init__(self, app: "Mainspring", name: str, arguments: Arguments, options: Options) -> None:
        self._app = app
        self._name = name
        self._arguments = arguments
        self._options = options

    async def submit(self, *args: P.args, **kwargs: P.kwargs) -> "RunHandle":
        """Hand the call to the store. When this returns, it is committed: it will run, or end with a visible reason."""
        return await self._app.submit(self._name, self._arguments.encode(args, kwargs), self._options)

    def options(
        self,
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        priority: int | None = None,
        queue: str | None = None,
        retries: int | None = None,
        timeout: Duration | None = None,
        ordering_key: str | None = None,
        start_within: Duration | None = None,
        deadline: Duration | None = None,
        guarantee: Literal["at-least-once", "at-most-once"] | None = None,
    ) -> "Submitter[P]":
        """The same task with other options. ``delay``: not before this long from now. ``at``: not before this moment.

        ``priority``: 1 urgent to 10 idle. ``ordering_key``: runs of one key happen one at a time, in order.
        ``start_within``: skipped if it has not started this long after it was due. ``deadline``: failed if it has not
        ended by then.
        """
        if delay is not None and at is not None:
            raise Invalid("delay", "cannot be given together with at")
        options = self._options
        policy = options.policy
        if retries is not None:
            retry = msgspec.structs.replace(policy.retry, max_retries=check_retries("retries", retries))
            policy = msgspec.structs.replace(policy, retry=retry)
        if timeout is not None:
            policy = msgspec.structs.replace(policy, timeout=parse_duration(timeout, "timeout"))
        if ordering_key is not None:
            policy = msgspec.structs.replace(policy, ordering_key=ordering_key)
        if guarantee is not None:
            policy = msgspec.structs.replace(policy, guarantee=guarantee)
        if policy is not options.policy:
            check_policy(policy)
        chosen = Options(
            queue=options.queue if queue is None else check_queue("queue", queue),
            priority=options.priority if priority is None else check_priority(priority),
            policy=policy,
            at=options.at if at is None else from_datetime(at, "at"),
            delay=options.delay if delay is None else parse_duration(delay, "delay"),
            start_within=options.start_within if start_within is None else parse_duration(start_within, "start_within"),
            deadline=options.deadline if deadline is None else parse_duration(deadline, "deadline"),
        )
        return Submitter(self._app, self._name, self._arguments, chosen)


class Task(Submitter[P], Generic[P, R]):
    """What ``@app.task`` makes of a function. Calling it calls the function, here and now."""

    def __init__(
        self,
        app: "Mainspring",
        function: Callable[..., R],
        name: str,
        options: Options,
        executor: Literal["child", "process", "thread"],
    ) -> None:
        super().__init__(app, name, Arguments(name, function), options)
        self.function = function
        self.name = name
        self.__name__ = getattr(function, "__name__", name)
        self.__doc__ = function.__doc__
        self._executor = executor

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._arguments.wants_context:
            return self.function(LOCAL, *args, **kwargs)
        return self.function(*args, **kwargs)

    @property
    def default_options(self) -> Options:
        return self._options

    def payload(self, *args: P.args, **kwargs: P.kwargs) -> bytes:
        """What would be stored for this call."""
        return self._arguments.encode(args, kwargs)

    def handler(self) -> Handler:
        """How a worker calls it."""
        arguments = self._arguments
        function: Callable[..., object] = self.function
        if inspect.iscoroutinefunction(function):

            async def invoke(held: HeldRun) -> bytes | None:
                first, named = arguments.decode(held)
                return encode_result(await function(*first, **named))

            return AsyncHandler(self.name, invoke)

        def invoke_and_block(held: HeldRun) -> bytes | None:
            first, named = arguments.decode(held)
            return encode_result(function(*first, **named))

        return SyncHandler(self.name, invoke_and_block, self._executor)


def new_run(run_id: RunId, task: str, payload: bytes, options: Options, tenant: str) -> NewRun:
    """A run as the store takes it. What counts from now does so by the store's clock, not by this one."""
    return NewRun(
        id=run_id,
        task=task,
        payload=payload,
        queue=options.queue,
        tenant=tenant,
        priority=options.priority,
        policy=options.policy,
        at=options.at,
        delay=options.delay,
        start_within=options.start_within,
        deadline=options.deadline,
    )
