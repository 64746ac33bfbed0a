"""Which tests CI runs once more, by the names that pytest knows them by."""

import pytest

from tools.again import alone


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("tests/unit/test_a.py::test_b", "tests/unit/test_a.py::test_b"),
        ("tests/unit/test_a.py::test_b@system", "tests/unit/test_a.py::test_b"),
        ("tests/ui/test_a.py::test_b[postgres]@ui-postgres", "tests/ui/test_a.py::test_b[postgres]"),
        ("tests/unit/test_a.py::test_b[a@b]", "tests/unit/test_a.py::test_b[a@b]"),
    ],
)
def test_the_group_is_no_part_of_a_name(name: str, known: str) -> None:
    assert alone(name) == known
