"""What is kept of an exception."""

import pytest

from mainspring.domain.errors import Invalid
from mainspring.domain.rank import check_priority
from mainspring.domain.verdicts import GiveUp
from mainspring.worker.trace import describe


def raised_by_us() -> Invalid:
    """As where a built-in task raises it: no frame is the application's."""
    with pytest.raises(Invalid) as raised:
        check_priority(99)
    trace = raised.value.__traceback__
    assert trace is not None
    return raised.value.with_traceback(trace.tb_next)


def test_our_own_words_are_one_line() -> None:
    error = raised_by_us()
    assert describe(error) == f"Invalid: {error}"
    assert describe(GiveUp("part 1 was not gathered")) == "GiveUp: part 1 was not gathered"


def test_what_led_to_them_is_shown() -> None:
    error = raised_by_us()
    error.__cause__ = ValueError("from the application")
    assert "ValueError: from the application" in describe(error)
    assert describe(error).endswith(f"Invalid: {error}")


def test_where_an_application_raised_one_is_shown() -> None:
    with pytest.raises(GiveUp) as raised:
        raise GiveUp("no such customer")
    text = describe(raised.value)
    assert "test_trace.py" in text
    assert text.endswith("GiveUp: no such customer")
