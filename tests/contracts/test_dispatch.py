"""An engine that carries hints: each taker gets what others did not, only what is ours, and soon. On every one."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from mainspring.domain.errors import EngineUnavailable
from mainspring.domain.hints import Hint, Sealer
from mainspring.domain.instant import MINUTE, SECOND
from mainspring.domain.rank import rank_of
from mainspring.ports.dispatch import Delivery, Dispatch
from tests.support.builders import a_run
from tests.support.dispatch_harness import (
    DispatchHarness,
    OnCluster,
    OnKafka,
    OnMemory,
    OnQuorum,
    OnRabbit,
    OnRedis,
    OnSentinels,
    OnServer,
)
from tests.support.servers import started
from tools.services import all_services
from tools.services.ensemble import Ensemble

#: The engines beside the store. The store itself is asked as ever (test_claim.py).
ENGINES: dict[str, type[OnServer]] = {
    "redis": OnRedis,
    "redis-sentinel": OnSentinels,
    "redis-cluster": OnCluster,
    "rabbitmq": OnRabbit,
    "rabbitmq-quorum": OnQuorum,
    "kafka": OnKafka,
}
#: Another way to use a server of the others. It is killed by ``LARGE_TESTS=1`` alone: to start one takes its time.
SECOND_KINDS = {"rabbitmq-quorum"}
large = pytest.mark.skipif(os.environ.get("LARGE_TESTS") != "1", reason="LARGE_TESTS=1 runs it")
#: What a rank is in this decade.
NOW = 1_790_000_000 * SECOND


@pytest.fixture(params=["memory", *ENGINES])
async def they(request: pytest.FixtureRequest, address_of: Callable[[str], str]) -> AsyncIterator[DispatchHarness]:
    make = ENGINES.get(request.param)
    they = OnMemory() if make is None else make(address_of(make.service))
    yield they
    await they.close()


@pytest.fixture
async def engine(they: DispatchHarness) -> Dispatch:
    # On a busy machine a short lease is over before a test has looked twice.
    return await they.another(MINUTE)


def hints(number: int, queue: str = "default") -> list[Hint]:
    return [Hint(a_run().id, queue, NOW + place) for place in range(number)]


def runs(deliveries: Sequence[Delivery]) -> list[str]:
    return [delivery.hint.run for delivery in deliveries]


async def take_all(engine: Dispatch, number: int, queue: str = "default") -> list[Delivery]:
    """So many in all, in however many batches the engine brings them."""
    found: list[Delivery] = []
    async with asyncio.timeout(20):
        while len(found) < number:
            found += await engine.take(queue, number - len(found), SECOND)
    return found


async def until_depth(engine: Dispatch, number: int) -> None:
    for _ in range(100):
        if await engine.depth("default") == number:
            return
        await asyncio.sleep(0.1)
    assert await engine.depth("default") == number


async def test_what_is_published_is_taken_with_all_that_it_says(engine: Dispatch) -> None:
    [hint] = hints(1)
    await engine.publish([hint])
    [delivery] = await take_all(engine, 1)
    assert (delivery.hint.run, delivery.hint.queue, delivery.hint.rank) == (hint.run, "default", hint.rank)


async def test_the_best_come_first(they: DispatchHarness, engine: Dispatch) -> None:
    made = hints(100)
    await engine.publish(made[::-1])
    taken = runs(await take_all(engine, 30)) + runs(await take_all(engine, 70))
    assert sorted(taken) == sorted(hint.run for hint in made)
    if they.ordered:
        assert taken == [hint.run for hint in made]


async def test_what_is_urgent_comes_before_what_came_earlier(they: DispatchHarness, engine: Dispatch) -> None:
    if not they.prioritised:
        pytest.skip("it has no priorities")
    made = [Hint(a_run().id, "default", rank_of(NOW, priority), priority) for priority in (9, 5, 1)]
    await engine.publish(made)
    taken = [runs(await take_all(engine, 1)) for _ in made]
    assert taken == [[hint.run] for hint in made[::-1]]


async def test_ranks_that_differ_by_a_microsecond_are_told_apart(they: DispatchHarness, engine: Dispatch) -> None:
    if not they.ordered:
        pytest.skip("it has no order by rank")
    far = 2**52
    made = [Hint(a_run().id, "default", far + place) for place in range(3)]
    await engine.publish(made[::-1])
    assert [delivery.hint.rank for delivery in await take_all(engine, 3)] == [far, far + 1, far + 2]


async def test_an_empty_batch_does_nothing(engine: Dispatch) -> None:
    await engine.publish([])
    await engine.done([])
    assert await engine.take("default", 0, 0) == []


async def test_a_large_batch_of_several_queues_arrives_whole(they: DispatchHarness) -> None:
    engine = await they.another(MINUTE)
    made = hints(2_500) + hints(10, "mail")
    await engine.publish(made)
    taken = await take_all(engine, 2_500)
    await engine.done(taken)
    assert len(set(runs(taken))) == 2_500
    assert len(await take_all(engine, 10, "mail")) == 10


async def test_nobody_gets_what_another_was_given(they: DispatchHarness) -> None:
    takers = [await they.another(MINUTE) for _ in range(4)]
    made = hints(400)
    found: list[str] = []

    async def work(taker: Dispatch) -> None:
        while len(found) < len(made):
            deliveries = await taker.take("default", 7, SECOND // 10)
            found.extend(runs(deliveries))
            await taker.done(deliveries)

    async with asyncio.timeout(30):
        await asyncio.gather(takers[0].publish(made), *(work(taker) for taker in takers))
    assert sorted(found) == sorted(hint.run for hint in made)


async def test_the_same_hint_twice_is_taken_twice_at_most(engine: Dispatch) -> None:
    [hint] = hints(1)
    for _ in range(3):
        await engine.publish([hint, hint])
    taken = await take_all(engine, 1)
    await engine.done(taken)
    while more := await engine.take("default", 10, SECOND // 5):
        await engine.done(more)
        taken += more
    assert {delivery.hint.run for delivery in taken} == {hint.run}
    assert len(taken) <= 6


async def test_what_is_not_done_comes_back_when_its_lease_is_over(they: DispatchHarness) -> None:
    engine = await they.another()
    [kept, done] = hints(2)
    await engine.publish([kept, done])
    taken = await take_all(engine, 2)
    await engine.done([delivery for delivery in taken if delivery.hint.run == done.run])
    if not isinstance(they, OnMemory):
        await engine.close()
    other = await they.another()
    [again] = await take_all(other, 1)
    assert again.hint.run == kept.run


async def test_what_a_living_taker_holds_for_too_long_comes_to_others(they: DispatchHarness) -> None:
    engine = await they.another()
    [hint] = hints(1)
    await engine.publish([hint])
    held = await take_all(engine, 1)
    # Where each has a part of its own, it is sent again when its holder asks for more.
    other = await they.another(MINUTE) if they.shared else engine
    assert runs(await take_all(other, 1)) == [hint.run]
    # It has come to somebody else since, who is not done.
    await engine.done(held)
    assert await engine.take("default", 1, 0) == []


async def test_what_is_done_does_not_come_back(engine: Dispatch) -> None:
    await engine.publish(hints(3))
    taken = await take_all(engine, 3)
    await engine.done(taken)
    await engine.done(taken)
    assert await engine.take("default", 10, SECOND // 2) == []


async def test_done_does_not_undo_what_was_published_since(engine: Dispatch) -> None:
    """A run that was given back stands there under the same rank."""
    [hint] = hints(1)
    await engine.publish([hint])
    taken = await take_all(engine, 1)
    await engine.publish([hint])
    await engine.done(taken)
    assert runs(await take_all(engine, 1)) == [hint.run]


async def test_an_idle_taker_is_woken_by_what_comes(they: DispatchHarness, engine: Dispatch) -> None:
    publisher = await they.another()
    await publisher.publish(hints(1))
    await engine.done(await take_all(engine, 1))
    waits = []
    for hint in hints(5):
        taking = asyncio.create_task(engine.take("default", 10, 10 * SECOND))
        await asyncio.sleep(0.05)
        began = time.monotonic()
        await publisher.publish([hint])
        assert runs(await taking) == [hint.run]
        waits.append(time.monotonic() - began)
        await engine.done(taking.result())
    # A few milliseconds on a machine of its own. One that polls would need a tenth of a second for most of them.
    assert min(waits) < 0.1


async def test_every_idle_taker_is_woken_when_there_is_enough_for_all(they: DispatchHarness, engine: Dispatch) -> None:
    if not they.shared:
        pytest.skip("a hint is in a partition, and a partition has one reader")
    takers = [await they.another(MINUTE) for _ in range(3)]
    taking = [asyncio.create_task(taker.take("default", 1, 20 * SECOND)) for taker in takers]
    await asyncio.sleep(0.1)
    made = hints(3)
    began = time.monotonic()
    await engine.publish(made)
    found = [run for deliveries in await asyncio.gather(*taking) for run in runs(deliveries)]
    assert sorted(found) == sorted(hint.run for hint in made)
    assert time.monotonic() - began < 10


async def test_a_taker_that_waits_in_vain_comes_back_in_time(engine: Dispatch) -> None:
    began = time.monotonic()
    assert await engine.take("nothing", 1, SECOND // 5) == []
    assert 0.15 < time.monotonic() - began < 5


async def test_depth_is_what_can_still_be_taken(engine: Dispatch) -> None:
    assert await engine.depth("default") == 0
    await engine.publish(hints(5))
    await until_depth(engine, 5)
    await engine.done(await take_all(engine, 5))
    await until_depth(engine, 0)


@pytest.mark.parametrize("what", ["garbage", "empty", "forged", "of another queue", "cut off", "with another rank"])
async def test_what_is_not_ours_is_dropped_and_counted(they: DispatchHarness, engine: Dispatch, what: str) -> None:
    [hint] = hints(1)
    sealed = they.sealer.seal(hint)
    strange = {
        "garbage": b"\x00\xff" * 20,
        "empty": b"",
        "forged": Sealer(b"another key").seal(hint),
        "of another queue": they.sealer.seal(Hint(hint.run, "mail", hint.rank)),
        "cut off": sealed[:-1],
        "with another rank": sealed[:16] + bytes(8) + sealed[24:],
    }[what]
    await they.smuggle("default", strange)
    good = hints(1)
    await engine.publish(good)
    [delivery] = await take_all(engine, 1)
    await engine.done([delivery])
    assert delivery.hint.run == good[0].run
    assert await engine.take("default", 10, SECOND // 2) == []
    assert engine.refused == 1


async def test_another_store_sees_nothing_of_it(they: DispatchHarness, engine: Dispatch) -> None:
    if isinstance(they, OnMemory):
        pytest.skip("it is not shared")
    other = await they.another(namespace="another")
    await engine.publish(hints(1))
    assert await other.take("default", 10, SECOND // 5) == []
    assert len(await take_all(engine, 1)) == 1


async def test_it_has_nothing_to_say_of_a_server_that_is_set_up_well(engine: Dispatch) -> None:
    assert await engine.warnings() == []


# A server that Java or Erlang run takes its time to start, twice.
@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", [pytest.param(name, marks=large if name in SECOND_KINDS else ()) for name in ENGINES])
async def test_it_goes_on_by_itself_after_the_server_was_killed(name: str, tmp_path: Path) -> None:
    server = type(all_services()[ENGINES[name].service])(tmp_path)
    assert isinstance(server, Ensemble)
    address = started(server)
    they = ENGINES[name](address)
    try:
        engine, idle = await they.another(), await they.another()
        await engine.publish(hints(1))
        await engine.done(await take_all(engine, 1))
        waiting = asyncio.create_task(idle.take("default", 1, 20 * SECOND))
        await asyncio.sleep(0.1)
        for node in server.nodes:
            node.signal(signal.SIGKILL)
        with pytest.raises(EngineUnavailable):
            await engine.publish(hints(1))
        with pytest.raises(EngineUnavailable):
            await waiting
        with pytest.raises(EngineUnavailable):
            await idle.depth("default")
        await asyncio.to_thread(server.start)
        made = hints(1)
        await engine.publish(made)
        # What the broker had before it was killed may come first; and where each has a part of its own, to the other.
        async with asyncio.timeout(30):
            while made[0].run not in [
                run for one in (idle, engine) for run in runs(await one.take("default", 1, SECOND))
            ]:
                pass
    finally:
        await they.close()
        server.remove()
