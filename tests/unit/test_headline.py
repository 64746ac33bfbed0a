"""The headline of an error: the line that lists and logs show."""

import asyncio
import traceback
from collections.abc import Callable

import pytest

from mainspring.core.model.base.fingerprint import compute_fingerprint, parse_error_kind, parse_exception_name
from mainspring.core.model.base.headline import find_headline
from mainspring.core.model.runs.names import clean_error


class OutOfStock(Exception):
    pass


def fail_simply() -> None:
    raise ValueError("no order 17")


def fail_in_two_lines() -> None:
    raise ValueError(
        "no order 17\nDETAIL:  Key (id)=(17) is missing.\n(Background on this error at: https://e.invalid)"
    )


def fail_without_error_in_its_name() -> None:
    raise OutOfStock("no\nHint: order more")


def fail_without_a_message() -> None:
    raise KeyError


def fail_because_of_another() -> None:
    try:
        fail_in_two_lines()
    except ValueError as error:
        raise OutOfStock("no\nmore") from error


def fail_with_a_note() -> None:
    error = ValueError("no order 17")
    error.add_note("seen on the way: none")
    raise error


def fail_in_a_group() -> None:
    async def many() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.to_thread(fail_in_two_lines))

    asyncio.run(many())


def fail_in_a_group_that_was_not_raised_inside() -> None:
    raise ExceptionGroup("two\nlines", [OutOfStock("a"), OutOfStock("b")])


def fail_to_parse() -> None:
    compile("a b", "<order>", "exec")


CASES = [
    (fail_simply, "ValueError: no order 17"),
    (fail_in_two_lines, "ValueError: no order 17"),
    (fail_without_error_in_its_name, f"{__name__}.OutOfStock: no"),
    (fail_without_a_message, "KeyError"),
    (fail_because_of_another, f"{__name__}.OutOfStock: no"),
    (fail_with_a_note, "ValueError: no order 17"),
    (fail_in_a_group, "ValueError: no order 17"),
    (fail_in_a_group_that_was_not_raised_inside, "ExceptionGroup: two"),
    (fail_to_parse, "SyntaxError: invalid syntax"),
]


def record(fail: Callable[[], None]) -> str:
    try:
        fail()
    except Exception:
        return traceback.format_exc()
    raise AssertionError("it did not fail")


@pytest.mark.parametrize(("fail", "headline"), CASES)
def test_the_headline_is_the_first_line_of_the_last_exception(fail: Callable[[], None], headline: str) -> None:
    error = record(fail)
    assert find_headline(error) == headline
    assert find_headline(error.rstrip()) == headline
    assert parse_exception_name(error) == headline.partition(":")[0]


@pytest.mark.parametrize(("fail", "headline"), CASES)
def test_a_cause_below_a_traceback_is_the_headline(fail: Callable[[], None], headline: str) -> None:
    assert find_headline(f"{record(fail)}TimeoutError: took longer than 3s") == "TimeoutError: took longer than 3s"
    assert find_headline(f"{record(fail)}ScriptFailed: exit code 1") == "ScriptFailed: exit code 1"


@pytest.mark.parametrize(
    ("error", "headline"),
    [
        ("", ""),
        ("\n \n", ""),
        ("boom", "boom"),
        ("first\n  boom  \n\n", "boom"),
        ("x" * 5_000, "x" * 1_000),
        ("Traceback (most recent call last):", "Traceback (most recent call last):"),
        ('Traceback (most recent call last):\n  File "a", line 1', 'File "a", line 1'),
    ],
)
def test_without_an_exception_the_headline_is_the_last_line(error: str, headline: str) -> None:
    assert find_headline(error) == headline


@pytest.mark.parametrize("word", ["Aa" * 400, "a." * 400, "A" * 800])
def test_a_long_word_is_no_exception(word: str) -> None:
    error = f"{record(fail_simply)}{word} and more"
    assert find_headline(error) == "ValueError: no order 17"


def test_a_long_message_does_not_hide_the_exception() -> None:
    error = record(fail_in_two_lines) + "more\n" * 1_000
    assert find_headline(error) == "ValueError: no order 17"
    long = "before\n" * 10_000 + error
    assert find_headline(clean_error(long)) == find_headline(long) == "ValueError: no order 17"


def test_errors_are_grouped_by_the_headline() -> None:
    one, other = record(fail_in_two_lines), record(fail_simply)
    assert parse_error_kind(one) == "ValueError: no order …"
    assert compute_fingerprint("error", one) == compute_fingerprint("error", other)
