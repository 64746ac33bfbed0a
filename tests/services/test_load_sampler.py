"""The load sampler on the memory store, in virtual time."""

from mainspring.core.maintenance.load_sampler import LoadSampler
from mainspring.core.model.base.instant import MINUTE, SECOND
from mainspring.core.runtime.local_wakeups import LocalWakeups
from mainspring.stores.memory import MemoryStore
from mainspring.testing.virtual_time import VirtualClock
from tests.support.builders import some_runs
from tests.support.virtual import in_virtual_time


@in_virtual_time
async def test_the_owner_of_shard_0_samples_every_minute() -> None:
    clock = VirtualClock()
    store = MemoryStore(clock, 4)
    owned: dict[int, int] = {1: 1}
    await store.submit(some_runs(3))
    async with LoadSampler(store, LocalWakeups(), clock, lambda: owned):
        await clock.sleep(3 * MINUTE)
        assert await store.loads(None, None, 0, clock.now()) == []
        owned[0] = 1
        began = clock.now()
        await clock.sleep(10 * MINUTE)
    found = await store.loads(None, None, 0, clock.now())
    first = began // MINUTE * MINUTE
    assert [load.at for load in found] == [first + number * MINUTE for number in range(len(found))]
    assert 10 <= len(found) <= 11
    assert {load.queued for load in found} == {3}
    assert found[-1].lag - found[1].lag >= (len(found) - 2) * MINUTE - SECOND
