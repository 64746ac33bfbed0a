"""Masking of payload fields on dashboard pages."""

import msgspec
import pytest

from mainspring.http.problems import RequestFieldError
from mainspring.http.schemas.common import Page
from mainspring.web.page import read_json_field
from mainspring.web.redaction import MASK, Redactor


class Thing(msgspec.Struct, frozen=True):
    name: str
    payload: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    parts: dict[str, "Thing"] = {}


def redact(*names: str, payload: object) -> object:
    thing = Thing("password", msgspec.Raw(msgspec.json.encode(payload)))
    [found] = Redactor(names)(Page(items=[thing])).items
    assert found.name == "password"
    return msgspec.json.decode(found.payload)


def test_fields_are_masked_at_any_depth() -> None:
    payload = {"user": 1, "Password": "x", "cards": [{"access_token": "y", "tokens": None}], "password_hint": "z"}
    assert redact("password", "*token*", payload=payload) == {
        "user": 1,
        "Password": MASK,
        "cards": [{"access_token": MASK, "tokens": None}],
        "password_hint": "z",
    }


@pytest.mark.parametrize("payload", [None, 7, "password", ["password"], {"user": {"name": "ada"}}])
def test_a_page_without_such_fields_is_not_copied(payload: object) -> None:
    raw = msgspec.Raw(msgspec.json.encode(payload))
    page = Page(items=[Thing("a", raw), Thing("b", parts={"c": Thing("c", raw)})])
    assert Redactor(["password"])(page) is page


def test_fields_of_nested_structs_are_masked() -> None:
    raw = msgspec.Raw(b'{"password": 1}')
    found = Redactor(["password"])(Thing("a", parts={"b": Thing("b", raw)}))
    assert msgspec.json.decode(found.parts["b"].payload) == {"password": MASK}


def test_a_mask_is_not_accepted_as_a_value() -> None:
    with pytest.raises(RequestFieldError, match="stands for a hidden value"):
        read_json_field({"payload": f'{{"password": "{MASK}"}}'}, "payload")
    assert read_json_field({"payload": " "}, "payload") is None
