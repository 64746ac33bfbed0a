"""Masking of secret values in text and JSON."""

import base64
import json
import threading
from urllib.parse import quote, quote_plus

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.domain.masking import MASK, Mask, forms_of
from mainspring.runtime.masking import Masks

values = st.text(min_size=6, max_size=60).filter(lambda text: text.strip() == text and "\0" not in text)
around = st.text(max_size=20)


@given(value=values, before=around, after=around)
def test_a_value_is_found_as_plain_text_and_in_common_encodings(value: str, before: str, after: str) -> None:
    mask = Mask([value])
    whole = before + value + after
    for text in (whole, json.dumps(whole), json.dumps(whole, ensure_ascii=False), before + repr(value) + after):
        assert mask.found_in(text)
        assert value not in mask.text(text) or value in before + MASK + after
    encodable = value.encode("utf-8", "replace").decode() == value
    if encodable:
        for text in (quote(value), quote(value, safe=""), quote_plus(value), value.encode().hex()):
            assert mask.found_in(before + text + after)


@given(
    value=st.text(alphabet=st.characters(codec="ascii", categories=["L", "N", "P"]), min_size=8, max_size=60),
    data=st.data(),
)
def test_a_value_is_found_in_base64_at_any_offset(value: str, data: st.DataObject) -> None:
    before, after = data.draw(st.binary(max_size=9)), data.draw(st.binary(max_size=9))
    mask = Mask([value])
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        assert mask.found_in(encode(before + value.encode() + after).decode())


def test_basic_authentication_and_lines_of_a_key_are_masked() -> None:
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG\n9w0BAQEFAASCBKcwggSj\n-----END KEY-----\n"
    mask = Mask(["correct horse", key])
    header = base64.b64encode(b"alice:correct horse").decode()
    assert "Y29ycmVj" not in mask.text(f"Authorization: Basic {header}")
    assert mask.text("third line is 9w0BAQEFAASCBKcwggSj.") == f"third line is {MASK}."


@given(
    value=values,
    deep=st.recursive(
        st.none() | st.booleans() | st.integers() | around, lambda x: st.lists(x) | st.dictionaries(around, x)
    ),
)
def test_masked_json_is_still_valid_json(value: str, deep: object) -> None:
    masks = Masks()
    masks.learn("a", value)
    encoded = msgspec.json.encode({"deep": deep, "hidden": [value, {value: 1}]})
    masked = masks.json("a", encoded)
    msgspec.json.decode(masked)
    assert not Mask([value]).found_in(masked.decode()) or any(form in MASK for form in forms_of(value))


def test_a_number_is_masked() -> None:
    masks = Masks()
    masks.learn("a", "123456789")
    assert masks.json("a", b'{"pin":123456789,"n":1}') == b'{"pin":"***","n":1}'


def test_values_are_masked_for_their_own_tenant_only() -> None:
    masks = Masks()
    masks.learn("a", "open sesame")
    assert masks.text("b", "open sesame") == "open sesame"
    assert masks.text("a", "open sesame") == MASK
    assert masks.everything("open sesame") == MASK, "the log of the process belongs to no tenant"


def test_without_values_nothing_is_copied() -> None:
    masks = Masks()
    assert not masks.any
    data = b'{"a":1}'
    assert masks.json("a", data) is data
    assert Mask([]).text("a") == "a"


@pytest.mark.parametrize("text", ["one two", "two one"])
def test_overlapping_values_are_both_masked(text: str) -> None:
    assert Mask(["secret-one", "secret-one-and-two"]).text("secret-one-and-two") == MASK
    assert Mask([text]).text(text) == MASK


def test_a_value_is_masked_as_soon_as_any_thread_has_learned_it() -> None:
    masks = Masks()
    together = threading.Barrier(8)
    seen: list[str] = []

    def learn_and_mask() -> None:
        together.wait()
        masks.learn("a", "open sesame")
        seen.append(masks.text("a", "open sesame"))

    threads = [threading.Thread(target=learn_and_mask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [MASK] * 8
