"""The arguments of a task as JSON Schema, and payloads checked against it as the worker reads them."""

import datetime
import decimal
import enum
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import annotated_types
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring import Context, Invalid
from mainspring.core.model.tasks.argument_schema import MAX_SCHEMA, compile_check
from mainspring.sdk.arguments.signature import Arguments


@dataclass
class Address:
    street: str
    number: int = 1


class Person(pydantic.BaseModel):
    age: int
    boss: "Person | None" = None


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


def schema_of(function: Any) -> dict[str, Any]:
    return Arguments("t", function).schema()


def checked(function: Any, payload: Any) -> str:
    """The error of a payload, empty if it fits."""
    check = compile_check("t", schema_of(function))
    assert check is not None
    try:
        check(msgspec.json.encode(payload))
    except Invalid as error:
        return str(error)
    return ""


def send(
    context: Context,
    user_id: int,
    to: Address,
    person: Person | None = None,
    kind: Literal["mail", "sms"] = "mail",
    color: Color = Color.RED,
    tags: list[str] = [],  # noqa: B006
    share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.5,
    level: Annotated[int, annotated_types.Ge(3)] = 3,
    pair: tuple[int, str] = (1, "a"),
    amount: decimal.Decimal = decimal.Decimal(1),
    extra: Any = None,
    when: datetime.datetime | None = None,
    counts: dict[str, int] = {},  # noqa: B006
) -> None: ...


GOOD = {"user_id": 1, "to": {"street": "s"}}


def test_the_schema_names_arguments_types_and_defaults() -> None:
    schema = schema_of(send)
    assert schema["required"] == ["user_id", "to"]
    properties = schema["properties"]
    assert "context" not in properties
    assert properties["user_id"] == {"type": "integer"}
    assert properties["kind"] == {"enum": ["mail", "sms"], "default": "mail"}
    assert properties["share"] == {"type": "number", "minimum": 0, "maximum": 1, "default": 0.5}
    assert properties["level"]["minimum"] == 3
    assert properties["tags"] == {"type": "array", "items": {"type": "string"}, "default": []}
    assert schema["$defs"]["Address"]["required"] == ["street"]
    assert schema["$defs"]["Person"]["properties"]["age"]["type"] == "integer"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"user_id": "1"}, "payload.user_id: expected 'int', got 'str'"),
        ({"to": {"street": 7}}, "payload.to.street: expected 'str', got 'int'"),
        ({"to": {}}, "payload.to.street: is missing"),
        ({"person": {"age": "old"}}, "payload.person.age: expected 'int', got 'str'"),
        ({"kind": "fax"}, "payload.kind: 'fax' is not one of its words (mail, sms)"),
        ({"color": "green"}, "payload.color: 'green' is not one of its words (blue, red)"),
        ({"tags": ["a", 1]}, "payload.tags[1]: expected 'str', got 'int'"),
        ({"share": 2}, "payload.share: must be at most 1"),
        ({"level": 2}, "payload.level: must be at least 3"),
        ({"pair": [1]}, "payload.pair: expected 'array' of length 2"),
        ({"counts": {"a": "b"}}, "payload.counts.a: expected 'int', got 'str'"),
        ({"usr": 1}, "payload.usr: is no argument of task 't' (it takes user_id, to,"),
    ],
)
def test_a_wrong_argument_is_named(change: dict[str, Any], words: str) -> None:
    assert checked(send, GOOD | change).startswith(words)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"person": {"age": 1, "boss": {"age": 2}}},
        {"color": "blue", "share": 1, "pair": [1, "b"], "counts": {"a": 1}},
        {"amount": 1.5},
        {"amount": "1.5"},
        {"extra": {"any": [1, None]}},
    ],
)
def test_a_payload_that_the_worker_reads_is_accepted(change: dict[str, Any]) -> None:
    assert checked(send, GOOD | change) == ""


def test_a_missing_payload_has_no_arguments() -> None:
    assert checked(send, None) == "payload.user_id: is missing"


def test_a_payload_that_is_no_object_is_rejected() -> None:
    assert checked(send, [1]) == "payload: expected 'object', got 'array'"


def test_a_function_without_arguments_takes_any_payload() -> None:
    def ping() -> None: ...

    assert schema_of(ping) == {"properties": {}}
    assert compile_check("t", schema_of(ping)) is None


@pytest.mark.parametrize(
    "settings",
    [pydantic.ConfigDict(), pydantic.ConfigDict(populate_by_name=True), pydantic.ConfigDict(extra="forbid")],
    ids=str,
)
def test_a_model_with_aliases_is_read_by_names_and_by_aliases(settings: pydantic.ConfigDict) -> None:
    model = pydantic.create_model(
        "Aliased",
        __config__=settings,
        user_id=(int, pydantic.Field(alias="userId")),
        boss=(Address | None, None),
        shop=(str, ...),
    )

    def task(user: Any, users: Any = ()) -> None: ...

    task.__annotations__.update(user=model, users=list[model])  # type: ignore[valid-type]
    for user in ({"user_id": 1, "shop": "a"}, {"userId": 1, "shop": "a"}):
        assert checked(task, {"user": user, "users": [user]}) == ""
    assert "payload.user.userId" in checked(task, {"user": {"userId": "x", "shop": "a"}})
    assert "payload.user.shop" in checked(task, {"user": {"userId": 1}})


def test_an_annotation_that_no_schema_describes_takes_any_value() -> None:
    def task(odd: object, number: int) -> None: ...

    assert checked(task, {"odd": "x", "number": 1}) == ""
    assert "payload.number" in checked(task, {"odd": "x", "number": "x"})


def test_the_default_of_a_password_is_not_in_the_schema() -> None:
    def task(user: str = "me", api_key: str = "hidden") -> None: ...

    assert schema_of(task)["properties"] == {"user": {"type": "string", "default": "me"}, "api_key": {"type": "string"}}
    assert "required" not in schema_of(task)


def test_a_very_large_schema_is_replaced_by_the_names() -> None:
    def task(a: int, b: str = "x" * MAX_SCHEMA) -> None: ...

    assert schema_of(task) == {"type": "object", "properties": {"a": {}, "b": {}}}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"not": {"type": "string"}}}},
        {"type": "object", "properties": {"a": {"anyOf": [{"properties": {}}, {"properties": {"b": {}}}]}}},
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}},
        {"type": "object", "properties": {"a": {"enum": [1.5, True]}}},
        {"type": "object", "properties": {"a": {"$ref": "#/elsewhere"}}},
        {"type": "object", "properties": {"a": {"type": "integer", "minimum": 1e300}}},
        {"type": "object", "properties": {"a": 7}},
        {"type": ["object", "string"], "properties": {"a-b": {"type": ["integer", "null"]}}},
        {"allOf": [{}, {}]},
    ],
)
def test_a_keyword_that_cannot_be_checked_rejects_nothing(schema: dict[str, Any]) -> None:
    check = compile_check("t", schema)
    if check is not None:
        check(b'{"a": {"b": 1}}' if "pattern" not in str(schema) and "minimum" not in str(schema) else b"{}")


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)


@given(
    st.dictionaries(st.sampled_from(["type", "enum", "const", "anyOf", "properties", "items", "required"]), ANY_JSON)
)
def test_any_schema_compiles(schema: dict[str, Any]) -> None:
    compile_check("t", schema)
