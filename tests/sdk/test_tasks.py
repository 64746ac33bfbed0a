"""A task is still a function; submitting it stores JSON that the worker reads back."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mainspring import Conflict, Context, Invalid, Mainspring, NotFound, Overlap, RetryPolicy
from mainspring.config.node import Node, Role
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import HOUR, MINUTE, SECOND
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.schedules.schedule import CronSchedule
from mainspring.sdk.calls.new_runs import build_run
from mainspring.sdk.calls.options import Options, PreparedCall


@dataclass
class Address:
    street: str
    number: int


@pytest.fixture(params=["memory:", "sqlite"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Mainspring:
    return Mainspring(str(tmp_path / "app.db") if request.param == "sqlite" else request.param)


@pytest.fixture
async def running(app: Mainspring) -> AsyncIterator[Mainspring]:
    """An application whose scheduler and worker the test starts after it has defined its tasks."""
    yield app
    await app.close()


async def start(app: Mainspring) -> Node:
    node = Node(app.settings(), {Role.SCHEDULER, Role.WORKER}, app, None)
    await node.runtime.open()
    app.use(node.runtime)
    await node.start()
    await app.declare()
    return node


async def test_a_decorated_function_can_still_be_called(app: Mainspring) -> None:
    @app.task
    async def double(number: int) -> int:
        return 2 * number

    @app.task(name="plus")
    def add(context: Context, left: int, right: int = 1) -> int:
        return left + right + context.attempt

    assert await double(4) == 8
    assert add(1, right=2) == 4


async def test_a_submitted_call_runs_with_its_arguments_and_keeps_its_result(running: Mainspring) -> None:
    seen: list[Address] = []

    @running.task(queue="mail", retries=0)
    async def deliver(context: Context, address: Address, express: bool = False) -> dict[str, object]:
        seen.append(address)
        return {"to": address.street, "express": express, "attempt": context.attempt}

    node = await start(running)
    try:
        handle = await deliver.submit(Address("Rue de la Paix", 5), express=True)
        view = await handle.wait("2m")
        assert view.state is RunState.SUCCEEDED
        assert view.result == b'{"to":"Rue de la Paix","express":true,"attempt":1}'
        assert seen == [Address("Rue de la Paix", 5)]
    finally:
        await node.stop()
        await node.runtime.close()


async def test_a_failing_call_is_retried_and_a_sync_task_runs_in_a_thread(running: Mainspring) -> None:
    tries: list[int] = []

    @running.task(retry=RetryPolicy(max_retries=2, backoff="fixed", first_delay="20ms"))
    async def shaky(context: Context) -> str:
        tries.append(context.attempt)
        if context.attempt < 3:
            raise ConnectionError("not yet")
        return "at last"

    @running.task(executor="thread")
    def blocking(seconds: float) -> float:
        return seconds

    node = await start(running)
    try:
        first, second = await shaky.submit(), await blocking.submit(0.5)
        assert (await first.wait("2m")).result == b'"at last"'
        assert tries == [1, 2, 3]
        assert (await second.wait("2m")).result == b"0.5"
        errors = await node.runtime.store.attempts(first.id)
        assert [attempt.number for attempt in errors] == [1, 2]
        assert all(attempt.error and "ConnectionError: not yet" in attempt.error for attempt in errors)
    finally:
        await node.stop()
        await node.runtime.close()


async def test_options_set_time_priority_and_queue_of_a_call(app: Mainspring) -> None:
    @app.task(timeout="30s", retries=7)
    async def later() -> None: ...

    handle = await later.options(delay="10m", priority=2, queue="slow", ordering_key="k").submit()
    view = await handle.view()
    assert (view.state, view.priority, view.queue) == (RunState.SCHEDULED, 2, "slow")
    assert abs(view.due - view.created_at - 10 * MINUTE) < SECOND
    moment = datetime.now(UTC) + timedelta(days=40)
    assert (await later.options(at=moment).submit()).state is RunState.SCHEDULED
    assert await handle.cancel() is RunState.CANCELLED
    with pytest.raises(NotFound):
        await app.handle("f" * 12 + "7" + "f" * 19).view()
    await app.close()


def test_relative_times_are_resolved_by_the_clock_of_the_store() -> None:
    options = Options(delay=SECOND, start_within=MINUTE, deadline=HOUR)
    call: PreparedCall[None] = PreparedCall("greet", b"{}", options, lambda result: None)
    run = build_run(RunId("f" * 12 + "7" + "f" * 19), call, "default")
    assert (run.at, run.delay, run.start_within, run.deadline) == (None, SECOND, MINUTE, HOUR)


async def test_invalid_arguments_are_rejected_at_submit(app: Mainspring) -> None:
    @app.task
    async def typed(number: int, word: str = "") -> None: ...

    with pytest.raises(Invalid, match=r"arguments: Expected `int`, got `str` - at `\$.number`"):
        await typed.submit("four")  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="missing a required argument: 'number'"):
        await typed.submit()  # type: ignore[call-arg]
    with pytest.raises(Invalid, match="unexpected keyword argument 'size'"):
        await typed.submit(1, size=2)  # type: ignore[call-arg]
    with pytest.raises(Invalid, match="payload: is"):
        await typed.submit(1, "x" * 300_000)
    with pytest.raises(Invalid, match="priority"):
        await typed.options(priority=11).submit(1)
    await app.close()


def test_a_function_that_cannot_be_a_task_is_rejected(app: Mainspring) -> None:
    with pytest.raises(Invalid, match="has no name of its own"):

        @app.task
        async def greedy(*numbers: int) -> None: ...

    with pytest.raises(Invalid, match="the context comes first"):

        @app.task
        async def misplaced(number: int, context: Context) -> None: ...

    @app.task
    async def twice() -> None: ...

    with pytest.raises(Conflict, match="'twice' is defined twice"):
        app.task(name="twice")(lambda: None)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"retries": "3"}, "retries"),
        ({"retries": 1.5}, "retries"),
        ({"retries": 1_001}, "retries"),
        ({"retry": "always"}, "retry"),
        ({"priority": "2"}, "priority"),
        ({"queue": 5}, "queue"),
        ({"name": 5}, "task"),
        ({"timeout": "soon"}, "timeout"),
        ({"guarantee": "exactly-once"}, "guarantee"),
        ({"executor": "bogus"}, "executor"),
    ],
)
def test_a_bad_option_of_a_task_is_named(app: Mainspring, options: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as refused:
        app.task(**options)(lambda: None)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"retries": "3"}, "retries"),
        ({"retries": 1.5}, "retries"),
        ({"priority": "2"}, "priority"),
        ({"queue": 5}, "queue"),
        ({"at": "2030"}, "at"),
        ({"at": datetime(2030, 1, 1)}, "at"),  # noqa: DTZ001
        ({"ordering_key": 5}, "orderingKey"),
        ({"guarantee": "exactly-once"}, "guarantee"),
        ({"delay": b"1s"}, "delay"),
        ({"start_within": []}, "start_within"),
    ],
)
def test_a_bad_option_of_a_call_is_named(app: Mainspring, options: dict[str, Any], field: str) -> None:
    @app.task
    async def noop() -> None: ...

    with pytest.raises(Invalid) as refused:
        noop.options(**options)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"overlap": "bogus"}, "overlap"),
        ({"catch_up": "sometimes"}, "catch_up.mode"),
        ({"catch_up": 5}, "catch_up.mode"),
        ({"start": datetime(2030, 1, 1)}, "start"),  # noqa: DTZ001
        ({"end": "2030"}, "end"),
        ({"jitter": None}, "jitter"),
        ({"name": 5}, "name"),
    ],
)
def test_a_bad_option_of_a_schedule_is_named(app: Mainspring, options: dict[str, Any], field: str) -> None:
    @app.task
    async def noop() -> None: ...

    for schedule in (partial(app.cron, "* * * * *"), partial(app.every, "1m")):
        with pytest.raises(Invalid) as refused:
            schedule(**options)(noop)
        assert refused.value.field == field


def test_a_bad_option_of_cron_or_every_is_named(app: Mainspring) -> None:
    @app.task
    async def noop() -> None: ...

    bad: list[tuple[Callable[[], Any], str]] = [
        (lambda: app.cron("* * * * *", dst_gap="bogus"), "dst_gap"),  # type: ignore[arg-type]
        (lambda: app.cron("* * * * *", dst_fold="bogus"), "dst_fold"),  # type: ignore[arg-type]
        (lambda: app.cron(5)(noop), "expression"),  # type: ignore[arg-type]
        (lambda: app.every("1m", mode="bogus")(noop), "mode"),  # type: ignore[arg-type]
        (lambda: app.every(None)(noop), "every"),  # type: ignore[arg-type]
    ]
    for schedule, field in bad:
        with pytest.raises(Invalid) as refused:
            schedule()
        assert refused.value.field == field
    with pytest.raises(Invalid, match="at most 100 years"):
        app.every("100000000d")(noop)


def test_a_callable_without_a_name_is_rejected_as_a_task(app: Mainspring) -> None:
    with pytest.raises(Invalid, match="has no name"):
        app.task(partial(print, "x"))
    with pytest.raises(Invalid, match="is not a function"):
        app.task("report")  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, [1, -math.inf], {"x": math.nan}, b"x", {1, 2}, ["a", {"deep": frozenset()}]]
)
async def test_an_argument_that_is_not_json_is_rejected_by_name(app: Mainspring, value: object) -> None:
    @app.task
    async def untyped(number, word=None): ...  # type: ignore[no-untyped-def]

    @app.task
    async def typed(number: Any, word: float | None = None) -> None: ...

    for submit in (untyped.submit(1, value), typed.submit(value)):
        with pytest.raises(Invalid, match=r"`(number|word)` .* JSON"):
            await submit
    with pytest.raises(Invalid, match=r"`word` .* JSON"):
        await typed.submit(1, math.nan)
    await app.close()


async def test_arguments_that_can_be_encoded_as_json_are_accepted(app: Mainspring) -> None:
    @app.task
    async def untyped(number, word=None): ...  # type: ignore[no-untyped-def]

    @app.task
    async def typed(blob: bytes, numbers: set[int], word: float | None = None) -> None: ...

    assert untyped.payload((1, None, "null"), {"a": Address("x", 1)})
    assert typed.payload(b"x", {1, 2}, None)


async def test_a_result_that_is_not_json_fails_the_run(running: Mainspring) -> None:
    @running.task(retries=0)
    async def divide() -> list[float | None]:
        return [None, math.nan]

    node = await start(running)
    try:
        view = await (await divide.submit()).wait("2m")
        assert view.state is RunState.FAILED
        assert "result: holds nan" in (view.error or "")
    finally:
        await node.stop()
        await node.runtime.close()


def test_a_schedule_that_can_never_fire_is_rejected_when_it_is_declared(app: Mainspring) -> None:
    with pytest.raises(Invalid, match="expression"):

        @app.cron("0 0 30 2 *")
        async def never() -> None: ...

    with pytest.raises(Invalid, match="timezone"):

        @app.cron("0 0 1 1 *", timezone="Europe/Pariss")
        async def nowhere() -> None: ...


async def test_schedules_are_declared_once_and_changed_by_a_new_version(tmp_path: Path) -> None:
    store = str(tmp_path / "app.db")

    def an_app(expression: str) -> Mainspring:
        app = Mainspring(store)

        @app.cron(expression, timezone="Europe/Paris", overlap=Overlap.SKIP)
        async def report() -> None: ...

        return app

    versions = []
    for expression in ("0 30 9 * * MON", "0 30 9 * * MON", "0 0 10 * * MON"):
        async with an_app(expression) as app:
            (job,) = await app.declare()
            assert isinstance(job.spec.schedule, CronSchedule)
            fires = job.next_fires()
            assert len(fires) == 5
            assert fires[0] == job.next_fire
            assert fires == sorted(fires)
            versions.append((job.id, job.version))
    assert len({job for job, _ in versions}) == 1
    assert [version for _, version in versions] == [1, 1, 2]


async def test_a_cron_runs_and_its_ticks_are_in_the_ledger(running: Mainspring) -> None:
    ticked = asyncio.Event()

    @running.cron("* * * * * *")
    async def every_second(context: Context) -> None:
        assert context.scheduled_at is not None
        ticked.set()

    node = await start(running)
    try:
        await ticked.wait()
        (job,) = await running.declare()
        entries = await node.runtime.store.ledger(job.id, 0, 1 << 60, 100)
        assert entries
        assert all(entry.decision == "run" and entry.scheduled_at % SECOND == 0 for entry in entries)
    finally:
        await node.stop()
        await node.runtime.close()


async def test_an_application_can_be_used_from_one_loop_after_another(tmp_path: Path) -> None:
    app = Mainspring(str(tmp_path / "app.db"))

    @app.task
    async def noop() -> None: ...

    async def once() -> RunId:
        async with app:
            return (await noop.submit()).id

    first = await asyncio.to_thread(asyncio.run, once())
    second = await asyncio.to_thread(asyncio.run, once())
    assert first != second


async def test_tags_of_a_task_are_on_its_runs_and_schedules_unless_a_call_gives_others() -> None:
    app = Mainspring("memory:")

    @app.every("1h", name="hourly")
    @app.task(tags=["billing", "eu"])
    async def bill() -> None: ...

    [(spec, _)] = app.schedules()
    assert spec.tags == ("billing", "eu")
    async with app:
        own = await (await bill.submit()).view()
        other = await (await bill.options(tags=("manual",)).submit()).view()
    assert own.about is not None
    assert other.about is not None
    assert (own.about.tags, other.about.tags) == (("billing", "eu"), ("manual",))
    with pytest.raises(Invalid, match="tags: 'billing' is not a list"):
        app.task(name="other", tags="billing")(bill.function)
