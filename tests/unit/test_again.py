"""Names of the tests that CI runs a second time, in the form that pytest accepts."""

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
def test_the_xdist_group_is_removed_from_a_test_name(name: str, known: str) -> None:
    assert alone(name) == known
