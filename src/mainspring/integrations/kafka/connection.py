"""Common options of Kafka clients, and the translation of their errors."""

from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from mainspring.core.model.base.errors import BrokerUnavailable
from mainspring.core.model.base.instant import MILLISECOND, SECOND, Micros
from mainspring.integrations.kafka.address import KafkaAddress

#: The time limit of one request.
PATIENCE: Micros = 4 * SECOND
_CRITICAL = 2


class RecordTooLarge(BrokerUnavailable):
    """Kafka is available but will never accept this record."""


def build_options(server: KafkaAddress, error: Callable[[KafkaError], None] | None = None) -> dict[str, Any]:
    """Return the options of any kind of client. ``error`` is called on the client's thread."""
    options: dict[str, Any] = {
        "bootstrap.servers": ",".join(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in server.nodes
        ),
        "client.id": "mainspring",
        # Reconnect quickly to a broker that is available again.
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1_000,
        "socket.connection.setup.timeout.ms": PATIENCE // MILLISECOND,
        "socket.timeout.ms": PATIENCE // MILLISECOND,
        "socket.nagle.disable": True,
        # Notice soon that a topic was created or deleted.
        "topic.metadata.propagation.max.ms": 1_000,
        "topic.metadata.refresh.fast.interval.ms": 100,
        "allow.auto.create.topics": False,
        # The client would write to the process's stderr. Important messages also arrive as errors.
        "log_level": _CRITICAL,
        **server.safety,
    }
    return options if error is None else options | {"error_cb": error}


def build_unavailable(error: Exception | KafkaError, last: str = "") -> BrokerUnavailable:
    """Convert an error of the client. ``last``: the previous message of the client, which is often the cause."""
    found = error.args[0] if isinstance(error, KafkaException) else error
    words = found.str() if isinstance(found, KafkaError) else str(found)
    if isinstance(found, KafkaError) and found.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        return RecordTooLarge(f"Kafka does not take a record: {words}")
    return BrokerUnavailable(f"Kafka does not answer: {words}{f' ({last})' if last and last != words else ''}")
