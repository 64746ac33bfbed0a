"""RabbitMQ as a broker: dead letters, queues that other clients delete or declare, access, several nodes, and TLS."""

import asyncio
import json
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import amqp
import pytest

from mainspring.core.model.base.errors import BrokerUnavailable
from mainspring.core.model.base.instant import HOUR, MINUTE, SECOND
from mainspring.core.model.cluster.hints import Hint, HintCodec
from mainspring.core.model.runs.dead_letters import DeadRun
from mainspring.core.ports.dispatch import Broker, DeadLetterBroker
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.integrations.rabbitmq.dispatch import RabbitDispatch
from tests.contracts.test_dispatch import hints, runs, take_all
from tests.support import rabbitmq
from tests.support.builders import a_run
from tests.support.dispatch_harness import OnQuorum, OnRabbit
from tests.support.processes import free_port
from tests.support.waiting import eventually


@pytest.fixture(params=[OnRabbit, OnQuorum], ids=["classic", "quorum"])
async def they(request: pytest.FixtureRequest, address_of: Callable[[str], str]) -> AsyncIterator[OnRabbit]:
    they: OnRabbit = request.param(address_of("rabbitmq"))
    yield they
    await they.close()


@pytest.fixture
async def broker(they: OnRabbit) -> Broker:
    return await they.another(MINUTE)


async def read_dead_letters(they: OnRabbit, number: int) -> list[bytes]:
    """The next dead letters, at least this many. They are removed."""
    queue, found = f"mainspring.{they.namespace}.dead", list[bytes]()

    async def are_there() -> bool:
        found.extend(message.body for message in await asyncio.to_thread(rabbitmq.read_all, they.address, queue))
        return len(found) >= number

    await eventually(are_there, lambda: found)
    return sorted(found)


