"""Request bodies that contain values of the run and of the payload."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.model.base.errors import Invalid
from mainspring.core.worker.builtin.template import check_template, fill_template, is_template
from tests.support.builders import a_held_run

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
)


@given(value=json_values)
def test_a_value_is_inserted_unchanged_whatever_it_contains(value: object) -> None:
    filled = fill_template({"order": {"$data": "a.0.b"}, "id": {"$run": "id"}}, {"a": [{"b": value}]}, a_held_run())
    assert filled["order"] == value
    assert set(filled) == {"order", "id"}


def test_fields_of_a_run_keep_their_type() -> None:
    held = a_held_run(attempt=3)
    body = {
        name: {"$run": name} for name in ("id", "attempt", "fence", "task", "queue", "tenant", "jobId", "scheduledAt")
    }
    assert fill_template(body, None, held) == {
        "id": held.id,
        "attempt": 3,
        "fence": held.fence,
        "task": "greet",
        "queue": "default",
        "tenant": "default",
        "jobId": None,
        "scheduledAt": None,
    }


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"$run": "secret"}, "'secret' is nothing of a run"),
        ({"$run": 1}, "1 is nothing of a run"),
        ({"$data": "b"}, "there is no 'b' in payload.data"),
        ({"$data": "a.7"}, "there is no 'a.7' in payload.data"),
        ({"$run": "id", "other": 1}, "stand alone"),
        ([{"deep": [{"$data": 7}]}], "is no path"),
    ],
)
def test_a_template_that_can_never_be_filled_is_rejected_early(body: object, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        check_template(body, {"a": [1]})


def test_a_short_body_cannot_become_a_huge_one() -> None:
    body = [{"$data": "long"}] * 10_000
    with pytest.raises(Invalid, match="takes too much"):
        check_template(body, {"long": "x" * 200_000})


def test_a_body_without_references_is_not_a_template() -> None:
    assert not is_template(b'{"price":"17 $","run":1}')
    assert is_template(b'{"a":{"$run":"id"}}')
