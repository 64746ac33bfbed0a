"""What is RabbitMQ's own: dead letters, queues that others delete or have made, who is let in, nodes and TLS."""

import asyncio
import json
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from mainspring.adapters.clock.system import SystemClock
from mainspring.adapters.dispatch.rabbitmq import RabbitDispatch
from mainspring.domain.dead_letters import DeadRun
from mainspring.domain.errors import EngineUnavailable
from mainspring.domain.hints import Hint, Sealer
from mainspring.domain.instant import MINUTE, SECOND
from mainspring.ports.dispatch import Burying, Dispatch
from tests.contracts.test_dispatch import hints, runs, take_all
from tests.support import rabbitmq
from tests.support.builders import a_run
from tests.support.dispatch_harness import OnQuorum, OnRabbit
from tests.support.processes import free_port


@pytest.fixture(params=[OnRabbit, OnQuorum], ids=["classic", "quorum"])
async def they(request: pytest.FixtureRequest, address_of: Callable[[str], str]) -> AsyncIterator[OnRabbit]:
    they: OnRabbit = request.param(address_of("rabbitmq"))
    yield they
    await they.close()


@pytest.fixture
async def engine(they: OnRabbit) -> Dispatch:
    return await they.another(MINUTE)


def dead_letters(they: OnRabbit) -> list[bytes]:
    return [message.body for message in rabbitmq.read_all(they.address, f"mainspring.{they.namespace}.dead")]


async def refusal(address: str) -> str:
    """What it says of an address where it is not let in; a busy machine may need to be asked again."""
    engine = RabbitDispatch(address, SystemClock(), Sealer(b""))
    await engine.open("nobody")
    try:
        said = "timeout"
        while "timeout" in said:
            with pytest.raises(EngineUnavailable) as raised:
                await engine.depth("default")
            said = str(raised.value)
        return said
    finally:
        await engine.close()


