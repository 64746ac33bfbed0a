"""Units that tasks spend, in virtual time. Tests of the measured CPU time are in tests/system."""

import pytest

from mainspring import Context, Invalid, Mainspring
from mainspring.core.model.base.instant import LATEST
from mainspring.core.model.runs.usage import by_line
from mainspring.testing import TestScheduler


async def test_units_are_summed_over_failed_and_successful_attempts() -> None:
    app = Mainspring()

    @app.task(retries=1)
    async def ask(context: Context) -> None:
        context.spend("tokens", 100)
        context.spend("tokens", 20)
        if context.attempt == 1:
            raise ValueError("once more")
        context.spend("pages", 0.5)
        with pytest.raises(Invalid):
            context.spend("wall", 1)

    async with TestScheduler(app) as s:
        await ask.submit()
        await s.advance("10m")
        store = s._session.cluster.store
        [line] = by_line(await store.usage(None, 0, LATEST, "task"))
    assert (line.key, line.attempts, line.units) == ("ask", 2, {"pages": 0.5, "tokens": 240})
    assert line.cpu == 0, "the CPU time of one task on a shared loop is unknown"


async def test_spending_in_a_direct_call_is_ignored() -> None:
    app = Mainspring()

    @app.task
    async def ask(context: Context) -> None:
        context.spend("tokens", 100)

    await ask()
