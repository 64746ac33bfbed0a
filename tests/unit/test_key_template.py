"""Limit and uniqueness keys that refer to fields of the payload."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.limits.key_template import policy_with_keys, rendered, with_keys
from mainspring.core.model.limits.limits import Limit
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.model.runs.unique import Unique
from tests.support.builders import a_run

PAYLOAD = b'{"customer": {"id": 7, "name": "Ada"}, "vip": true, "items": ["a", "b"], "none": null, "rate": 1.5}'


@pytest.mark.parametrize(
    ("template", "key"),
    [
        ("api", "api"),
        ("customer:{payload.customer.id}", "customer:7"),
        ("{payload.customer.name}/{payload.vip}", "Ada/true"),
        ("{payload.items.1}", "b"),
        ("{payload.rate}", "1.5"),
    ],
)
def test_fields_are_found_by_their_path(template: str, key: str) -> None:
    assert rendered(template, PAYLOAD, "limits.key") == key


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{payload.customer.age}", "'customer.age'"),
        ("{payload.items.2}", "'items.2'"),
        ("{payload.customer}", "not a text or a number"),
        ("{payload.none}", "not a text or a number"),
        ("{payload}", "not a text or a number"),
        ("{tenant}", "not a field of the payload"),
        ("{}", "not a field of the payload"),
        ("a{b", "brace"),
        ("a}b", "brace"),
        ("{{payload.vip}}", "brace"),
    ],
)
def test_a_template_that_cannot_be_rendered_is_rejected_by_field(template: str, message: str) -> None:
    with pytest.raises(Invalid, match=message) as refused:
        rendered(template, PAYLOAD, "limits.key")
    assert refused.value.field == "limits.key"


def test_a_payload_that_is_not_json_has_no_fields() -> None:
    assert rendered("api", b"\xff", "unique.key") == "api"
    with pytest.raises(Invalid, match="JSON"):
        rendered("{payload.a}", b"\xff", "unique.key")


@given(st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), st.integers() | st.text(), min_size=1))
def test_values_of_the_payload_are_inserted_unchanged(fields: dict[str, int | str]) -> None:
    payload = msgspec.json.encode(fields)
    template = "|".join(f"{{payload.{name}}}" for name in fields)
    assert rendered(template, payload, "limits.key") == "|".join(map(str, fields.values()))


def test_keys_of_a_run_are_rendered_and_a_policy_without_templates_is_not_copied() -> None:
    policy = RunPolicy(limits=(Limit(key="customer:{payload.customer.id}", most=3), Limit(key="api", most=9)))
    run = with_keys(a_run(payload=PAYLOAD, policy=policy, unique=Unique(key="{payload.customer.name}")))
    assert [limit.key for limit in run.policy.limits] == ["customer:7", "api"]
    assert run.unique == Unique(key="Ada")
    plain = RunPolicy(limits=(Limit(key="api", most=9),))
    assert policy_with_keys(plain, PAYLOAD) is plain
