"""References to secrets in payloads, and which tenant may use which secret."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.secrets import SecretRules, check_secret_value, fill, fill_json, mentions, names_in

names = st.from_regex(r"[A-Z][A-Z0-9_]{0,20}", fullmatch=True)
json_values = st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x))


@given(name=names, before=st.text(), after=st.text())
def test_a_reference_is_found_and_filled(name: str, before: str, after: str) -> None:
    before, after = before.replace("$", ""), after.replace("$", "")
    text = before + "${secret:" + name + "}" + after
    assert names_in({"a": [text]}) == {name}
    assert fill(text, lambda asked: f"<{asked}>") == f"{before}<{name}>{after}"


@given(value=json_values, name=names)
def test_a_secret_value_can_only_become_part_of_a_string(value: object, name: str) -> None:
    wild = '"}, "admin": true, ${secret:OTHER}'
    filled = fill_json({"a": value, "b": "${secret:" + name + "}"}, lambda _: wild)
    assert filled["b"] == wild, "references inside a value are not resolved"
    assert set(filled) == {"a", "b"}


@pytest.mark.parametrize(
    "text", ["${secret:}", "${secret:lower}", "${secret:A B}", "${secret:A", "${secret:A}${secret:"]
)
def test_an_invalid_reference_is_rejected(text: str) -> None:
    with pytest.raises(Invalid, match=r"payload\.headers\.Authorization"):
        names_in({"headers": {"Authorization": text}})


def test_a_field_name_cannot_contain_a_secret() -> None:
    with pytest.raises(Invalid, match="a name of a field cannot hold a secret"):
        names_in({"${secret:A}": 1})


def test_a_payload_that_is_nested_too_deeply_is_rejected() -> None:
    value: object = "${secret:A}"
    for _ in range(5_000):
        value = [value]
    with pytest.raises(Invalid, match="nested too deeply"):
        names_in(value)


def test_a_short_payload_cannot_become_a_huge_one() -> None:
    names_in(["${secret:A}"] * 100)
    with pytest.raises(Invalid, match="refers 101 times"):
        names_in("${secret:A}" * 101)


def test_only_the_default_tenant_may_use_secrets_by_default() -> None:
    rules = SecretRules()
    assert rules.allows("default", "ANYTHING")
    assert not rules.allows("acme", "ANYTHING")
    with pytest.raises(Invalid, match=r"tenant 'acme' may not use the secret API_KEY"):
        rules.check("payload", "acme", "API_KEY")


def test_a_tenant_may_use_the_secrets_that_it_was_granted() -> None:
    rules = SecretRules({"acme": ("API_KEY",)})
    assert rules.allows("acme", "API_KEY")
    assert not rules.allows("acme", "OTHER")
    assert not rules.allows("default", "API_KEY"), "a configured table replaces the default"


def test_escaped_references_are_detected() -> None:
    assert mentions(b'{"a":"${secret:A}"}')
    assert mentions(b'{"a":"\\u0024{secret:A}"}')
    assert not mentions(b'{"a":"plain"}')


@pytest.mark.parametrize("value", ["", "short", "a" * 100_000, "zero\0inside"])
def test_a_value_that_cannot_be_masked_is_rejected(value: str) -> None:
    with pytest.raises(Invalid, match=r"^NAME: the secret ") as refused:
        check_secret_value("NAME", value)
    assert not value or value not in str(refused.value)
