"""What is wrong with JSON is told with its place, and a choice with its words."""

from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.domain.misread import Misread, misread


class Leaf(msgspec.Struct, forbid_unknown_fields=True):
    many: int
    mode: Literal["none", "all"] | list[Literal["x", "y"]] = "none"


class Tree(msgspec.Struct, rename="camel"):
    some_leaves: dict[Annotated[str, msgspec.Meta(min_length=1)], Leaf] = {}
    deep: dict[str, dict[str, list[int]]] = {}


def said_of(value: object, kind: Any = Tree) -> Misread:
    data = msgspec.json.encode(value)
    with pytest.raises(msgspec.ValidationError) as failed:
        msgspec.json.decode(data, type=kind)
    return misread(failed.value, kind, data)


@pytest.mark.parametrize(
    ("value", "field", "reason", "hint"),
    [
        ({"someLeaves": {"a": {"many": 1}, "b": {"many": "x"}}}, "someLeaves.b.many", "expected 'int', got 'str'", ""),
        ({"someLeaves": {"a": {"many": 1}, "b": {}}}, "someLeaves.b.many", "is missing", ""),
        ({"someLeaves": {"b": {"man": 1}}}, "someLeaves.b.man", "is no field of this", "check its spelling"),
        (
            {"someLeaves": {"b": {"many": 1, "mode": "z"}}},
            "someLeaves.b.mode",
            "'z' is not one of its words",
            "all, none",
        ),
        (
            {"someLeaves": {"b": {"many": 1, "mode": ["z"]}}},
            "someLeaves.b.mode[0]",
            "'z' is not one of its words",
            "x, y",
        ),
        (
            {"someLeaves": {"a": {"many": 1}, "": {"many": 1}}},
            "someLeaves",
            "a name in it (''): expected 'str' of length >= 1",
            "",
        ),
        ({"deep": {"a": {}, "b": {"c": [1], "d": [1, None]}}}, "deep.b.d[1]", "expected 'int', got 'null'", ""),
        ([1], "", "expected 'object', got 'array'", ""),
    ],
)
def test_the_place_and_the_words(value: object, field: str, reason: str, hint: str) -> None:
    assert said_of(value) == Misread(field, reason, hint)


@given(st.integers(1, 40), st.data())
def test_the_first_that_is_wrong_is_named(count: int, data: st.DataObject) -> None:
    wrong = data.draw(st.sets(st.integers(0, count - 1), min_size=1))
    value = {f"n{number}": "x" if number in wrong else 1 for number in range(count)}
    assert said_of(value, dict[str, int]).field == f"n{min(wrong)}"


def test_without_the_data_there_are_dots() -> None:
    with pytest.raises(msgspec.ValidationError) as failed:
        msgspec.json.decode(b'{"deep": {"a": 1}}', type=Tree)
    assert misread(failed.value).field == "deep[...]"
