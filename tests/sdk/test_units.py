"""Durations are strings, timedeltas or seconds in everything that applications import; times are datetimes."""

import ast
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pytest

from mainspring import Context, Invalid, Mainspring, Retry
from mainspring.testing import TestScheduler
from tools.sdk_reference import GIVEN, MODULES

T = TypeVar("T", bound=ast.AST)
#: Parameters of this name are durations everywhere in the SDK.
DURATIONS = {
    *("deadline", "delay", "delays", "duration", "failover_after", "first_delay", "grace", "heartbeat", "interval"),
    *("jitter", "max_age", "max_delay", "pace", "patience", "pause", "per", "period", "start_within", "timeout"),
    "within",
}
PAST = datetime(2020, 1, 1, tzinfo=UTC)


def public_callables() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """The functions of the SDK, and the public methods and initializers of its classes, as they are written."""
    things = [getattr(importlib.import_module(name), thing) for name in MODULES for thing in _names(name)]
    for thing in (*things, *GIVEN):
        if not inspect.isclass(thing):
            yield thing.__name__, _parse(thing, ast.FunctionDef)
            continue
        for owner in thing.__mro__:
            if not owner.__module__.startswith("mainspring.sdk") and owner.__module__ != "mainspring.testing.scheduler":
                continue
            for node in _parse(owner, ast.ClassDef).body:
                if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    continue
                # Applications do not construct what they are given.
                if not node.name.startswith("_") or (node.name == "__init__" and thing not in GIVEN):
                    yield f"{thing.__name__}.{node.name}", node


def _names(module: str) -> list[str]:
    return list(importlib.import_module(module).__all__)


def _parse(thing: Any, kind: type[T]) -> T:
    [node] = ast.parse(textwrap.dedent(inspect.getsource(thing))).body
    assert isinstance(node, kind)
    return node


def test_no_public_parameter_takes_microseconds() -> None:
    found = dict(public_callables())
    assert {"RetryPolicy.__init__", "CatchUp.__init__", "Limit.__init__", "Mainspring.cron", "prefer"} <= found.keys()
    wrong = [
        f"{name}({argument.arg})"
        for name, function in found.items()
        for argument in (*function.args.args, *function.args.kwonlyargs)
        if argument.annotation is not None
        for words in [ast.unparse(argument.annotation)]
        if "Micros" in words or "Instant" in words or (argument.arg in DURATIONS and "Duration" not in words)
    ]
    assert wrong == []


async def test_a_due_time_in_the_past_is_refused_for_every_way_to_submit() -> None:
    app = Mainspring()

    @app.task
    async def work() -> None: ...

    async with TestScheduler(app) as s:
        late = work.options(at=PAST)
        flow = app.workflow("late")
        flow.add(late.prepare())
        for submit in (
            late.submit,
            lambda: app.submit_many([work.prepare(), late.prepare()]),
            lambda: app.broadcast(late.prepare()),
            flow.submit,
        ):
            with pytest.raises(Invalid, match=r"^at: 2020-01-01T00:00:00Z is \d+d\S* in the past \(leave it out"):
                await submit()
        assert len(s.runs(work)) == 0
        just_now = s.now - timedelta(seconds=4)
        await work.options(at=just_now).submit()
        await s.advance("1s")
        assert s.runs(work).succeeded == 1


async def test_a_repeated_submit_is_accepted_after_its_due_time() -> None:
    app = Mainspring()
    handles: list[str] = []

    @app.task
    async def child() -> None: ...

    @app.task
    async def parent(context: Context, at: datetime) -> None:
        [handle] = await context.spawn(child.options(at=at).prepare())
        handles.append(handle.id)
        if context.attempt == 1:
            raise Retry(after="1h")

    async with TestScheduler(app) as s:
        soon = s.now + timedelta(minutes=1)
        once = child.options(at=soon, unique="once")
        first = await once.submit()
        await parent.submit(soon)
        await s.advance("2h")
        assert (await once.submit()).id == first.id
        assert len(handles) == 2
        assert len(set(handles)) == 1
        assert s.runs(child).succeeded == 2
