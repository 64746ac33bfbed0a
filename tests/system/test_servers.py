"""The servers that tests use: started once, found again, killed, and separate from those of other checkouts.

``LARGE_TESTS=1`` runs the clusters, too.
"""

import os
import signal
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import amqp
import pytest
import redis
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.rabbitmq import channel_of
from tests.support.waiting import wait_until
from tools.services import ServiceUnavailable, all_services
from tools.services.ensemble import Ensemble
from tools.services.kafka import Kafka, KafkaCluster
from tools.services.rabbitmq import RabbitMQ, RabbitMQCluster
from tools.services.redis import Redis

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

large = pytest.mark.skipif(os.environ.get("LARGE_TESTS") != "1", reason="LARGE_TESTS=1 runs it")


def put_in_rabbitmq(address: str, name: str, copies: int) -> None:
    with channel_of(address) as channel:
        kind = {"x-queue-type": "quorum" if copies > 1 else "classic"}
        channel.queue_declare(name, durable=True, auto_delete=False, arguments=kind)
        channel.confirm_select()
        channel.basic_publish_confirm(amqp.Message(b"kept", delivery_mode=2), routing_key=name)


def get_from_rabbitmq(address: str, name: str) -> bytes | None:
    with channel_of(address) as channel:
        message = channel.basic_get(name, no_ack=False)
        return message.body if message is not None else None


def put_in_kafka(address: str, name: str, copies: int) -> None:
    servers: dict[str, str | int | float | bool] = {"bootstrap.servers": address.removeprefix("kafka://")}
    administrator = AdminClient(servers)  # It must live until the result is there.
    administrator.create_topics([NewTopic(name, 1, copies)])[name].result(60)
    producer = Producer(servers | {"acks": "all"})
    producer.produce(name, b"kept")
    assert producer.flush(60) == 0


def get_from_kafka(address: str, name: str) -> bytes | None:
    consumer = Consumer({"bootstrap.servers": address.removeprefix("kafka://"), "group.id": name})
    try:
        consumer.assign([TopicPartition(name, 0, 0)])
        message = consumer.poll(60)
        return message.value() if message is not None and message.error() is None else None
    finally:
        consumer.close()


def put_in_redis(address: str, name: str, copies: int) -> None:
    with redis.Redis.from_url(address) as client:
        client.set(name, b"kept")


def get_from_redis(address: str, name: str) -> bytes | None:
    with redis.Redis.from_url(address) as client:
        value = client.get(name)
        assert not isinstance(value, Awaitable | str)
        return value


KINDS = [
    pytest.param(Redis, put_in_redis, get_from_redis, id="redis"),
    pytest.param(RabbitMQ, put_in_rabbitmq, get_from_rabbitmq, id="rabbitmq"),
    pytest.param(Kafka, put_in_kafka, get_from_kafka, id="kafka"),
]
CLUSTERS = [
    pytest.param(RabbitMQCluster, put_in_rabbitmq, get_from_rabbitmq, id="rabbitmq"),
    pytest.param(KafkaCluster, put_in_kafka, get_from_kafka, id="kafka"),
]


@pytest.mark.parametrize(("kind", "put", "get"), KINDS)
def test_a_killed_server_restarts_with_its_data(
    kind: type[Ensemble],
    put: Callable[[str, str, int], None],
    get: Callable[[str, str], bytes | None],
    address_of: Callable[[str], str],
    tmp_path: Path,
) -> None:
    shared, name = address_of(kind.name), uuid.uuid4().hex
    server = kind(tmp_path)
    try:
        address = server.ensure()
        assert address != shared
        put(address, name, 1)
        [node] = server.nodes
        if kind is RabbitMQ:
            # A confirmed message is on disk, but the declaration of its queue is written a little later.
            wait_until(lambda: _is_in_files(node.directory / "data", name), "the queue is not on disk")
        node.signal(signal.SIGKILL)
        assert not server.running()

        assert server.ensure() == address
        before = node.pid
        assert server.ensure() == address
        assert node.pid == before
        assert get(address, name) == b"kept"
        # The shared server still runs.
        assert all_services()[kind.name].running()
        server.stop()
        assert node.pid is None
    finally:
        server.remove()
    assert not list(tmp_path.glob("*/0"))
    assert not _find_processes(tmp_path)


@large
@pytest.mark.parametrize(("kind", "put", "get"), CLUSTERS)
def test_a_cluster_serves_without_any_one_of_its_nodes(
    kind: type[Ensemble],
    put: Callable[[str, str, int], None],
    get: Callable[[str, str], bytes | None],
    tmp_path: Path,
) -> None:
    name = uuid.uuid4().hex
    cluster = kind(tmp_path)
    try:
        cluster.ensure()
        put(_node_address(cluster, 0), name, 3)
        for node in cluster.nodes:
            node.signal(signal.SIGKILL)
            assert _get_from_new_leader(get, _node_address(cluster, (node.number + 1) % 3), name) == b"kept"
            node.start()
            cluster.wait()
        cluster.stop()
        cluster.ensure()
        assert get(_node_address(cluster, 2), name) == b"kept"
    finally:
        cluster.remove()
    assert not _find_processes(tmp_path)


def test_a_server_that_is_not_installed_names_the_packages_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ServiceUnavailable, match="apt-get install default-jre-headless maven"):
        Kafka(tmp_path).ensure()


def _is_in_files(folder: Path, name: str) -> bool:
    """Whether a file has the name, outside of the message store."""
    for path in folder.rglob("*"):
        if "msg_stor" not in str(path) and "queues" not in path.parts:
            with suppress(OSError):
                if name.encode() in path.read_bytes():
                    return True
    return False


def _get_from_new_leader(get: Callable[[str, str], bytes | None], address: str, name: str) -> bytes | None:
    """Get a message as soon as the cluster has a new leader."""

    def found() -> bytes | None:
        with suppress(amqp.AMQPError, OSError):
            return get(address, name)
        return None

    return wait_until(found)


def _node_address(cluster: Ensemble, number: int) -> str:
    """The address of one node alone."""
    scheme, _, rest = cluster.address().partition("://")
    before, at, _ = rest.rpartition("@")
    return f"{scheme}://{before}{at}{cluster.nodes[number].address}"


def _find_processes(folder: Path) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = process.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in command:
            found.append(command)
    return found
