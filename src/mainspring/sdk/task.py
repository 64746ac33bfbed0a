"""Tasks: functions that can be called directly and submitted as runs."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Protocol, TypeVar

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import Duration, Instant, Micros, from_datetime, parse_duration
from mainspring.core.model.cluster.labels import label_words
from mainspring.core.model.limits.key_template import policy_with_keys, unique_with_key
from mainspring.core.model.runs.names import check_name, check_queue
from mainspring.core.model.runs.new_run import About, NewRun, made_once
from mainspring.core.model.runs.policy import RunPolicy, check_policy
from mainspring.core.model.runs.rank import DEFAULT_PRIORITY, check_priority
from mainspring.core.model.runs.reserved import FAN_OUT
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.model.runs.unique import Unique as UniqueKey
from mainspring.core.model.schedules.presets import preset_timeout
from mainspring.core.model.tasks.task_entry import MAX_DESCRIPTION, TaskEntry
from mainspring.core.model.workflows.dependencies import Rule
from mainspring.core.model.workflows.fan_out import AT_A_TIME
from mainspring.core.worker.handler import AsyncHandler, Handler, SyncHandler
from mainspring.sdk.arguments.signature import Arguments
from mainspring.sdk.arguments.values import encode_result
from mainspring.sdk.context import local_context
from mainspring.sdk.dependencies import Parent, When, checked_parents, checked_rule, family_of
from mainspring.sdk.fan_out import FanOut, OnFailure, check_each, own_options, plan_of, read_fan_out
from mainspring.sdk.limits import Breaker, Limit, Unique, breaker_of, limits_of
from mainspring.sdk.policies import RetryPolicy, combine_retries
from mainspring.sdk.transactions import check_connection, invoke_in_transaction, transaction_parameter

if TYPE_CHECKING:
    from mainspring.sdk.app import Mainspring
    from mainspring.sdk.handle import RunHandle, SyncHandle

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a task's runs, unless a call overrides them."""

    queue: str = "default"
    priority: int = DEFAULT_PRIORITY
    policy: RunPolicy = RunPolicy()
    at: Instant | None = None
    delay: int = 0
    start_within: int | None = None
    deadline: int | None = None
    #: The preset that sets the timeout by priority, unless a call sets the timeout.
    preset: str | None = None
    #: A second submit with the same key creates nothing.
    unique: str | UniqueKey | None = None
    #: None: the application's tenant.
    tenant: str | None = None
    #: Runs with the same key share a placement group of a sharded store.
    placement: str = ""
    about: About | None = None
    #: A connection of the application, in whose transaction the run is submitted.
    connection: object | None = None
    #: The runs or the calls of the same batch that it depends on, and the dependency rule.
    depends_on: tuple[Any, ...] = ()
    when: Rule = Rule.ALL_SUCCEEDED
    #: For a task that is declared elsewhere: the options that the caller sets, in the names of ``JobFields``. The
    #: task catalog has the others. None: all options are set here.
    given: frozenset[str] | None = None


_OF_ONE_CALL = ("at", "delay", "unique", "tenant", "placement", "connection", "depends_on")


def of_one_call(options: Options) -> str | None:
    """Return the first option that applies to a single call only, so it cannot be used on a schedule."""
    usual = Options()
    if options.about is not None and options.about != About(tags=options.about.tags):
        return "about"
    return next((name for name in _OF_ONE_CALL if getattr(options, name) != getattr(usual, name)), None)


