"""Worlds with a broker that loses, repeats, delays and forgets hints: all invariants hold as without it.

Every eighth seed is such a world. The seeds here have found bugs.
"""

from collections.abc import Iterator

import msgspec
import pytest

from mainspring.core.model.base.instant import SECOND, Instant
from mainspring.core.store import Demand
from mainspring.core.worker.hints import HintFeed
from mainspring.stores.memory.rows import RunRow, SessionRow
from tests.support.simulation.biting import complains
from tests.support.simulation.invariants import violations
from tests.support.simulation.scenario import Scenario, draw
from tests.support.simulation.store import RecordedStore
from tests.support.simulation.world import simulate

pytestmark = [pytest.mark.simulation, pytest.mark.timeout(400)]


def with_broker(seed: int) -> Scenario:
    return msgspec.structs.replace(draw(seed), broker=True)


@pytest.mark.parametrize("seed", [3, 6, 12, 18])
def test_invariants_hold_with_an_unreliable_broker(seed: int) -> None:
    assert violations(simulate(with_broker(seed))) == []


class WorstFirst(RecordedStore):
    """A poll gets the worst runs of a queue first."""

    def _find_candidates(self, claimant: SessionRow, demand: Demand, now: Instant) -> Iterator[RunRow]:
        return iter(list(super()._find_candidates(claimant, demand, now))[::-1])


def test_a_seed_fails_if_polls_do_not_find_the_best_run() -> None:
    scenarios = (msgspec.structs.replace(with_broker(seed), ending=20 * SECOND) for seed in range(5, 15))
    assert any(complains(scenario, WorstFirst, "the_best_go_first") for scenario in scenarios)


@pytest.mark.slow
def test_a_seed_fails_if_failed_polls_are_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = HintFeed.ended

    def forgotten(feed: HintFeed) -> None:
        feed._looking = False
        ended(feed)

    monkeypatch.setattr(HintFeed, "ended", forgotten)
    scenarios = (msgspec.structs.replace(with_broker(seed), ending=20 * SECOND) for seed in (18, 21, 26, 33))
    assert any(complains(scenario, RecordedStore, "hints_do_not_replace_polls") for scenario in scenarios)
