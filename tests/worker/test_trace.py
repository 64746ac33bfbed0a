"""The description of an exception that is stored with a run."""

import pytest

from mainspring.domain.errors import Invalid
from mainspring.domain.rank import check_priority
from mainspring.domain.verdicts import GiveUp
from mainspring.worker.trace import describe


def raise_in_mainspring() -> Invalid:
    """An error as a built-in task raises it, without a frame of the application."""
    with pytest.raises(Invalid) as raised:
        check_priority(99)
    trace = raised.value.__traceback__
    assert trace is not None
    return raised.value.with_traceback(trace.tb_next)


def test_an_error_raised_by_mainspring_is_described_in_one_line() -> None:
    error = raise_in_mainspring()
    assert describe(error) == f"Invalid: {error}"
    assert describe(GiveUp("part 1 was not gathered")) == "GiveUp: part 1 was not gathered"


def test_the_cause_of_an_error_is_shown() -> None:
    error = raise_in_mainspring()
    error.__cause__ = ValueError("from the application")
    assert "ValueError: from the application" in describe(error)
    assert describe(error).endswith(f"Invalid: {error}")


def test_an_error_raised_by_the_application_is_shown_with_its_traceback() -> None:
    with pytest.raises(GiveUp) as raised:
        raise GiveUp("no such customer")
    text = describe(raised.value)
    assert "test_trace.py" in text
    assert text.endswith("GiveUp: no such customer")
