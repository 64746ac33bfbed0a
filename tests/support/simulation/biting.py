"""Check that the checker reports a violation if, and only if, a safeguard is removed."""

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from mainspring.core.model.base.instant import SECOND
from tests.support.simulation.clock import StoreClock
from tests.support.simulation.history import History
from tests.support.simulation.invariants import violations
from tests.support.simulation.scenario import Scenario, draw
from tests.support.simulation.store import RecordedStore
from tests.support.simulation.world import simulate

SEEDS = range(30)
MakeStore: TypeAlias = Callable[[StoreClock, int, History], RecordedStore]


def bites(seed: int, store: MakeStore, complaint: str, **changes: Any) -> bool:
    """Whether this seed reports the violation, and reports nothing with the safeguard in place."""
    # A run that never ends needs no long simulation.
    scenario = msgspec.structs.replace(draw(seed), ending=20 * SECOND, **changes)
    return complains(scenario, store, complaint) and not complains(scenario, RecordedStore, complaint)


def complains(scenario: Scenario, store: MakeStore, complaint: str) -> bool:
    return any(complaint in sentence for sentence in violations(simulate(scenario, store)))