class Encoder(Protocol):
    """Encodes calls as payloads, and decodes results."""

    def encode(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> bytes: ...

    @property
    def first(self) -> str:
        """The name of the first argument; empty if there is none or it is unknown."""
        ...

    def encode_item(self, item: object) -> bytes:
        """Encode the payload of a call for one item."""
        ...

    def in_full(self, payload: bytes) -> bytes:
        """Return the payload with default values, for keys that name arguments."""
        ...

    def read_result(self, result: bytes | None) -> Any: ...


class Prepared(msgspec.Struct, Generic[T], frozen=True, eq=False):
    """A validated call that can be submitted alone or with others: ``app.submit_many([…])``."""

    task: str
    payload: bytes
    options: Options
    read: Callable[[bytes | None], Any]


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

    def prepare(self, *args: P.args, **kwargs: P.kwargs) -> Prepared[T]:
        """Return the validated call, to submit it with others by ``app.submit_many``."""
        return self.prepare_call(args, kwargs)

    def prepare_call(self, args: tuple[object, ...], arguments: Mapping[str, object]) -> Prepared[T]:
        """Return the validated call, with the named arguments as a mapping."""
        payload = self._arguments.encode(args, arguments)
        return Prepared(self._name, payload, self._with_keys(payload), self._arguments.read_result)

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
    ) -> "Prepared[FanOut[T]]":
        """Return a fan-out to submit with other calls.

        ``each``: instead of items, the parent run or step whose result is the list of items.
        """
        arguments = self._arguments
        payload = plan_of(
            self._name,
            items,
            arguments.encode_item,
            arguments.first,
            self._options,
            each=each,
            at_a_time=at_a_time,
            on_failure=on_failure,
        )
        return Prepared(
            FAN_OUT, payload, own_options(self._options), lambda result: read_fan_out(result, arguments.read_result)
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
        full = self._arguments.in_full(payload)
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
            policy = msgspec.structs.replace(policy, limits=limits_of(self._name, None, limits))
        if breaker is not None:
            policy = msgspec.structs.replace(policy, breaker=breaker_of(breaker))
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
            unique=options.unique if unique is None else _checked_unique(unique),
            tenant=options.tenant if tenant is None else check_name("tenant", tenant),
            placement=options.placement if placement is None else check_name("placement", placement),
            about=about,
            connection=options.connection if connection is None else check_connection(connection),
            depends_on=options.depends_on if depends_on is None else checked_parents(depends_on),
            when=options.when if when is None else checked_rule(when),
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
        app.give_to(self._call)
        self._transaction = transaction_parameter(name, function, self._call)
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
            return self.function(local_context(self._app, self.name, tenant, self._options.queue), *args, **kwargs)
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
        function = app.watched(self.function)
        if self._transaction is not None:
            in_transaction = invoke_in_transaction(app, arguments, function, self._transaction)
            return AsyncHandler(self.name, app.wrapped(in_transaction), heartbeat=self._heartbeat)
        if inspect.iscoroutinefunction(function):

            async def invoke(held: HeldRun) -> bytes | None:
                first, named = arguments.decode(held)
                return encode_result(await function(*first, **named))

            return AsyncHandler(self.name, app.wrapped(invoke), heartbeat=self._heartbeat)

        def invoke_and_block(held: HeldRun) -> bytes | None:
            first, named = arguments.decode(held)
            return encode_result(function(*first, **named))

        return SyncHandler(self.name, app.wrapped_blocking(invoke_and_block), self._executor, self._heartbeat)


class NamedArguments:
    """Encodes the arguments of a task that is known by name only. The worker validates them."""

    def encode(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> bytes:
        if args:
            raise Invalid("arguments", "must be named", "the function is not known here, nor the order it wants")
        return encode_result(dict(kwargs)) or b"{}"

    first = ""

    def encode_item(self, item: object) -> bytes:
        if not isinstance(item, Mapping):
            raise Invalid("items", f"{item!r:.40} does not name its arguments", 'for example [{"user_id": 1}]')
        return self.encode((), {str(name): value for name, value in item.items()})

    def in_full(self, payload: bytes) -> bytes:
        return payload

    def read_result(self, result: bytes | None) -> Any:
        return None if result is None else msgspec.json.decode(result)


def _checked_unique(unique: str | Unique) -> str | UniqueKey:
    return unique.kept if isinstance(unique, Unique) else check_name("unique", unique)


def new_runs(ids: Sequence[RunId], calls: "Sequence[Prepared[Any]]", tenant: str) -> list[NewRun]:
    """Build the runs of one batch, with the dependencies between them."""
    runs = [new_run(run_id, call, tenant) for run_id, call in zip(ids, calls, strict=True)]
    for call in calls:
        if call.task == FAN_OUT and not call.options.depends_on:
            check_each(call.payload)
    if not any(call.options.depends_on for call in calls):
        return runs
    here = {id(call): run_id for run_id, call in zip(ids, calls, strict=True)}
    # Added after the idempotency keys are computed, because ids of the same batch differ in every try.
    return [
        msgspec.structs.replace(run, after=family_of(call.options.depends_on, call.options.when, here))
        for run, call in zip(runs, calls, strict=True)
    ]


def given_options(runs: Sequence[NewRun], calls: "Sequence[Prepared[Any]]") -> dict[RunId, frozenset[str]]:
    """Return the options that callers set, for runs whose tasks are declared elsewhere."""
    return {run.id: call.options.given for run, call in zip(runs, calls, strict=True) if call.options.given is not None}


def new_run(run_id: RunId, call: Prepared[Any], tenant: str) -> NewRun:
    """Build the run of a call. Relative times are resolved by the store's clock, not by this machine's."""
    options = call.options
    run = NewRun(
        id=run_id,
        task=call.task,
        payload=call.payload,
        queue=options.queue,
        tenant=options.tenant or tenant,
        priority=options.priority,
        policy=options.policy,
        at=options.at,
        delay=options.delay,
        start_within=options.start_within,
        deadline=options.deadline,
        about=options.about,
        placement=options.placement,
    )
    if isinstance(options.unique, UniqueKey):
        run = msgspec.structs.replace(run, unique=options.unique)
    return made_once(run, options.unique) if isinstance(options.unique, str) else run
