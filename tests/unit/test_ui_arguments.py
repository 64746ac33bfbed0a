"""The arguments of a task as fields of a form, and back."""

import msgspec
import pytest

from mainspring.http.problems import RequestFieldError
from mainspring.web.arguments import build_payload, get_form_field, read_arguments

SCHEMA = {
    "type": "object",
    "properties": {
        "user": {"type": "integer"},
        "name": {"type": "string", "default": "x"},
        "color": {"$ref": "#/$defs/Color", "default": "red"},
        "flag": {"type": "boolean"},
        "maybe": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None},
        "either": {"anyOf": [{"type": "number"}, {"type": "string"}]},
        "list": {"type": "array"},
    },
    "required": ["user"],
    "$defs": {"Color": {"enum": ["red", "blue"]}},
}


def test_each_argument_has_a_field_of_its_type() -> None:
    fields = {one.name: one for one in read_arguments(SCHEMA)}
    assert {name: one.kind for name, one in fields.items()} == {
        "user": "number",
        "name": "text",
        "color": "choice",
        "flag": "boolean",
        "maybe": "number",
        "either": "json",
        "list": "json",
    }
    assert (fields["user"].required, fields["name"].required, fields["name"].default) == (True, False, '"x"')
    assert fields["color"].options == (('"red"', "red"), ('"blue"', "blue"))


def test_a_schema_without_arguments_has_no_fields() -> None:
    schemas: tuple[dict[str, object], ...] = ({}, {"properties": {}}, {"properties": 7})
    for schema in schemas:
        assert read_arguments(schema) == []


def test_the_fields_make_a_payload() -> None:
    form = {
        "task": "t",
        "arg:number:user": "1",
        "arg:text:na:me": " as it is ",
        "arg:choice:color": '"blue"',
        "arg:boolean:flag": "false",
        "arg:json:list": "[1]",
        "arg:text:empty": "",
    }
    payload = build_payload(form)
    assert payload is not None
    assert msgspec.json.decode(payload) == {
        "user": 1, "na:me": " as it is ", "color": "blue", "flag": False, "list": [1]
    }  # fmt: skip
    assert build_payload({"task": "t", "payload": "{}"}) is None
    assert bytes(build_payload({"arg:text:a": ""}) or b"") == b"{}"


@pytest.mark.parametrize(("field", "text"), [("arg:number:user", "one"), ("arg:json:list", "[")])
def test_a_value_that_cannot_be_read_names_its_field(field: str, text: str) -> None:
    with pytest.raises(RequestFieldError) as raised:
        build_payload({field: text})
    assert raised.value.field == field


def test_an_error_of_an_argument_is_shown_at_its_field() -> None:
    form = {"arg:number:user": "1", "arg:json:list": "[]"}
    assert get_form_field(form, "payload.user") == "arg:number:user"
    assert get_form_field(form, "payload.list[0].a") == "arg:json:list"
    assert get_form_field(form, "payload.unknown") == "payload.unknown"
    assert get_form_field(form, "queue") == "queue"
