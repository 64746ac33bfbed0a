"""Error fingerprints: errors of one kind share one, although details differ between runs."""

import pytest

from mainspring.core.model.base.fingerprint import compute_fingerprint, parse_error_kind
from mainspring.core.model.runs.names import clean_error

TRACEBACK = """Traceback (most recent call last):
  File "/srv/app/orders.py", line {line}, in charge
    raise ValueError("no such order")
ValueError: no such order {order}
"""


def have_same_fingerprint(one: str, other: str) -> bool:
    return compute_fingerprint("error", one) == compute_fingerprint("error", other)


def test_a_fingerprint_has_sixteen_hexadecimal_digits() -> None:
    fingerprint = compute_fingerprint("error", "boom")
    assert len(fingerprint) == 16
    assert set(fingerprint) <= set("0123456789abcdef")


def test_a_fingerprint_is_the_same_on_every_machine() -> None:
    assert compute_fingerprint("error", "ValueError: no 17") == "07fa83a628feeee7"
    assert compute_fingerprint("deadline", "") == "c567d0e18f33177a"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("no order 17", "no order 4"),
        ("took 1.5 s", "took 23.75 s"),
        ("KeyError: 'ada'", "KeyError: 'bob smith'"),
        ('no "a"', 'no "b c"'),
        ("<Order object at 0x7f1c2a>", "<Order object at 0x55D0FF>"),
        ("run 01a1defca9257002800055a874f431bb", "run 01a1defca92570008000d450892fc8bf"),
        ("commit deadbeef", "commit 0123abcd9876"),
        (TRACEBACK.format(line=17, order=1), TRACEBACK.format(line=99, order=2)),
        ("boom", "boom\n\n  \n"),
        ("boom", "  boom  "),
        ("first\nboom", "second\nboom"),
    ],
)
def test_numbers_quotes_ids_and_line_numbers_do_not_change_a_fingerprint(one: str, other: str) -> None:
    assert have_same_fingerprint(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ValueError: no order 17", "KeyError: no order 17"),
        ("no order 17", "no customer 17"),
        ("boom", "BOOM"),
        ("boom", ""),
        ("a dead bee", "a bad bee"),
    ],
)
def test_different_wordings_have_different_fingerprints(one: str, other: str) -> None:
    assert not have_same_fingerprint(one, other)


def test_the_reason_changes_the_fingerprint() -> None:
    assert compute_fingerprint("error", "boom") != compute_fingerprint("timeout", "boom")


def test_the_kind_of_a_traceback_is_its_exception() -> None:
    assert parse_error_kind(TRACEBACK.format(line=17, order=4)) == "ValueError: no such order …"


def test_a_long_error_has_the_kind_of_its_end() -> None:
    error = "x" * 100_000 + "\nValueError: at the end 17"
    assert parse_error_kind(error) == "ValueError: at the end …"
    assert have_same_fingerprint(error, "ValueError: at the end 4")
    assert have_same_fingerprint(error, clean_error(error)), "before and after truncation"


@pytest.mark.parametrize("error", ["", "\n\n", "\ud800 lone", "\x00", "'unclosed", "größe 🕰"])
def test_every_text_has_a_fingerprint(error: str) -> None:
    assert len(compute_fingerprint("error", error)) == 16
