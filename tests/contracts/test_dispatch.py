"""Every broker delivers each hint to one taker at a time, wakes idle takers, and drops messages that are not ours."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from mainspring.core.model.base.errors import BrokerUnavailable
from mainspring.core.model.base.instant import HOUR, SECOND, Micros
from mainspring.core.model.cluster.hints import Hint, HintCodec
from mainspring.core.model.runs.rank import compute_rank
from mainspring.core.ports.dispatch import Broker, HintDelivery, PriorityBroker
from tests.support.builders import a_run
from tests.support.dispatch_harness import (
    DispatchHarness,
    OnCluster,
    OnKafka,
    OnMemory,
    OnPriorities,
    OnQuorum,
    OnRabbit,
    OnRedis,
    OnSentinels,
    OnServer,
)
from tests.support.servers import started
from tests.support.waiting import DEADLINE_SECONDS, eventually
from tools.services import all_services
from tools.services.ensemble import Ensemble

BROKERS: dict[str, type[OnServer]] = {
    "redis": OnRedis,
    "redis-sentinel": OnSentinels,
    "redis-cluster": OnCluster,
    "rabbitmq": OnRabbit,
    "rabbitmq-quorum": OnQuorum,
    "rabbitmq-priorities": OnPriorities,
    "kafka": OnKafka,
}
#: Other modes of a server in the list. Starting one more takes long, so only ``LARGE_TESTS=1`` runs their kill test.
SECOND_KINDS = {"rabbitmq-quorum", "rabbitmq-priorities"}
large = pytest.mark.skipif(os.environ.get("LARGE_TESTS") != "1", reason="LARGE_TESTS=1 runs it")
NOW = 1_790_000_000 * SECOND
#: Longer than any test, however slow the machine is.
LONG: Micros = HOUR


@pytest.fixture(params=["memory", *BROKERS])
async def they(
    request: pytest.FixtureRequest, address_of: Callable[[str], str], patient_clients: None
) -> AsyncIterator[DispatchHarness]:
    make = BROKERS.get(request.param)
    they = OnMemory() if make is None else make(address_of(make.service))
    yield they
    await they.close()


@pytest.fixture
async def broker(they: DispatchHarness) -> Broker:
    return await they.another(LONG)


def hints(number: int, queue: str = "default") -> list[Hint]:
    return [Hint(a_run().id, queue, NOW + place) for place in range(number)]


def runs(deliveries: Sequence[HintDelivery]) -> list[str]:
    return [delivery.hint.run for delivery in deliveries]


async def take_all(broker: Broker, number: int, queue: str = "default") -> list[HintDelivery]:
    """Take this many hints, in any number of batches."""
    found: list[HintDelivery] = []
    async with asyncio.timeout(DEADLINE_SECONDS):
        while len(found) < number:
            found += await broker.take(queue, number - len(found), SECOND)
    return found


async def wait_for_depth(broker: Broker, number: int) -> None:
    async def has_depth() -> bool:
        return await broker.depth("default") == number

    await eventually(has_depth)


async def let_idle(*brokers: Broker) -> None:
    """Give takers that were just started several round trips of time to begin to wait."""
    for broker in brokers:
        for _ in range(5):
            await broker.depth("default")


async def test_a_published_hint_is_taken_with_all_its_fields(broker: Broker) -> None:
    [hint] = hints(1)
    await broker.publish([hint])
    [delivery] = await take_all(broker, 1)
    assert (delivery.hint.run, delivery.hint.queue, delivery.hint.rank) == (hint.run, "default", hint.rank)


async def test_hints_are_taken_in_the_order_of_rank(they: DispatchHarness, broker: Broker) -> None:
    made = hints(100)
    await broker.publish(made[::-1])
    taken = runs(await take_all(broker, 30)) + runs(await take_all(broker, 70))
    assert sorted(taken) == sorted(hint.run for hint in made)
    if they.ordered:
        assert taken == [hint.run for hint in made]


async def test_urgent_hints_are_taken_first(they: DispatchHarness, broker: Broker) -> None:
    if not they.prioritised:
        pytest.skip("it has no priorities")
    made = [Hint(a_run().id, "default", compute_rank(NOW, priority), priority) for priority in (9, 5, 1)]
    await broker.publish(made)
    taken = [runs(await take_all(broker, 1)) for _ in made]
    assert taken == [[hint.run] for hint in made[::-1]]


async def test_a_taker_of_one_priority_gets_hints_of_this_one_alone(they: DispatchHarness, broker: Broker) -> None:
    if not isinstance(broker, PriorityBroker) or not broker.by_priority:
        pytest.skip("it does not keep priorities apart")
    made = [Hint(a_run().id, "default", compute_rank(NOW, priority), priority) for priority in (1, 3, 3, 10)]
    await broker.publish(made)
    assert await broker.take_priority("default", 2, 10, 0) == []
    found: list[HintDelivery] = []
    async with asyncio.timeout(DEADLINE_SECONDS):
        while len(found) < 2:
            found += await broker.take_priority("default", 3, 10, SECOND)
    assert sorted(runs(found)) == sorted(hint.run for hint in made[1:3])
    await broker.done(found)
    # A full pool takes nothing, and its hints hold up no other priority.
    late = [Hint(a_run().id, "default", compute_rank(NOW, 3), 3), Hint(a_run().id, "default", compute_rank(NOW, 1), 1)]
    await broker.publish(late)
    urgent: list[HintDelivery] = []
    async with asyncio.timeout(DEADLINE_SECONDS):
        while len(urgent) < 2:
            urgent += await broker.take_priority("default", 1, 10, SECOND)
    assert sorted(runs(urgent)) == sorted([made[0].run, late[1].run])
    assert await broker.depth("default") == 2


async def test_an_idle_taker_of_one_priority_is_woken_by_a_publish(they: DispatchHarness, broker: Broker) -> None:
    if not isinstance(broker, PriorityBroker) or not broker.by_priority:
        pytest.skip("it does not keep priorities apart")
    publisher = await they.another()
    hints_of_both = [Hint(a_run().id, "default", compute_rank(NOW, priority), priority) for priority in (1, 3)]
    taking = [asyncio.create_task(broker.take_priority("default", priority, 10, LONG)) for priority in (1, 3)]
    await let_idle(publisher)
    async with asyncio.timeout(DEADLINE_SECONDS):
        await publisher.publish(hints_of_both)
        assert [runs(await one) for one in taking] == [[hint.run] for hint in hints_of_both]


async def test_ranks_that_differ_by_a_microsecond_keep_their_order(they: DispatchHarness, broker: Broker) -> None:
    if not they.ordered:
        pytest.skip("it has no order by rank")
    far = 2**52
    made = [Hint(a_run().id, "default", far + place) for place in range(3)]
    await broker.publish(made[::-1])
    assert [delivery.hint.rank for delivery in await take_all(broker, 3)] == [far, far + 1, far + 2]


async def test_an_empty_batch_does_nothing(broker: Broker) -> None:
    await broker.publish([])
    await broker.done([])
    assert await broker.take("default", 0, 0) == []


async def test_a_large_batch_for_several_queues_arrives_completely(they: DispatchHarness) -> None:
    broker = await they.another(LONG)
    made = hints(2_500) + hints(10, "mail")
    await broker.publish(made)
    taken = await take_all(broker, 2_500)
    await broker.done(taken)
    assert len(set(runs(taken))) == 2_500
    assert len(await take_all(broker, 10, "mail")) == 10


async def test_concurrent_takers_never_get_the_same_hint(they: DispatchHarness) -> None:
    takers = [await they.another(LONG) for _ in range(4)]
    made = hints(400)
    found: list[str] = []

    async def work(taker: Broker) -> None:
        while len(found) < len(made):
            deliveries = await taker.take("default", 7, SECOND // 10)
            found.extend(runs(deliveries))
            await taker.done(deliveries)

    async with asyncio.timeout(DEADLINE_SECONDS):
        await asyncio.gather(takers[0].publish(made), *(work(taker) for taker in takers))
    assert sorted(found) == sorted(hint.run for hint in made)


async def test_a_hint_is_taken_at_most_as_often_as_it_was_published(broker: Broker) -> None:
    [hint] = hints(1)
    for _ in range(3):
        await broker.publish([hint, hint])
    taken: list[HintDelivery] = []

    async def is_empty() -> bool:
        more = await broker.take("default", 10, 0)
        await broker.done(more)
        taken.extend(more)
        return bool(taken) and await broker.depth("default") == 0

    await eventually(is_empty)
    assert {delivery.hint.run for delivery in taken} == {hint.run}
    assert len(taken) <= 6


async def test_a_hint_not_done_comes_back_after_its_lease(they: DispatchHarness) -> None:
    broker = await they.another()
    [kept, done] = hints(2)
    await broker.publish([kept, done])
    taken = await take_all(broker, 2)
    await broker.done([delivery for delivery in taken if delivery.hint.run == done.run])
    if not isinstance(they, OnMemory):
        await broker.close()
    other = await they.another()

    async def comes_back() -> bool:
        return kept.run in runs(await other.take("default", 2, SECOND))

    await eventually(comes_back)


async def test_a_hint_held_past_its_lease_comes_to_another_taker(they: DispatchHarness) -> None:
    broker = await they.another()
    [hint] = hints(1)
    await broker.publish([hint])
    held = await take_all(broker, 1)
    # Where each has a part of its own, it is sent again when its holder asks for more.
    other = await they.another(LONG) if they.shared else broker
    assert runs(await take_all(other, 1)) == [hint.run]
    await broker.done(held)
    if they.shared:
        assert await broker.take("default", 1, 0) == []


async def test_a_done_hint_does_not_come_back(broker: Broker) -> None:
    await broker.publish(hints(3))
    taken = await take_all(broker, 3)
    await broker.done(taken)
    await broker.done(taken)
    later = hints(10)
    await broker.publish(later)
    assert sorted(runs(await take_all(broker, 10))) == sorted(hint.run for hint in later)
    assert await broker.take("default", 10, 0) == []


async def test_done_does_not_remove_the_same_hint_published_since(broker: Broker) -> None:
    """A run that was given back stands there under the same rank."""
    [hint] = hints(1)
    await broker.publish([hint])
    taken = await take_all(broker, 1)
    await broker.publish([hint])
    await broker.done(taken)
    assert runs(await take_all(broker, 1)) == [hint.run]


async def test_an_idle_taker_is_woken_by_a_publish(they: DispatchHarness, broker: Broker) -> None:
    publisher = await they.another()
    await publisher.publish(hints(1))
    await broker.done(await take_all(broker, 1))
    for hint in hints(5):
        taking = asyncio.create_task(broker.take("default", 10, LONG))
        await let_idle(publisher)
        async with asyncio.timeout(DEADLINE_SECONDS):
            await publisher.publish([hint])
            assert runs(await taking) == [hint.run]
        await broker.done(taking.result())


async def test_every_idle_taker_is_woken_by_a_large_enough_publish(they: DispatchHarness, broker: Broker) -> None:
    if not they.shared:
        pytest.skip("a hint is in a partition, and a partition has one reader")
    takers = [await they.another(LONG) for _ in range(3)]
    taking = [asyncio.create_task(taker.take("default", 1, LONG)) for taker in takers]
    await let_idle(broker)
    made = hints(3)
    async with asyncio.timeout(DEADLINE_SECONDS):
        await broker.publish(made)
        found = [run for deliveries in await asyncio.gather(*taking) for run in runs(deliveries)]
    assert sorted(found) == sorted(hint.run for hint in made)


async def test_a_take_without_hints_returns_after_its_wait(broker: Broker) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        assert await broker.take("nothing", 1, SECOND // 5) == []


async def test_depth_counts_the_hints_that_can_be_taken(broker: Broker) -> None:
    assert await broker.depth("default") == 0
    await broker.publish(hints(5))
    await wait_for_depth(broker, 5)
    await broker.done(await take_all(broker, 5))
    await wait_for_depth(broker, 0)


@pytest.mark.parametrize("what", ["garbage", "empty", "forged", "of another queue", "cut off", "with another rank"])
async def test_a_foreign_message_is_dropped_and_counted(they: DispatchHarness, broker: Broker, what: str) -> None:
    [hint] = hints(1)
    message = they.codec.encode(hint)
    strange = {
        "garbage": b"\x00\xff" * 20,
        "empty": b"",
        "forged": HintCodec(b"another key").encode(hint),
        "of another queue": they.codec.encode(Hint(hint.run, "mail", hint.rank)),
        "cut off": message[:-1],
        "with another rank": message[:16] + bytes(8) + message[24:],
    }[what]
    await they.smuggle("default", strange)
    good = hints(1)
    await broker.publish(good)
    [delivery] = await take_all(broker, 1)
    await broker.done([delivery])
    assert delivery.hint.run == good[0].run
    more: list[HintDelivery] = []

    async def has_refused() -> bool:
        more.extend(await broker.take("default", 10, 0))
        return broker.refused > 0

    await eventually(has_refused)
    assert (more, broker.refused) == ([], 1)


async def test_hints_of_another_store_are_not_taken(they: DispatchHarness, broker: Broker) -> None:
    if isinstance(they, OnMemory):
        pytest.skip("it is not shared")
    other = await they.another(LONG, namespace="another")
    ours, theirs = hints(10), hints(10)
    await broker.publish(ours)
    await other.publish(theirs)
    for taker, published in ((other, theirs), (broker, ours)):
        assert sorted(runs(await take_all(taker, 10))) == sorted(hint.run for hint in published)
        assert await taker.take("default", 10, 0) == []


async def test_a_well_configured_server_has_no_warnings(broker: Broker) -> None:
    assert await broker.warnings() == []


async def round_trip(publisher: Broker, *others: Broker) -> bool:
    """Publish a hint and try to take it. Older hints may come first, and on Kafka any taker may have the partition."""
    made = hints(1)
    with suppress(BrokerUnavailable):
        await publisher.publish(made)
        async with asyncio.timeout(DEADLINE_SECONDS):
            found: list[str] = []
            while made[0].run not in found:
                for taker in (publisher, *others):
                    taken = await taker.take("default", 10, SECOND // 10)
                    await taker.done(taken)
                    found += runs(taken)
        return True
    return False


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [pytest.param(name, marks=large if name in SECOND_KINDS else ()) for name in BROKERS])
async def test_clients_reconnect_after_the_server_was_killed(name: str, tmp_path: Path) -> None:
    server = type(all_services()[BROKERS[name].service])(tmp_path)
    assert isinstance(server, Ensemble)
    address = started(server)
    they = BROKERS[name](address)
    try:
        broker, idle = await they.another(LONG), await they.another(LONG)
        await eventually(lambda: round_trip(broker))
        waiting = asyncio.create_task(idle.take("default", 1, LONG))
        await let_idle(broker)
        for node in server.nodes:
            node.signal(signal.SIGKILL)
        with pytest.raises(BrokerUnavailable):
            await broker.publish(hints(1))
        with pytest.raises(BrokerUnavailable):
            await waiting
        with pytest.raises(BrokerUnavailable):
            await idle.depth("default")
        await asyncio.to_thread(server.start)
        await eventually(lambda: round_trip(broker, idle))
    finally:
        await they.close()
        server.remove()