async def test_what_is_refused_and_what_failed_for_good_is_among_the_dead_letters(
    they: OnRabbit, engine: Dispatch
) -> None:
    await they.smuggle("default", b"of somebody else")
    assert await engine.take("default", 1, SECOND // 2) == []
    assert isinstance(engine, Burying)
    run = DeadRun(
        id=a_run().id, tenant="t", job=None, task="greet", queue="q" * 200, reason="error", error="KeyError", at="now"
    )
    await engine.bury([run])
    async with asyncio.timeout(10):
        found: list[bytes] = []
        while len(found) < 2:
            found += await asyncio.to_thread(dead_letters, they)
    assert sorted(found)[0] == b"of somebody else"
    assert json.loads(sorted(found)[1]) == {
        "id": run.id,
        "tenant": "t",
        "job": None,
        "task": "greet",
        "queue": "q" * 200,
        "reason": "error",
        "error": "KeyError",
        "at": "now",
    }


async def test_an_exchange_that_was_deleted_is_made_again(they: OnRabbit, engine: Dispatch) -> None:
    assert isinstance(engine, Burying)
    place = f"mainspring.{they.namespace}.dead"
    run = DeadRun(id=a_run().id, tenant="", job=None, task="", queue="", reason="", error="", at="")
    await engine.bury([run])
    with rabbitmq.channel_of(they.address) as channel:
        channel.exchange_delete(place)
    await engine.bury([run])
    with rabbitmq.channel_of(they.address) as channel:
        channel.queue_delete(place)
    await engine.bury([run])
    assert await asyncio.to_thread(dead_letters, they) == [run.message()]
    # One that is of another kind is told of, and hints go on.
    with rabbitmq.channel_of(they.address) as channel:
        channel.exchange_delete(place)
        channel.exchange_declare(place, "topic", durable=True, auto_delete=False)
    await engine.bury([run])
    await engine.publish(hints(1))
    assert len(await take_all(engine, 1)) == 1


async def test_what_is_given_back_again_and_again_is_among_the_dead_letters(they: OnRabbit, engine: Dispatch) -> None:
    if not isinstance(they, OnQuorum):
        pytest.skip("classic queues do not count")
    [hint] = hints(1)
    await engine.publish([hint])

    def give_back() -> int:
        times = 0
        with rabbitmq.channel_of(they.address) as channel:
            while (message := channel.basic_get(they.names("default")[1], no_ack=False)) is not None:
                channel.basic_reject(message.delivery_tag, requeue=True)
                times += 1
        return times

    assert await asyncio.to_thread(give_back) == 11
    async with asyncio.timeout(10):
        while not (found := await asyncio.to_thread(dead_letters, they)):
            pass
    assert found == [they.sealer.seal(hint)]


async def test_a_message_of_any_size_is_refused_if_it_is_not_ours(they: OnRabbit, engine: Dispatch) -> None:
    await they.smuggle("default", b"x" * 65_537)
    await asyncio.to_thread(rabbitmq.publish, they.address, they.names("default")[0], b"x" * 300_000)
    [hint] = hints(1)
    await engine.publish([hint])
    assert runs(await take_all(engine, 1)) == [hint.run]
    async with asyncio.timeout(20):
        while engine.refused < 2:
            assert await engine.take("default", 1, SECOND // 10) == []


async def test_a_queue_that_was_deleted_is_made_again_by_whoever_waits_there(they: OnRabbit, engine: Dispatch) -> None:
    publisher = await they.another()
    await publisher.publish(hints(1))
    await engine.done(await take_all(engine, 1))
    waiting = asyncio.create_task(engine.take("default", 1, 20 * SECOND))
    await asyncio.sleep(0.2)
    await asyncio.to_thread(rabbitmq.delete, they.address, *they.names("default"))
    await asyncio.sleep(0.2)
    [hint] = hints(1)
    await publisher.publish([hint])
    assert runs(await waiting) == [hint.run]


async def test_a_queue_that_was_deleted_is_made_again_by_whoever_publishes(they: OnRabbit, engine: Dispatch) -> None:
    await engine.publish(hints(3))
    await asyncio.to_thread(rabbitmq.delete, they.address, *they.names("default"))
    assert await engine.depth("default") == 0
    made = hints(2)
    await engine.publish(made)
    assert sorted(runs(await take_all(engine, 2))) == sorted(hint.run for hint in made)
    await asyncio.to_thread(rabbitmq.delete, they.address, *they.names("default"))
    assert await engine.take("default", 1, 0) == []


async def test_a_queue_that_somebody_made_otherwise_is_used_and_told_of(they: OnRabbit, engine: Dispatch) -> None:
    with rabbitmq.channel_of(they.address) as channel:
        for name in they.names("default"):
            channel.queue_declare(name, durable=True, auto_delete=False)
    made = hints(3)
    await engine.publish(made)
    assert sorted(runs(await take_all(engine, 3))) == sorted(hint.run for hint in made)
    [first, *others] = await engine.warnings()
    assert "PRECONDITION_FAILED" in first
    assert len(others) < len(they.names("default"))
    # Whoever only looks finds it as well, and makes nothing.
    onlooker = await they.another()
    assert await onlooker.depth("default") == 0
    assert await onlooker.depth("another") == 0
    assert [first, *others] != [] == [said for said in await onlooker.warnings() if "PRECONDITION_FAILED" not in said]


async def test_nobody_is_given_more_than_there_are_slots_for(they: OnRabbit, engine: Dispatch) -> None:
    other = await they.another(MINUTE)
    await engine.publish(hints(10))
    held = await take_all(engine, 3)
    assert len(await take_all(other, 7)) == 7
    assert len(held) == 3


async def test_it_says_why_it_is_not_let_in(they: OnRabbit) -> None:
    place = they.address.partition("@")[2].partition("/")[0]
    assert "ACCESS_REFUSED" in await refusal(f"amqp://guest:wrong@{place}")
    assert "not found" in await refusal(f"amqp://guest:guest@{place}/elsewhere")
    assert "does not answer" in await refusal(f"amqp://guest:guest@127.0.0.1:{free_port()}")
    assert "does not answer" in await refusal(f"amqps://guest:guest@{place}")


async def test_the_next_node_is_tried_where_one_is_away(they: OnRabbit) -> None:
    credentials, at, place = they.address.partition("@")
    address = f"{credentials}{at}127.0.0.1:{free_port()},{place}"
    for _ in range(3):
        engine = RabbitDispatch(address, SystemClock(), they.sealer)
        await engine.open(they.namespace)
        assert await engine.depth("default") == 0
        await engine.close()


async def test_it_speaks_tls(they: OnRabbit, tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    made += ["-days", "1", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    made += ["-keyout", str(key), "-out", str(certificate)]
    await asyncio.to_thread(lambda: subprocess.run(made, check=True, capture_output=True))
    place, _, rest = they.address.partition("@")[2].partition("/")
    host, _, port = place.partition(":")

    served: list[asyncio.Future[None]] = []

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(asyncio.get_running_loop().create_future())
        broker_reader, broker_writer = await asyncio.open_connection(host, int(port))
        await asyncio.gather(forward(reader, broker_writer), forward(broker_reader, writer))
        served[-1].set_result(None)

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
        listening = f"localhost:{server.sockets[0].getsockname()[1]}"
        options = rest.replace("?", "&")
        engine = RabbitDispatch(
            f"amqps://guest:guest@{listening}/?ssl_ca_certs={certificate}{options}", SystemClock(), they.sealer
        )
        await engine.open(they.namespace)
        made_now: list[Hint] = hints(3)
        await engine.publish(made_now)
        assert sorted(runs(await take_all(engine, 3))) == sorted(hint.run for hint in made_now)
        await engine.close()
        await asyncio.wait(served, timeout=10)
        assert "CERTIFICATE_VERIFY_FAILED" in await refusal(f"amqps://guest:guest@{listening}")
