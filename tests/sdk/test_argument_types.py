"""A value that is submitted reaches the handler as the type that is declared, and so does a result the caller."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from types import GenericAlias
from typing import Any, NoReturn

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mainspring import Invalid, Mainspring
from mainspring.testing import TestScheduler
from tests.support import typed_tasks
from tests.support.typed_tasks import CARD, EVERYTHING, KINDS, TRANSFER, Card, Color, Kind, Money, Order

each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))


def assert_same(found: Any, given: Any) -> None:
    """As ``==``, and of the same types all through: 1 is not 1.0, nor True."""
    assert type(found) is type(given), (found, given)
    assert found == given
    if isinstance(given, datetime):
        assert found.utcoffset() == given.utcoffset()
    if isinstance(given, dict):
        for name, value in given.items():
            assert_same(found[name], value)
    elif isinstance(given, list | tuple):
        for one, other in zip(found, given, strict=True):
            assert_same(one, other)


def echo_task(app: Mainspring, kind: Kind, seen: list[Any]) -> Any:
    """A task of four arguments: a value of the type itself, one that may be missing, a list and a dict of them."""

    async def echo(value: Any, maybe: Any = None, many: Any = (), table: Any = None) -> Any:
        seen.append((value, maybe, many, table))
        return [value]

    annotation, many_of = kind.annotation, GenericAlias(list, (kind.annotation,))
    echo.__annotations__ = {
        "value": annotation,
        "maybe": annotation | None,
        "many": many_of,
        "table": GenericAlias(dict, (str, annotation)) | None,
        "return": many_of,
    }
    return app.task(echo)


@each_kind
def test_every_value_of_a_type_is_what_the_handler_sees_and_its_result(kind: Kind) -> None:
    app = Mainspring("memory:")
    seen: list[Any] = []
    echo = echo_task(app, kind, seen)
    with TestScheduler(app) as s:

        @settings(max_examples=25, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(kind.values, st.none() | kind.values, st.lists(kind.values, max_size=3))
        def check(value: Any, maybe: Any, many: list[Any]) -> None:
            table = {"first": value}
            handle = echo.sync.submit(value, maybe, many=many, table=table)
            s.run_until_idle()
            assert_same(handle.result(), [value])
            assert_same(seen[-1], (value, maybe, many, table))

        check()


@each_kind
def test_a_fan_out_and_a_schedule_give_every_type(kind: Kind) -> None:
    app = Mainspring("memory:")
    seen: list[Any] = []
    echo = echo_task(app, kind, seen)
    app.every("1h")(echo.prepare(kind.example, many=[kind.example]))
    with TestScheduler(app) as s:
        handle = echo.sync.map([kind.example, kind.example])
        s.run_until_idle()
        assert [one for result in handle.result().results or [] for one in result or []] == [kind.example] * 2
        assert_same(seen, [(kind.example, None, (), None)] * 2)
        seen.clear()
        s.advance("1h")
        assert_same(seen, [(kind.example, None, [kind.example], None)])


async def test_a_child_process_sees_the_declared_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAINSPRING_STORE", str(tmp_path / "types.db"))
    app = typed_tasks.app
    async with app.running(path="tests.support.typed_tasks:app"):
        money = {"a": Money(Decimal("1.10"))}
        process, *found = await (await typed_tasks.echo.submit(EVERYTHING, CARD, money)).result("2m")
        assert process != os.getpid()
        assert_same(found, [EVERYTHING, CARD, None, money])
        _, *found = await (await typed_tasks.echo.submit(EVERYTHING, TRANSFER)).result("2m")
        assert_same(found, [EVERYTHING, None, TRANSFER, None])
        many = await typed_tasks.price_of.map([EVERYTHING.order] * 2)
        assert (await many.result("2m")).results == [Money(Decimal("9.90"))] * 2
        one = await typed_tasks.price_of.submit(EVERYTHING.order, Decimal("2.0"))
        assert_same(await one.result("2m"), Money(Decimal("19.800")))


class Mixed(Enum):
    NUMBER = 1
    TEXT = "1"


@dataclass
class Holder:
    where: list[Path]


@pytest.mark.parametrize(
    ("annotation", "problem"),
    [
        (complex, "complex"),
        (Path, "Path"),
        (list[Path] | None, "Path"),
        (Holder, "Path"),
        (Callable[[], int], "Callable"),
        (Iterable[int], "Iterable"),
        (dict[tuple[int, int], str], "key of a dict"),
        (Mixed, "Enums must contain either all str or all int values"),
        (datetime | str, "more than one str-like type"),
        (datetime | date, "more than one str-like type"),
        (Order | Money, "more than one dict-like type"),
        (Card | datetime | str, "more than one str-like type"),
    ],
    ids=str,
)
def test_a_type_without_a_form_in_json_is_refused_at_declaration(annotation: Any, problem: str) -> None:
    async def sell(amount: int, extra: Any) -> Any: ...

    app = Mainspring("memory:")
    sell.__annotations__ = {"amount": int, "extra": annotation}
    with pytest.raises(Invalid, match=rf"sell: the argument 'extra' cannot be read from JSON: .*{problem}"):
        app.task(sell)
    sell.__annotations__ = {"return": annotation}
    with pytest.raises(Invalid, match=rf"sell: its result cannot be read from JSON: .*{problem}"):
        app.task(sell)


def test_a_task_that_always_raises_can_say_so() -> None:
    app = Mainspring("memory:")

    @app.task
    def give_up(color: Color) -> NoReturn:
        raise ValueError(color)

    assert give_up.payload(Color.RED) == b'{"color":"red"}'
