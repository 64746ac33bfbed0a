"""Decode errors of JSON name the field, and for a choice the allowed values."""

from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.model.base.decode_errors import DecodeError, explain_decode_error


class Leaf(msgspec.Struct, forbid_unknown_fields=True):
    many: int
    mode: Literal["none", "all"] | list[Literal["x", "y"]] = "none"


class Bounds(msgspec.Struct):
    whole: Annotated[int, msgspec.Meta(ge=1, le=10)] = 1
    part: Annotated[float, msgspec.Meta(gt=0, lt=2.5)] = 1.0
    word: Annotated[str, msgspec.Meta(min_length=2, max_length=3)] = "ab"
    words: Annotated[list[str], msgspec.Meta(max_length=1)] = []


class Tree(msgspec.Struct, rename="camel"):
    some_leaves: dict[Annotated[str, msgspec.Meta(min_length=1)], Leaf] = {}
    deep: dict[str, dict[str, list[int]]] = {}


def decode_error(value: object, kind: Any = Tree) -> DecodeError:
    data = msgspec.json.encode(value)
    with pytest.raises(msgspec.ValidationError) as failed:
        msgspec.json.decode(data, type=kind)
    return explain_decode_error(failed.value, kind, data)


@pytest.mark.parametrize(
    ("value", "field", "reason", "hint"),
    [
        ({"someLeaves": {"a": {"many": 1}, "b": {"many": "x"}}}, "someLeaves.b.many", "expected 'int', got 'str'", ""),
        ({"someLeaves": {"a": {"many": 1}, "b": {}}}, "someLeaves.b.many", "is missing", ""),
        ({"someLeaves": {"b": {"man": 1}}}, "someLeaves.b.man", "is no field of this", "did you mean `many`?"),
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
            "a name in it (''): must have at least 1 character",
            "",
        ),
        ({"deep": {"a": {}, "b": {"c": [1], "d": [1, None]}}}, "deep.b.d[1]", "expected 'int', got 'null'", ""),
        ([1], "", "expected 'object', got 'array'", ""),
    ],
)
def test_a_decode_error_has_a_field_a_reason_and_a_hint(value: object, field: str, reason: str, hint: str) -> None:
    assert decode_error(value) == DecodeError(field, reason, hint)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"whole": 11}, "must be at most 10"),
        ({"whole": -3}, "must be at least 1"),
        ({"part": 0}, "must be more than 0"),
        ({"part": 2.5}, "must be less than 2.5"),
        ({"word": "a"}, "must have at least 2 characters"),
        ({"words": ["a", "b"]}, "must have at most 1 entry"),
    ],
)
def test_violated_bounds_are_described_in_words(value: object, reason: str) -> None:
    assert decode_error(value, Bounds).reason == reason


@given(st.integers(1, 40), st.data())
def test_the_first_wrong_field_is_named(count: int, data: st.DataObject) -> None:
    wrong = data.draw(st.sets(st.integers(0, count - 1), min_size=1))
    value = {f"n{number}": "x" if number in wrong else 1 for number in range(count)}
    assert decode_error(value, dict[str, int]).field == f"n{min(wrong)}"


def test_without_the_data_the_key_in_a_path_is_unknown() -> None:
    with pytest.raises(msgspec.ValidationError) as failed:
        msgspec.json.decode(b'{"deep": {"a": 1}}', type=Tree)
    assert explain_decode_error(failed.value).field == "deep[...]"
