"""Runs a rule on a store that never waits for its rows."""

from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def run_at_once(rule: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of a coroutine whose awaits never suspend."""
    try:
        rule.send(None)
    except StopIteration as done:
        result: Result = done.value
        return result
    rule.close()
    raise AssertionError("the rows of this store must not wait")
