"""Worlds whose workers are fed by an engine that loses, repeats, delays and forgets: nothing else may be noticed.

Every eighth of the seeds is such a world; these have shown something.
"""

from collections.abc import Iterator

import msgspec
import pytest

from mainspring.adapters.store.memory.rows import RunRow, SessionRow
from mainspring.domain.instant import SECOND, Instant
from mainspring.ports.store import Want
from mainspring.worker.feed import Feed
from tests.support.simulation.biting import complains
from tests.support.simulation.invariants import violations
from tests.support.simulation.scenario import Scenario, draw
from tests.support.simulation.store import RecordedStore
from tests.support.simulation.world import simulate

pytestmark = [pytest.mark.simulation, pytest.mark.timeout(400)]


def fed(seed: int) -> Scenario:
    return msgspec.structs.replace(draw(seed), engine=True)


@pytest.mark.parametrize("seed", [3, 6, 12, 18])
def test_nothing_is_violated_whatever_an_engine_does(seed: int) -> None:
    assert violations(simulate(fed(seed))) == []


class TheWorstFirst(RecordedStore):
    """Whoever looks for the best of a queue gets the worst."""

    def _candidates(self, claimant: SessionRow, want: Want, now: Instant) -> Iterator[RunRow]:
        return iter(list(super()._candidates(claimant, want, now))[::-1])


def test_seeds_fail_where_a_look_does_not_find_the_best() -> None:
    scenarios = (msgspec.structs.replace(fed(seed), ending=20 * SECOND) for seed in range(5, 15))
    assert any(complains(scenario, TheWorstFirst, "the_best_go_first") for scenario in scenarios)


def test_seeds_fail_where_a_look_that_failed_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = Feed.ended

    def forgotten(feed: Feed) -> None:
        feed._looking = False
        ended(feed)

    monkeypatch.setattr(Feed, "ended", forgotten)
    scenarios = (msgspec.structs.replace(fed(seed), ending=20 * SECOND) for seed in (18, 21, 26, 33))
    assert any(complains(scenario, RecordedStore, "hints_do_not_replace_looks") for scenario in scenarios)
