"""``MOVES`` is complete and has no dead entry: every store makes each of its moves.

The ``harness`` fixture checks after every contract test that no other move was made.
"""

from typing import Any

from mainspring.core.model.base.instant import DAY, HOUR, MINUTE
from mainspring.core.model.limits.limits import Breaker
from mainspring.core.model.runs.completion import complete_cancel, complete_release
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.ports.storage.access import Author
from tests.support.builders import a_limit, a_policy, a_run, some_runs
from tests.support.state_changes import ALLOWED_MOVES, find_moves
from tests.support.store_harness import Harness, ids


async def test_every_store_makes_every_move(harness: Harness) -> None:
    await end_runs_before_they_start(harness)
    await delay_and_block_runs(harness)
    await open_a_breaker(harness)
    await end_attempts(harness)
    moves = find_moves(await harness.state_changes())
    assert moves == ALLOWED_MOVES


def a_run_of_each_state(**fields: Any) -> list[NewRun]:
    """Return runs that are scheduled, blocked and queued if another run holds the ordering key ``held``."""
    return [a_run(delay=MINUTE, **fields), a_run(key="held", **fields), a_run(**fields)]


async def end_runs_before_they_start(harness: Harness) -> None:
    cancelled = a_run_of_each_state()
    await harness.submit(a_run(key="held"))
    await harness.submit(*cancelled, *a_run_of_each_state(start_within=MINUTE), *a_run_of_each_state(deadline=MINUTE))
    await harness.store.cancel(ids(cancelled))
    await harness.advance(HOUR)
    await harness.store.expire(100)


async def delay_and_block_runs(harness: Harness) -> None:
    parent = a_run(queue="parents")
    await harness.submit(
        parent, a_run(after=[parent], delay=HOUR), a_run(delay=MINUTE, key="held"), a_run(delay=MINUTE)
    )
    await harness.succeed(*await harness.claim(await harness.worker(), queue="parents"))
    await harness.resolve()
    await harness.advance(MINUTE)
    await harness.stage()
    delayed = a_run(queue="delayed")
    await harness.submit(delayed)
    await harness.store.edit_run(a_run(id=delayed.id, delay=HOUR), Author("ada"))


async def open_a_breaker(harness: Harness) -> None:
    """A failure opens the breaker. It blocks the queued run of its task."""
    policy = a_policy(retries=0, breaker=Breaker(failures=1, within=DAY, pause=DAY))
    held = await harness.start(a_run(policy=policy, task="call", queue="calls"))
    await harness.submit(a_run(policy=policy, task="call"))
    await harness.fail(*held)


async def end_attempts(harness: Harness) -> None:
    policy = a_policy(retries=0)
    failing = [a_run(policy=policy, queue="attempts") for _ in range(2)]
    *asked, failed, released, retried, cancelled = await harness.start(
        *some_runs(2, queue="attempts"), *failing, *some_runs(3, queue="attempts")
    )
    await harness.store.cancel(ids(asked))
    await harness.succeed(asked[0])
    await harness.complete(complete_cancel(asked[1]), complete_cancel(cancelled), complete_release(released))
    await harness.fail(asked[2], failed, retried)
    now = await harness.now()
    [returned] = await harness.start(a_run(limits=(a_limit(),), at=now - MINUTE, queue="limited"))
    await harness.submit(a_run(limits=(a_limit(),), at=now - HOUR, queue="limited"))
    await harness.complete(complete_release(returned))
