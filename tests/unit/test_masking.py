"""Masking of secret values in text and JSON."""

import base64
import html
import itertools
import json
import re
import threading
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.core.model.base.masking import MASK, Mask, find_views, list_units
from mainspring.core.runtime.masking import Masks, masks
from mainspring.core.worker.reporting.attempt_reporter import AttemptReporter

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


def go_json(text: str) -> str:
    """As Go's encoding/json writes a string."""
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\x00{ord(character):04x}")
    return json.dumps(text, ensure_ascii=False).replace("\\u0000", "\\u")


def as_bytes(encode: Callable[[bytes], bytes]) -> Callable[[str], str]:
    return lambda text: encode(text.encode()).decode()


def wrapped(encode: Callable[[bytes], bytes], width: int, end: str = "\n") -> Callable[[str], str]:
    def encode_lines(text: str) -> str:
        whole = encode(text.encode()).decode()
        return end.join(whole[at : at + width] for at in range(0, len(whole), width))

    return encode_lines


def hexadecimal(data: bytes) -> bytes:
    return data.hex().encode()


ENCODINGS: dict[str, Callable[[str], str]] = {
    "JSON": json.dumps,
    "JSON with letters beyond ASCII": lambda text: json.dumps(text, ensure_ascii=False),
    "JSON of Go": go_json,
    "JSON with escaped slashes": lambda text: json.dumps(text).replace("/", "\\/"),
    "repr": repr,
    "repr of bytes": lambda text: repr(text.encode()),
    "HTML": html.escape,
    "HTML by numbers": lambda text: "".join(f"&#{ord(each)};" if not each.isalnum() else each for each in text),
    "HTML by hexadecimal numbers": lambda text: "".join(f"&#x{ord(each):X};" for each in text),
    "URL": quote,
    "URL without slashes": lambda text: quote(text, safe=""),
    "form": quote_plus,
    "URL in lower case": lambda text: re.sub("%..", lambda found: found[0].lower(), quote(text, safe="")),
    "hexadecimal": as_bytes(hexadecimal),
    "hexadecimal in upper case": lambda text: text.encode().hex().upper(),
    "hexadecimal with colons": lambda text: text.encode().hex(":"),
    "hexadecimal in lines": wrapped(hexadecimal, 60),
    "base64": as_bytes(base64.b64encode),
    "base64 for URLs": as_bytes(base64.urlsafe_b64encode),
    "base64 in lines of 76": as_bytes(base64.encodebytes),
    "base64 in lines of 64": wrapped(base64.b64encode, 64),
    "base64 in indented lines": wrapped(base64.b64encode, 64, "\r\n    "),
}
#: Not of control characters: none of these encoders writes them so that a line stays a line.
secrets = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=8, max_size=120
).filter(lambda text: text.strip() == text)


@pytest.mark.parametrize("outer", [None, *ENCODINGS])
@pytest.mark.parametrize("inner", ENCODINGS)
@given(value=secrets, before=around, after=around)
@settings(max_examples=15)
def test_no_combination_of_two_encodings_shows_a_value(
    inner: str, outer: str | None, value: str, before: str, after: str
) -> None:
    before, after = (text.encode("utf-8", "replace").decode() for text in (before, after))
    first, second = ENCODINGS[inner], ENCODINGS[outer] if outer else str
    text = second(before + first(value) + after)
    mask = Mask([value])
    assert mask.found_in(text)
    masked = mask.text(text)
    assert not mask.found_in(masked)
    assert second(first(value)).strip("\"'\n") not in masked
    if "numbers" not in f"{inner} {outer}" and not set(value) & set(before + after):
        assert len(text) <= len(masked) + mask.longest, "more is gone than the value"


@pytest.mark.parametrize("name", ["base64 in lines of 76", "base64 in lines of 64", "hexadecimal in lines"])
@given(value=secrets.filter(lambda text: len(text) >= 40), data=st.data())
def test_lines_of_an_encoded_value_are_masked_one_by_one(name: str, value: str, data: st.DataObject) -> None:
    """The log of a run is kept line by line, and none of its lines holds the whole value."""
    before, after = data.draw(st.text("\x01\x02", max_size=60)), data.draw(st.text("\x03\x04", max_size=60))
    mask = Mask([value])
    parts = {value.encode()[at : at + 8] for at in range(len(value.encode()) - 7)}
    for line in ENCODINGS[name](before + value + after).splitlines():
        for piece in mask.text(line).rstrip("=").split(MASK):
            for skipped in range(4):
                rest = piece[skipped : skipped + (len(piece) - skipped) // 4 * 4]
                shown = bytes.fromhex(rest) if name.startswith("hex") else base64.b64decode(rest)
                assert not any(part in shown for part in parts)


class NoReader:
    captures = True

    def wake(self, reporter: AttemptReporter[None]) -> None:
        return None

    async def flush(self, reporter: AttemptReporter[None]) -> None:
        return None


@pytest.mark.parametrize("sizes", [[1], [7, 3], [64], [1_000]])
def test_a_value_is_masked_wherever_written_text_is_cut_into_chunks(sizes: list[int]) -> None:
    value = "sesame <open> & 'shut'"
    masks.learn("chunks", value)
    try:
        lines = [encode(f"user:{value};") for encode in ENCODINGS.values()]
        text = "".join(f"{line}\n" for line in lines)
        reporter = AttemptReporter(None, NoReader(), tenant="chunks")
        at = 0
        for size in itertools.cycle(sizes):
            reporter.write(text[at : at + size])
            at += size
            if at >= len(text):
                break
        shown = "\n".join(reporter.take().log)
        assert not Mask([value]).found_in(shown)
        assert shown.count(MASK) >= len(ENCODINGS)
    finally:
        masks.forget()


@pytest.mark.parametrize(
    "unit", ["plain words and numbers 12 ", "QUJDREVGR0hJSktM", "4142434445464748", "%2541&amp;amp;\\\\u003c+", "\\"]
)
def test_the_work_of_masking_grows_with_the_text_and_not_with_its_nesting(unit: str) -> None:
    for length in (1_000, 10_000):
        data = (unit * length)[:length].encode()
        nested = data
        while len(nested) < 8 * length:
            nested = base64.b64encode(nested)
        for text in (data, nested):
            assert sum(len(view.data) for view in find_views(text)) <= 301 * len(text) + 65_536


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
    assert not Mask([value]).found_in(masked.decode()) or any(unit in MASK for unit in list_units(value))


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
