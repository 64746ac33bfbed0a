"""What the annotations of a task promise holds for its arguments and its result."""

import dataclasses
from typing import Annotated, Any, NamedTuple, get_origin

import msgspec
import pydantic
import pytest
from pydantic.alias_generators import to_camel
from typing_extensions import TypedDict

from mainspring import Invalid, Limit, Mainspring, RetryPolicy, Unique
from mainspring.core.model.runs.run import RunState
from mainspring.testing import TestScheduler


class Order(pydantic.BaseModel):
    order_id: int = pydantic.Field(alias="orderId")


class Written(pydantic.BaseModel):
    """It is written by another name than it is read by."""

    order_id: int = pydantic.Field(serialization_alias="orderId")


class Nested(pydantic.BaseModel):
    orders: list[Order]


class Renamed(pydantic.BaseModel):
    """No name is both read and written: only the name of the field works both ways."""

    model_config = pydantic.ConfigDict(extra="forbid")
    order_id: int = pydantic.Field(validation_alias="orderId", serialization_alias="id")
    parts: list["Renamed"] = []
    shop: str = pydantic.Field("web", alias="shopName")


class Chosen(pydantic.BaseModel):
    """The outer model reads its own names, the inner one does not."""

    model_config = pydantic.ConfigDict(alias_generator=to_camel, populate_by_name=True)
    first_order: Renamed


@dataclasses.dataclass
class Counted:
    many: Annotated[int, pydantic.Field(ge=1)]


@pydantic.dataclasses.dataclass
class Checked:
    many: int = pydantic.Field(ge=1)


class Named(NamedTuple):
    many: Annotated[int, pydantic.Field(ge=1)]


class Typed(TypedDict):
    many: Annotated[int, pydantic.Field(ge=1)]


class Struct(msgspec.Struct):
    many: Annotated[int, pydantic.Field(ge=1)]


@pytest.fixture
def app() -> Mainspring:
    return Mainspring()


@pytest.mark.parametrize(
    "value",
    [
        Order(orderId=7),
        Written(order_id=7),
        Nested(orders=[Order(orderId=7)]),
        Renamed.model_validate({"orderId": 7, "parts": [{"orderId": 8, "shopName": "app"}], "shopName": "app"}),
        Chosen.model_validate({"firstOrder": {"orderId": 7}}),
    ],
    ids=["alias", "written", "nested", "renamed", "mixed"],
)
async def test_a_pydantic_model_with_aliases_is_submitted_and_read_back(app: Mainspring, value: Any) -> None:
    async def echo(value: Any) -> Any:
        return value

    echo.__annotations__.update(value=type(value), **{"return": type(value)})
    task: Any = app.task(echo)
    async with TestScheduler(app):
        assert await (await task.submit(value)).result() == value


class Upload(pydantic.BaseModel):
    content: bytes


class Base64Upload(Upload):
    model_config = pydantic.ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")


async def test_a_pydantic_model_with_bytes_names_the_setting_that_it_needs(app: Mainspring) -> None:
    @app.task
    async def store(upload: Upload) -> None: ...

    @app.task
    async def store_base64(upload: Base64Upload) -> Base64Upload:
        return upload

    with pytest.raises(Invalid, match=r"Upload cannot be written as JSON: .*ser_json_bytes=\"base64\""):
        await store.submit(Upload(content=b"\x00\xff"))
    async with TestScheduler(app):
        value = Base64Upload(content=b"\x00\xff")
        assert await (await store_base64.submit(value)).result() == value


@pytest.mark.parametrize(
    "kind",
    [
        Annotated[int, msgspec.Meta(ge=1)],
        Annotated[int, pydantic.Field(ge=1)],
        list[Annotated[int, pydantic.Field(ge=1)]] | int,
    ],
    ids=["msgspec", "pydantic", "inside"],
)
async def test_constraints_of_annotations_are_checked_at_submit(app: Mainspring, kind: Any) -> None:
    async def count(many: Any) -> None: ...

    count.__annotations__["many"] = kind
    task: Any = app.task(count)
    bad: Any = [0] if "list" in str(kind) else 0
    async with TestScheduler(app) as s:
        with pytest.raises(Invalid, match="arguments"):
            await task.submit(bad)
        await task.submit([1] if "list" in str(kind) else 1)
        assert s.runs(task).succeeded == 1


