"""The description of an exception that is stored with a run."""

import os
from collections.abc import Callable
from pathlib import Path
from types import FunctionType

import pytest

import mainspring
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.runs.handler_errors import GiveUp
from mainspring.core.model.runs.rank import check_priority
from mainspring.core.worker.reporting.trace import describe


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


def invoke(function: Callable[[], None]) -> None:
    function()


def send() -> None:
    raise ValueError("no mail")


def in_file(function: Callable[..., None], file: Path) -> Callable[..., None]:
    """The function as if it stood in this file."""
    return FunctionType(function.__code__.replace(co_filename=os.path.normpath(file)), globals())


@pytest.mark.parametrize("file", ["demo/application.py", "../mainspring_of_others/tasks.py"])
def test_frames_of_the_package_in_front_of_those_of_the_application_are_left_out(file: str) -> None:
    package = Path(mainspring.__file__).parent
    with pytest.raises(ValueError, match="no mail") as raised:
        in_file(invoke, package / "sdk/task.py")(in_file(send, package / file))
    trace = raised.value.__traceback__
    assert trace is not None
    text = describe(raised.value.with_traceback(trace.tb_next))
    assert Path(file).name in text
    assert "sdk/task.py" not in text
