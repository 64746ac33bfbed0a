"""Hints for runs that require a data center."""

from collections.abc import Sequence

import pytest

from mainspring.core.dispatch.dispatcher import Dispatcher
from mainspring.core.model.base.instant import SECOND
from mainspring.core.model.cluster.hints import Hint, HintCodec
from mainspring.core.runtime.brokers import Brokers, GuardedBroker
from mainspring.core.runtime.local_wakeups import LocalWakeups
from mainspring.stores.memory import MemoryStore
from mainspring.testing.virtual_time import VirtualClock
from tests.support.builders import a_run
from tests.support.memory_dispatch import MemoryDispatch
from tests.support.virtual import in_virtual_time


class RecordingBroker(MemoryDispatch):
    """A broker that may have separate queues for data centers."""

    def __init__(self, clock: VirtualClock, *, by_datacenter: bool) -> None:
        super().__init__(clock, HintCodec(b"key"))
        self.by_datacenter = by_datacenter
        self.published: list[Hint] = []

    async def publish(self, hints: Sequence[Hint]) -> None:
        self.published += hints


@pytest.mark.parametrize("by_datacenter", [True, False])
@in_virtual_time
async def test_hints_for_a_data_center_go_only_to_a_broker_that_separates_them(by_datacenter: bool) -> None:
    clock = VirtualClock()
    store, broker = MemoryStore(clock, 4), RecordingBroker(clock, by_datacenter=by_datacenter)
    brokers = Brokers([guarded := GuardedBroker(broker, clock)], {"*": guarded}, "store")
    dispatcher = Dispatcher(store, brokers, LocalWakeups(), clock, lambda: {0: 1})
    await dispatcher.tick()
    await store.submit([a_run(), a_run(requires=("datacenter=eu",))])
    await dispatcher.tick()
    expected = ["", "eu"] if by_datacenter else [""]
    assert sorted(hint.datacenter for hint in broker.published) == expected
    for _ in range(20):
        await clock.sleep(SECOND)
        await dispatcher.tick()
    assert {hint.datacenter for hint in broker.published} == set(expected)
