"""A Kafka server that requires TLS and a password."""

import asyncio
import socket
import ssl
from collections.abc import Iterator
from uuid import uuid4

import pytest

from mainspring.core.model.base.errors import BrokerUnavailable
from mainspring.core.model.base.instant import HOUR, SECOND
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.integrations.kafka.address import parse_kafka
from mainspring.integrations.kafka.admin import KafkaAdmin
from mainspring.integrations.kafka.consumer import BatchConsumer, ConsumedRecord
from mainspring.integrations.kafka.producer import BatchProducer, Record
from tests.support.certificates import make_certificate
from tests.support.servers import require
from tests.support.waiting import DEADLINE_SECONDS, eventually
from tools.services.ensemble import Node
from tools.services.kafka import Kafka

pytestmark = pytest.mark.slow

_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


class GuardedKafka(Kafka):
    name = "kafka-guarded"

    def settings(self, node: Node) -> dict[str, object]:
        make_certificate(node.directory)
        both = node.directory / "both.pem"
        both.write_text((node.directory / "key.pem").read_text() + (node.directory / "certificate.pem").read_text())
        controller = f"CONTROLLER://127.0.0.1:{node.ports['controller']}"
        return super().settings(node) | {
            "listeners": f"SASL_SSL://{node.address},{controller}",
            "advertised.listeners": f"SASL_SSL://{node.address}",
            "listener.security.protocol.map": "SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "SASL_SSL",
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": (
                f'{_MODULE} required username="ops" password="hush" user_ops="hush";'
            ),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": both,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": node.directory / "certificate.pem",
        }

    def serving(self, node: Node) -> bool:
        context = ssl.create_default_context(cafile=node.directory / "certificate.pem")
        try:
            with (
                socket.create_connection(("127.0.0.1", node.ports["client"]), timeout=1) as line,
                context.wrap_socket(line, server_hostname="127.0.0.1"),
            ):
                return True
        except OSError:
            return False


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedKafka]:
    require("kafka")
    kafka = GuardedKafka(tmp_path_factory.mktemp("guarded"))
    if not kafka.installed():
        kafka.install()
    kafka.start()
    yield kafka
    kafka.stop()


def make_address(kafka: GuardedKafka, password: str, trust: bool = True) -> str:
    [node] = kafka.nodes
    authority = f"&ssl_ca_location={node.directory / 'certificate.pem'}" if trust else ""
    return f"kafka://ops:{password}@{node.address}?sasl_mechanism=PLAIN{authority}"


async def test_a_client_with_the_password_sends_and_receives(guarded: GuardedKafka) -> None:
    server, topic = parse_kafka(make_address(guarded, "hush"), "test"), f"test-{uuid4().hex}"
    await KafkaAdmin(server).make_topics([topic], 2, {})
    producer = BatchProducer(server, HOUR)
    consumer = BatchConsumer(server, topic, [topic], SystemClock(), room=10)
    try:
        await producer.send([Record(topic, b"hello")])
        found: list[ConsumedRecord] = []
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not found:
                found += await consumer.take(1, SECOND)
        assert [received.value for received in found] == [b"hello"]
    finally:
        await consumer.close()
        await producer.close()


@pytest.mark.parametrize(
    ("password", "trust", "says"),
    [
        pytest.param("wrong", True, "uthentication", id="a wrong password"),
        pytest.param("hush", False, "ertificate", id="an untrusted certificate"),
    ],
)
async def test_a_denied_client_reports_the_reason(guarded: GuardedKafka, password: str, trust: bool, says: str) -> None:
    server = parse_kafka(make_address(guarded, password, trust), "test")
    producer = BatchProducer(server, 5 * SECOND)

    async def read_reason() -> str:
        """The error of one send; empty if it timed out before the server had answered."""
        with pytest.raises(BrokerUnavailable) as refused:
            await producer.send([Record(f"test-{uuid4().hex}", b"hello")])
        return str(refused.value) if says in str(refused.value) else ""

    try:
        assert password not in await eventually(read_reason)
    finally:
        await producer.close()