async def take_refused(broker: Broker, number: int) -> None:
    """Take until the broker client has refused this many messages, and has returned none."""

    async def are_refused() -> bool:
        assert await broker.take("default", 1, SECOND // 10) == []
        return broker.refused >= number

    await eventually(are_refused)


async def read_refusal(address: str) -> str:
    """The error of an address that does not give access."""
    broker = RabbitDispatch(address, SystemClock(), HintCodec(b""))
    await broker.open("nobody")

    async def read_error() -> str:
        """Empty after a timeout, which a busy machine can cause."""
        with pytest.raises(BrokerUnavailable) as raised:
            await broker.depth("default")
        message = str(raised.value)
        return "" if "timeout" in message else message

    try:
        return await eventually(read_error)
    finally:
        await broker.close()


async def test_refused_messages_and_dead_runs_become_dead_letters(they: OnRabbit, broker: Broker) -> None:
    await they.smuggle("default", b"of somebody else")
    await take_refused(broker, 1)
    assert isinstance(broker, DeadLetterBroker)
    run = DeadRun(
        id=a_run().id, tenant="t", job=None, task="greet", queue="q" * 200, reason="error", error="KeyError", at="now"
    )
    await broker.publish_dead([run])
    [foreign, dead] = await read_dead_letters(they, 2)
    assert foreign == b"of somebody else"
    assert json.loads(dead) == {
        "id": run.id,
        "tenant": "t",
        "job": None,
        "task": "greet",
        "queue": "q" * 200,
        "reason": "error",
        "error": "KeyError",
        "at": "now",
    }


async def test_a_deleted_exchange_is_declared_again(they: OnRabbit, broker: Broker) -> None:
    assert isinstance(broker, DeadLetterBroker)
    name = f"mainspring.{they.namespace}.dead"
    run = DeadRun(id=a_run().id, tenant="", job=None, task="", queue="", reason="", error="", at="")
    await broker.publish_dead([run])
    with rabbitmq.channel_of(they.address) as channel:
        channel.exchange_delete(name)
    await broker.publish_dead([run])
    with rabbitmq.channel_of(they.address) as channel:
        channel.queue_delete(name)
    await broker.publish_dead([run])
    assert await read_dead_letters(they, 1) == [run.message()]
    # An exchange of another type is logged, and hints are still published.
    with rabbitmq.channel_of(they.address) as channel:
        channel.exchange_delete(name)
        channel.exchange_declare(name, "topic", durable=True, auto_delete=False)
    await broker.publish_dead([run])
    await broker.publish(hints(1))
    assert len(await take_all(broker, 1)) == 1


async def test_a_message_that_was_rejected_ten_times_becomes_a_dead_letter(they: OnRabbit, broker: Broker) -> None:
    if not isinstance(they, OnQuorum):
        pytest.skip("classic queues do not count")
    [hint] = hints(1)
    await broker.publish([hint])

    def reject() -> int:
        times = 0
        with rabbitmq.channel_of(they.address) as channel:
            while (message := channel.basic_get(they.names("default")[1], no_ack=False)) is not None:
                channel.basic_reject(message.delivery_tag, requeue=True)
                times += 1
        return times

    assert await asyncio.to_thread(reject) == 11
    assert await read_dead_letters(they, 1) == [they.codec.encode(hint)]


async def test_a_foreign_message_of_any_size_is_refused(they: OnRabbit, broker: Broker) -> None:
    await they.smuggle("default", b"x" * 65_537)
    await asyncio.to_thread(rabbitmq.publish, they.address, they.names("default")[0], b"x" * 300_000)
    [hint] = hints(1)
    await broker.publish([hint])
    assert runs(await take_all(broker, 1)) == [hint.run]
    await take_refused(broker, 2)


async def test_a_waiting_consumer_declares_a_deleted_queue_again(they: OnRabbit, broker: Broker) -> None:
    publisher = await they.another()
    await publisher.publish(hints(1))
    await broker.done(await take_all(broker, 1))
    waiting = asyncio.create_task(broker.take("default", 1, HOUR))

    def are_consumed() -> bool:
        try:
            with rabbitmq.channel_of(they.address) as channel:
                queues = [channel.queue_declare(name, passive=True) for name in they.names("default")]
        except amqp.NotFound:
            return False
        return all(queue.consumer_count for queue in queues)

    await eventually(lambda: asyncio.to_thread(are_consumed))
    await asyncio.to_thread(rabbitmq.delete, they.address, *they.names("default"))
    await eventually(lambda: asyncio.to_thread(are_consumed))
    [hint] = hints(1)
    await publisher.publish([hint])
    assert runs(await waiting) == [hint.run]


async def test_a_publisher_declares_a_deleted_queue_again(they: OnRabbit, broker: Broker) -> None:
    await broker.publish(hints(3))
    await asyncio.to_thread(rabbitmq.delete, they.address, *they.names("default"))
    assert await broker.depth("default") == 0
    made = hints(2)
    await broker.publish(made)
    assert sorted(runs(await take_all(broker, 2))) == sorted(hint.run for hint in made)
    await asyncio.to_thread(rabbitmq.delete, they.address, *they.names("default"))
    assert await broker.take("default", 1, 0) == []


async def test_a_queue_with_other_arguments_is_used_and_reported(they: OnRabbit, broker: Broker) -> None:
    with rabbitmq.channel_of(they.address) as channel:
        for name in they.names("default"):
            channel.queue_declare(name, durable=True, auto_delete=False)
    made = hints(3)
    await broker.publish(made)
    assert sorted(runs(await take_all(broker, 3))) == sorted(hint.run for hint in made)
    [first, *others] = await broker.warnings()
    assert "PRECONDITION_FAILED" in first
    assert len(others) < len(they.names("default"))
    # A client that only reads the depth reports it as well, and declares nothing.
    onlooker = await they.another()
    assert await onlooker.depth("default") == 0
    assert await onlooker.depth("another") == 0
    assert [first, *others] != [] == [said for said in await onlooker.warnings() if "PRECONDITION_FAILED" not in said]


async def test_a_consumer_receives_no_more_than_its_demand(they: OnRabbit, broker: Broker) -> None:
    other = await they.another(MINUTE)
    await broker.publish(hints(10))
    held = await take_all(broker, 3)
    assert len(await take_all(other, 7)) == 7
    assert len(held) == 3


async def test_a_denied_client_reports_the_reason(they: OnRabbit) -> None:
    host = they.address.partition("@")[2].partition("/")[0]
    assert "ACCESS_REFUSED" in await read_refusal(f"amqp://guest:wrong@{host}")
    assert "not found" in await read_refusal(f"amqp://guest:guest@{host}/elsewhere")
    assert "does not answer" in await read_refusal(f"amqp://guest:guest@127.0.0.1:{free_port()}")
    assert "does not answer" in await read_refusal(f"amqps://guest:guest@{host}")


async def test_a_client_tries_the_next_node_if_one_is_away(they: OnRabbit) -> None:
    credentials, at, node = they.address.partition("@")
    address = f"{credentials}{at}127.0.0.1:{free_port()},{node}"
    for _ in range(3):
        broker = RabbitDispatch(address, SystemClock(), they.codec)
        await broker.open(they.namespace)
        assert await broker.depth("default") == 0
        await broker.close()


async def test_a_client_connects_with_tls(they: OnRabbit, tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    made += ["-days", "1", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    made += ["-keyout", str(key), "-out", str(certificate)]
    await asyncio.to_thread(lambda: subprocess.run(made, check=True, capture_output=True))
    node, _, rest = they.address.partition("@")[2].partition("/")
    host, _, port = node.partition(":")

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
        broker = RabbitDispatch(
            f"amqps://guest:guest@{listening}/?ssl_ca_certs={certificate}{options}", SystemClock(), they.codec
        )
        await broker.open(they.namespace)
        made_now: list[Hint] = hints(3)
        await broker.publish(made_now)
        assert sorted(runs(await take_all(broker, 3))) == sorted(hint.run for hint in made_now)
        await broker.close()
        await asyncio.wait(served)
        assert "CERTIFICATE_VERIFY_FAILED" in await read_refusal(f"amqps://guest:guest@{listening}")
