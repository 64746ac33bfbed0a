"""Runs for a data centre: an engine that gives hints to anybody gets none of these."""

from collections.abc import Sequence

import pytest

from mainspring.adapters.dispatch.memory import MemoryDispatch
from mainspring.adapters.store.memory import MemoryStore
from mainspring.adapters.wakeups.local import LocalWakeups
from mainspring.control.dispatcher import Dispatcher
from mainspring.domain.hints import Hint, Sealer
from mainspring.domain.instant import SECOND
from mainspring.runtime.engines import Engines, GuardedEngine
from mainspring.testing.virtual_time import VirtualClock, run_virtual
from tests.support.builders import a_run


class Apart(MemoryDispatch):
    """One that may keep hints for data centres apart."""

    def __init__(self, clock: VirtualClock, *, by_datacenter: bool) -> None:
        super().__init__(clock, Sealer(b"key"))
        self.by_datacenter = by_datacenter
        self.given: list[Hint] = []

    async def publish(self, hints: Sequence[Hint]) -> None:
        self.given += hints


@pytest.mark.parametrize("by_datacenter", [True, False])
def test_hints_for_a_data_centre_go_where_they_are_kept_apart(by_datacenter: bool) -> None:
    async def scenario() -> None:
        clock = VirtualClock()
        store, engine = MemoryStore(clock, 4), Apart(clock, by_datacenter=by_datacenter)
        engines = Engines([guarded := GuardedEngine(engine, clock)], {"*": guarded}, "store")
        dispatcher = Dispatcher(store, engines, LocalWakeups(), clock, lambda: {0: 1})
        await dispatcher.tick()
        await store.submit([a_run(), a_run(requires=("datacenter=eu",))])
        await dispatcher.tick()
        expected = ["", "eu"] if by_datacenter else [""]
        assert sorted(hint.datacenter for hint in engine.given) == expected
        for _ in range(20):
            await clock.sleep(SECOND)
            await dispatcher.tick()
        assert {hint.datacenter for hint in engine.given} == set(expected)

    run_virtual(scenario())
