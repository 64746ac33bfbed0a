"""Which data centers the ticks of a job go to, and how often the scheduler asks the store for them."""

import msgspec
import pytest

from mainspring.core.model.base.instant import MILLISECOND, MINUTE, SECOND, Micros
from mainspring.core.model.runs.policy import DEFAULT_POLICY
from mainspring.core.model.schedules.job import Fire
from mainspring.core.ports.storage.datacenters import DatacenterStatus
from mainspring.core.scheduler.datacenter_choice import DatacenterChoice
from tests.support.builders import a_fire, a_spec, a_stored_job, a_tick
from tests.support.clock import START, ManualClock


class PlaceStore:
    """``us`` had no worker for a minute, ``asia`` never had one. Counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    async def datacenters(self) -> list[DatacenterStatus]:
        self.asked += 1
        return [
            DatacenterStatus(name="asia"),
            DatacenterStatus(name="eu", seen_at=START),
            DatacenterStatus(name="us", seen_at=START - MINUTE),
        ]


def a_placed_fire(datacenters: tuple[str, ...] = (), requires: tuple[str, ...] = ()) -> Fire:
    policy = msgspec.structs.replace(DEFAULT_POLICY, requires=requires)
    spec = msgspec.structs.replace(a_spec(policy=policy), datacenters=datacenters)
    job = a_stored_job(spec, next_fire=START)
    return a_fire(job, a_tick(job, START), next_fire=START + MINUTE)


@pytest.mark.parametrize(
    ("datacenters", "requires", "targets", "reason", "asked"),
    [
        ((), (), [""], "", 0),
        ((), ("gpu",), [""], "", 0),
        (("asia", "us"), (), ["asia", "us"], "", 0),
        # A data center that never had a worker is left out.
        (("*",), (), ["eu", "us"], "", 1),
        ((), ("datacenter=us>eu>60s",), [""], "", 1),
        ((), ("datacenter=us>eu>59s",), [""], "moved to eu: no live worker in us for 59 s", 1),
        ((), ("datacenter=asia>eu>0s",), [""], "", 1),
    ],
)
async def test_a_tick_goes_to_its_data_centers(
    datacenters: tuple[str, ...], requires: tuple[str, ...], targets: list[str], reason: str, asked: int
) -> None:
    store = PlaceStore()
    (fire,) = await DatacenterChoice(store, ManualClock()).apply([a_placed_fire(datacenters, requires)], START)
    assert [(tick.target, tick.reason) for tick in fire.ticks] == [(target, reason) for target in targets]
    assert store.asked == asked


@pytest.mark.parametrize(("datacenters", "requires"), [(("*",), ()), ((), ("datacenter=us>eu>59s",))])
async def test_a_fire_with_a_data_center_is_placed_among_others(
    datacenters: tuple[str, ...], requires: tuple[str, ...]
) -> None:
    plain, placed = a_placed_fire(), a_placed_fire(datacenters, requires)
    fires = await DatacenterChoice(PlaceStore(), ManualClock()).apply([plain, placed], START)
    assert fires[0] == plain
    assert fires[1] != placed


@pytest.mark.parametrize(("later", "asked"), [(SECOND - 1, 1), (SECOND, 2)])
async def test_the_data_centers_are_asked_for_once_a_second(later: Micros, asked: int) -> None:
    store, clock = PlaceStore(), ManualClock()
    clock.advance(500 * MILLISECOND)
    places = DatacenterChoice(store, clock)
    await places.apply([a_placed_fire(("*",)), a_placed_fire(("*",))], START)
    clock.advance(later)
    await places.apply([a_placed_fire(("*",))], START)
    assert store.asked == asked