@pytest.mark.parametrize("kind", [Counted, Checked, list[Counted], Counted | None, Named, Typed])
async def test_constraints_of_fields_are_checked_at_submit(app: Mainspring, kind: Any) -> None:
    async def count(many: Any) -> int:
        one = many[0] if isinstance(many, list) else many
        result: int = one["many"] if isinstance(one, dict) else one.many if not isinstance(one, tuple) else one[0]
        return result

    count.__annotations__["many"] = kind
    task: Any = app.task(count)

    def value(many: int) -> Any:
        if kind is Checked:
            made: Any = object.__new__(Checked)
            made.many = many
            return made
        if kind is Typed:
            return {"many": many}
        if kind is Named:
            return Named(many)
        return [Counted(many)] if get_origin(kind) is list else Counted(many)

    async with TestScheduler(app):
        with pytest.raises(Invalid, match="greater than or equal to 1"):
            await task.submit(value(0))
        assert await (await task.submit(value(1))).result() == 1


def test_constraints_that_neither_library_reads_are_refused_at_declaration(app: Mainspring) -> None:
    async def count(many: Struct) -> None: ...

    with pytest.raises(Invalid, match="cannot be read"):
        app.task(count)


async def test_text_constraints_of_pydantic_are_checked_and_applied(app: Mainspring) -> None:
    @app.task
    async def shout(
        text: Annotated[str, pydantic.StringConstraints(strip_whitespace=True, min_length=2)],
    ) -> str:
        return text.upper()

    async with TestScheduler(app) as s:
        with pytest.raises(Invalid, match="at least 2 characters"):
            await shout.submit("x")
        await shout.submit("  hey ")
        assert s.runs(shout).results == ["HEY"]


async def test_object_stands_for_any_json_value(app: Mainspring) -> None:
    @app.task
    async def keep(more: dict[str, object], value: object) -> object:
        return [value, more]

    async with TestScheduler(app):
        handle = await keep.submit({"b": 2.5}, {"a": [1, None]})
        assert await handle.result() == [{"a": [1, None]}, {"b": 2.5}]


async def test_a_result_of_another_type_than_declared_is_a_clear_error(app: Mainspring) -> None:
    @app.task
    async def number() -> int:
        return "seven"  # type: ignore[return-value]

    async with TestScheduler(app) as s:
        handle = await number.submit()
        with pytest.raises(Invalid, match=r"result: is not what .*number.* declares to return: Expected `int`"):
            await handle.result()
        assert s.runs(number).results == ["seven"]


@pytest.mark.parametrize("result", [{1, object()}, float("nan"), "x" * 20_000_000], ids=["type", "nan", "large"])
async def test_a_result_that_cannot_be_stored_fails_without_another_attempt(app: Mainspring, result: object) -> None:
    calls = 0

    @app.task(retries=5)
    async def charge() -> object:
        nonlocal calls
        calls += 1
        return result

    async with TestScheduler(app) as s:
        await charge.submit()
        await s.advance("2h")
        assert s.runs(charge).last.state is RunState.FAILED
    assert calls == 1


def test_retries_and_the_count_of_a_retry_policy_must_agree(app: Mainspring) -> None:
    with pytest.raises(Invalid, match="retries: 2 contradicts max_retries=7"):
        app.task(retries=2, retry=RetryPolicy(max_retries=7))(lambda: None)

    @app.task(retries=2, retry=RetryPolicy(backoff="fixed"))
    async def right() -> None: ...

    assert right.default_options.policy.retry == RetryPolicy(max_retries=2, backoff="fixed").kept
    with pytest.raises(Invalid, match="contradicts"):
        right.options(retries=1, retry=RetryPolicy(max_retries=9))
    assert right.options(retries=1)._options.policy.retry == RetryPolicy(max_retries=1, backoff="fixed").kept


@pytest.mark.parametrize("key", ["x:{a}", "x:{payload.}", "x:{payload.a", "x:{payload..b}"])
def test_a_key_template_that_no_payload_can_fill_is_refused_at_once(key: str) -> None:
    with pytest.raises(Invalid, match=r"limits\.key"):
        Limit(key, 3)
    with pytest.raises(Invalid, match=r"unique\.key"):
        Unique(key)


def test_a_limit_that_names_an_unknown_argument_is_refused_at_declaration(app: Mainspring) -> None:
    with pytest.raises(Invalid, match=r"is not an argument of the task.*its arguments: client"):

        @app.task(limits=[Limit("c:{payload.customer.id}", 1)])
        async def call(client: dict[str, str]) -> None: ...
