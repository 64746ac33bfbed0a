"""Tasks: functions that can be called directly and submitted as runs."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import Duration, Micros, from_datetime, parse_duration
from mainspring.core.model.cluster.labels import label_words
from mainspring.core.model.limits.key_template import policy_with_keys, unique_with_key
from mainspring.core.model.runs.names import check_name, check_queue
from mainspring.core.model.runs.new_run import About
from mainspring.core.model.runs.policy import check_policy
from mainspring.core.model.runs.rank import check_priority
from mainspring.core.model.runs.reserved import FAN_OUT
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.model.runs.unique import Unique as UniqueKey
from mainspring.core.model.schedules.presets import preset_timeout
from mainspring.core.model.tasks.task_entry import MAX_DESCRIPTION, TaskEntry
from mainspring.core.model.workflows.fan_out import AT_A_TIME
from mainspring.core.worker.handler import AsyncHandler, Handler, SyncHandler
from mainspring.sdk.arguments.named import Encoder
from mainspring.sdk.arguments.signature import Arguments
from mainspring.sdk.arguments.values import encode_result
from mainspring.sdk.calls.options import Options, PreparedCall
from mainspring.sdk.context import build_local_context
from mainspring.sdk.dependencies import Parent, When, check_parents, check_rule
from mainspring.sdk.fan_out import FanOut, OnFailure, build_own_options, build_plan, read_fan_out
from mainspring.sdk.limits import Breaker, Limit, Unique, build_breaker, build_limits
from mainspring.sdk.policies import RetryPolicy, combine_retries
from mainspring.sdk.transactions import check_connection, find_transaction_parameter, invoke_in_transaction

if TYPE_CHECKING:
    from mainspring.sdk.app import Mainspring
    from mainspring.sdk.handle import RunHandle, SyncHandle

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Submitter(Generic[P, T]):
    """A task with the options of one call: ``task.options(delay="10m").submit(…)``."""

    def __init__(self, app: "Mainspring", name: str, arguments: Encoder, options: Options) -> None:
        self._app = app
        self._name = name
        self._arguments = arguments
        self._options = options

    @property
    def task_name(self) -> str:
        return self._name

    async def submit(self, *args: P.args, **kwargs: P.kwargs) -> "RunHandle[T]":
        """Submit the call. When this returns, it is committed: it will run, or end with a visible reason."""
        return (await self._app.submit_many([self.prepare(*args, **kwargs)]))[0]

    def prepare(self, *args: P.args, **kwargs: P.kwargs) -> PreparedCall[T]:
        """Return the validated call, to submit it with others by ``app.submit_many``."""
        return self.prepare_call(args, kwargs)

    def prepare_call(self, args: tuple[object, ...], arguments: Mapping[str, object]) -> PreparedCall[T]:
        """Return the validated call, with the named arguments as a mapping."""
        payload = self._arguments.encode(args, arguments)
        return PreparedCall(self._name, payload, self._with_keys(payload), self._arguments.read_result)

    async def map(
        self, items: Iterable[object], *, at_a_time: int = AT_A_TIME, on_failure: OnFailure = "fail"
    ) -> "RunHandle[FanOut[T]]":
        """Submit a fan-out: one call for each item, which becomes the first argument.

        ``range(1_000_000)`` is not expanded. One run represents all calls: it has their progress and results, ends
        with them, and other runs can depend on it.

        ``at_a_time``: how many calls are active at once. ``on_failure``: the outcome of the whole if some calls did
        not succeed: it fails (``"fail"``) or succeeds (``"go-on"``) once all have ended.
        """
        prepared = self.prepare_map(items, at_a_time=at_a_time, on_failure=on_failure)
        return (await self._app.submit_many([prepared]))[0]

    def prepare_map(
        self,
        items: Iterable[object] | None = None,
        *,
        each: str = "",
        at_a_time: int = AT_A_TIME,
        on_failure: OnFailure = "fail",
    ) -> "PreparedCall[FanOut[T]]":
        """Return a fan-out to submit with other calls.

        ``each``: instead of items, the parent run or step whose result is the list of items.
        """
        arguments = self._arguments
        payload = build_plan(
            self._name,
            items,
            arguments.encode_item,
            arguments.first,
            self._options,
            each=each,
            at_a_time=at_a_time,
            on_failure=on_failure,
        )
        return PreparedCall(
            FAN_OUT,
            payload,
            build_own_options(self._options),
            lambda result: read_fan_out(result, arguments.read_result),
        )

    def _with_keys(self, payload: bytes) -> Options:
        """Return the options of one call, with the arguments filled into keys of limits and unique keys."""
        options = self._options
        unique = options.unique if isinstance(options.unique, UniqueKey) else None
        if not options.policy.limits and unique is None:
            return options
        keys = [limit.key for limit in options.policy.limits] + ([] if unique is None else [unique.key])
        if not any("{" in key or "}" in key for key in keys):
            return options
        full = self._arguments.fill_in_defaults(payload)
        return msgspec.structs.replace(
            options,
            policy=policy_with_keys(options.policy, full),
            unique=options.unique if unique is None else unique_with_key(unique, full),
        )

    @property
    def sync(self) -> "SyncSubmitter[P, T]":
        """This task for blocking code: ``task.sync.submit(…).result()``."""
        return SyncSubmitter(self._app, self)

    def options(
        self,
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        priority: int | None = None,
        queue: str | None = None,
        retries: int | None = None,
        retry: RetryPolicy | None = None,
        timeout: Duration | None = None,
        ordering_key: str | None = None,
        start_within: Duration | None = None,
        deadline: Duration | None = None,
        guarantee: Literal["at-least-once", "at-most-once"] | None = None,
        requires: Mapping[str, str] | None = None,
        weight: int | None = None,
        retention: str | None = None,
        limits: Sequence[Limit] | None = None,
        breaker: Breaker | None = None,
        unique: str | Unique | None = None,
        tenant: str | None = None,
        placement: str | None = None,
        name: str | None = None,
        owner: str | None = None,
        tags: tuple[str, ...] | None = None,
        connection: object | None = None,
        depends_on: "Sequence[Parent] | None" = None,
        when: When | None = None,
    ) -> "Submitter[P, T]":
        """Return the task with other options.

        ``delay``: do not start before this long from now. ``at``: do not start before this time, which must be in
        the future.

        ``priority``: 1 (urgent) to 10 (idle). ``retry``: how often, when and after which errors it is retried;
        ``retries``: only how often.

        ``ordering_key``: runs with the same key run one at a time, in order.

        ``start_within``: it is skipped if it has not started this long after it was due. ``deadline``: it fails if
        it has not ended this long after it was due.

        ``requires``: labels that a worker must have to run it. ``weight``: how many slots of a worker it takes.

        ``unique``: a second submit with the same key creates nothing and returns the handle of the first. With
        other arguments or options it raises ``Conflict``. A ``Unique`` sets for how long this holds, and what else
        a second submit does.

        ``limits`` and ``breaker`` replace those of the task. ``retention``: how long it is kept after it has ended,
        as for a task.

        ``placement``: in a sharded store, runs with the same key share a placement group, separate from the
        tenant's other runs.

        ``name``, ``owner`` and ``tags`` help people to find it.

        ``connection``: your connection to the store's own database. The run commits or rolls back with its
        transaction.

        ``depends_on``: the runs it waits for, by handle or id, or calls of the same ``submit_many``.

        ``when``: it runs when all of them have succeeded, and is skipped as soon as one has not
        (``"all-succeeded"``); when all have ended (``"all-done"``); when one has succeeded (``"any-succeeded"``);
        when one has failed (``"any-failed"``).
        """
        if delay is not None and at is not None:
            raise Invalid("delay", "cannot be given together with at")
        options = self._options
        policy = options.policy
        if retry is not None or retries is not None:
            policy = msgspec.structs.replace(policy, retry=combine_retries(retries, retry, policy.retry))
        preset = options.preset
        if timeout is not None:
            policy = msgspec.structs.replace(policy, timeout=parse_duration(timeout, "timeout"))
            preset = None
        elif priority is not None and preset is not None:
            policy = msgspec.structs.replace(policy, timeout=preset_timeout(preset, check_priority(priority)))
        if ordering_key is not None:
            policy = msgspec.structs.replace(policy, ordering_key=ordering_key)
        if guarantee is not None:
            policy = msgspec.structs.replace(policy, guarantee=guarantee)
        if requires is not None:
            policy = msgspec.structs.replace(policy, requires=label_words("requires", requires))
        if limits is not None:
            policy = msgspec.structs.replace(policy, limits=build_limits(self._name, None, limits))
        if breaker is not None:
            policy = msgspec.structs.replace(policy, breaker=build_breaker(breaker))
        if weight is not None:
            policy = msgspec.structs.replace(policy, weight=weight)
        if retention is not None:
            policy = msgspec.structs.replace(policy, retention=retention)
        if policy is not options.policy:
            check_policy(policy)
        about = options.about
        if name is not None or owner is not None or tags is not None:
            said = about or About()
            about = msgspec.structs.replace(
                said,
                name=said.name if name is None else name,
                owner=said.owner if owner is None else owner,
                tags=said.tags if tags is None else tuple(tags),
            )
        chosen = Options(
            queue=options.queue if queue is None else check_queue("queue", queue),
            priority=options.priority if priority is None else check_priority(priority),
            policy=policy,
            preset=preset,
            at=options.at if at is None else from_datetime(at, "at"),
            delay=options.delay if delay is None else parse_duration(delay, "delay"),
            start_within=options.start_within if start_within is None else parse_duration(start_within, "start_within"),
            deadline=options.deadline if deadline is None else parse_duration(deadline, "deadline"),
            unique=options.unique if unique is None else _check_unique(unique),
            tenant=options.tenant if tenant is None else check_name("tenant", tenant),
            placement=options.placement if placement is None else check_name("placement", placement),
            about=about,
            connection=options.connection if connection is None else check_connection(connection),
            depends_on=options.depends_on if depends_on is None else check_parents(depends_on),
            when=options.when if when is None else check_rule(when),
        )
        if options.given is not None:
            named = {
                "queue": queue,
                "priority": priority,
                "max_retries": retries if retry is None else retry,
                "retry": retry,
                "timeout": timeout,
                "guarantee": guarantee,
                "requires": requires,
                "limits": limits,
                "breaker": breaker,
                "weight": weight,
                "retention": retention,
                "tags": tags,
            }
            given = options.given | {option for option, value in named.items() if value is not None}
            chosen = msgspec.structs.replace(chosen, given=given)
        return Submitter(self._app, self._name, self._arguments, chosen)


class SyncSubmitter(Generic[P, T]):
    """A task for code without an event loop."""

    def __init__(self, app: "Mainspring", submitter: Submitter[P, T]) -> None:
        self._app = app
        self._submitter = submitter

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> "SyncHandle[T]":
        """Submit the call, and block until it is committed."""
        return self._app.submit_many_sync([self._submitter.prepare(*args, **kwargs)])[0]

    def map(
        self, items: Iterable[object], *, at_a_time: int = AT_A_TIME, on_failure: OnFailure = "fail"
    ) -> "SyncHandle[FanOut[T]]":
        """Submit a fan-out like ``map``, and block until it is committed."""
        prepared = self._submitter.prepare_map(items, at_a_time=at_a_time, on_failure=on_failure)
        return self._app.submit_many_sync([prepared])[0]


class Task(Submitter[P, T], Generic[P, R, T]):
    """A task made by ``@app.task``. Calling it runs the function directly."""

    def __init__(
        self,
        app: "Mainspring",
        function: Callable[..., R],
        name: str,
        options: Options,
        executor: Literal["child", "process", "thread"],
        aliases: tuple[str, ...] = (),
        upgrade: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        heartbeat: Micros | None = None,
    ) -> None:
        self._call = Arguments(name, function, upgrade)
        self._call.app = app
        app.provide_to(self._call)
        self._transaction = find_transaction_parameter(name, function, self._call)
        super().__init__(app, name, self._call, options)
        self.function = function
        self.aliases = aliases
        self.name = name
        self.__name__ = getattr(function, "__name__", name)
        self.__doc__ = function.__doc__
        self._executor = executor
        self._heartbeat = heartbeat

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._call.markers:
            self._call.check_direct(self.name, args, kwargs)
        if self._call.wants_context:
            tenant = self._options.tenant or self._app.tenant
            return self.function(
                build_local_context(self._app, self.name, tenant, self._options.queue), *args, **kwargs
            )
        return self.function(*args, **kwargs)

    @property
    def argument_names(self) -> tuple[str, ...]:
        return self._call.names

    @property
    def default_options(self) -> Options:
        return self._options

    def payload(self, *args: P.args, **kwargs: P.kwargs) -> bytes:
        """Return the payload that would be stored for this call."""
        return self._arguments.encode(args, kwargs)

    def entries(self) -> list[TaskEntry]:
        """Return the entries for the task catalog: the task under its name and its aliases."""
        options = self._options
        own = TaskEntry(
            name=self.name,
            description=inspect.cleandoc(self.__doc__ or "")[:MAX_DESCRIPTION],
            queue=options.queue,
            priority=options.priority,
            policy=options.policy,
            preset=options.preset,
            tags=() if options.about is None else options.about.tags,
            arguments=self._call.schema(),
            checked=not self._call.upgrades,
        )
        return [own, *(msgspec.structs.replace(own, name=alias) for alias in self.aliases)]

    def handler(self) -> Handler:
        """Return the handler with which a worker calls the task."""
        app, arguments = self._app, self._call
        app.check_needs(self.name, arguments)
        function = app.record_result(self.function)
        if self._transaction is not None:
            in_transaction = invoke_in_transaction(app, arguments, function, self._transaction)
            return AsyncHandler(self.name, app.wrap(in_transaction), heartbeat=self._heartbeat)
        if inspect.iscoroutinefunction(function):

            async def invoke(held: HeldRun) -> bytes | None:
                first, named = arguments.decode(held)
                return encode_result(await function(*first, **named))

            return AsyncHandler(self.name, app.wrap(invoke), heartbeat=self._heartbeat)

        def invoke_and_block(held: HeldRun) -> bytes | None:
            first, named = arguments.decode(held)
            return encode_result(function(*first, **named))

        return SyncHandler(self.name, app.wrap_blocking(invoke_and_block), self._executor, self._heartbeat)


def _check_unique(unique: str | Unique) -> str | UniqueKey:
    return unique.kept if isinstance(unique, Unique) else check_name("unique", unique)
