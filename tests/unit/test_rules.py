"""Rules run inside the transactions of stores that never wait."""

import asyncio

import pytest

from mainspring.core.rules.driving import run_at_once


async def add(first: int, second: int) -> int:
    return first + second


async def add_later(first: int, second: int) -> int:
    await asyncio.sleep(0)
    return await add(first, second)


def test_a_rule_that_does_not_wait_returns_its_result() -> None:
    assert run_at_once(add(1, 2)) == 3


def test_a_rule_that_waits_is_a_bug_of_the_store() -> None:
    with pytest.raises(AssertionError, match="must not wait"):
        run_at_once(add_later(1, 2))
