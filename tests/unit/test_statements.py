"""SQL statements with named parameters and constants."""

import pytest

from mainspring.stores.statements import Statement, insert_constants


def test_numbers_each_parameter_once_in_the_order_of_first_use() -> None:
    statement = Statement("SELECT :now::bigint, id FROM run WHERE id = ANY (:ids::uuid[]) AND due < :now")
    assert statement.text == "SELECT $1::bigint, id FROM run WHERE id = ANY ($2::uuid[]) AND due < $1"
    assert statement.bind(ids=["a"], now=7) == (statement.text, 7, ["a"])


@pytest.mark.parametrize("values", [{"now": 1}, {"now": 1, "ids": [], "limit": 2}, {"now": 1, "id": []}])
def test_rejects_missing_and_unknown_parameters(values: dict[str, object]) -> None:
    with pytest.raises(TypeError):
        Statement("SELECT :now, :ids").bind(**values)


def test_inserts_constants_as_literals() -> None:
    text = "SELECT state::smallint FROM run WHERE state = :RUNNING AND id = :run"
    assert insert_constants(text, {"RUNNING": 4}) == "SELECT state::smallint FROM run WHERE state = 4 AND id = :run"


def test_rejects_an_unknown_constant() -> None:
    with pytest.raises(KeyError):
        insert_constants("SELECT :RUNING", {"RUNNING": 4})
