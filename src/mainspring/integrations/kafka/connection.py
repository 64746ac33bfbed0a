"""What every client of Kafka is told, and what its errors are to us."""

from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from mainspring.core.model.base.errors import EngineUnavailable
from mainspring.core.model.base.instant import MILLISECOND, SECOND, Micros
from mainspring.integrations.kafka.address import KafkaServer

#: How long one request may take.
PATIENCE: Micros = 4 * SECOND
_CRITICAL = 2


class RecordTooLarge(EngineUnavailable):
    """Kafka is there and will never take this."""


def options_of(server: KafkaServer, error: Callable[[KafkaError], None] | None = None) -> dict[str, Any]:
    """For any kind of client. ``error`` is called on the client's thread."""
    options: dict[str, Any] = {
        "bootstrap.servers": ",".join(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in server.nodes
        ),
        "client.id": "mainspring",
        # A broker that is back is found again soon.
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1_000,
        "socket.connection.setup.timeout.ms": PATIENCE // MILLISECOND,
        "socket.timeout.ms": PATIENCE // MILLISECOND,
        "socket.nagle.disable": True,
        # A topic that was just made, or deleted, is known soon.
        "topic.metadata.propagation.max.ms": 1_000,
        "topic.metadata.refresh.fast.interval.ms": 100,
        "allow.auto.create.topics": False,
        # It writes to the process's own stderr otherwise. What matters comes as an error.
        "log_level": _CRITICAL,
        **server.safety,
    }
    return options if error is None else options | {"error_cb": error}


def unavailable(error: Exception | KafkaError, last: str = "") -> EngineUnavailable:
    """``last``: what the client has said before, which is often the reason."""
    found = error.args[0] if isinstance(error, KafkaException) else error
    words = found.str() if isinstance(found, KafkaError) else str(found)
    if isinstance(found, KafkaError) and found.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        return RecordTooLarge(f"Kafka does not take a record: {words}")
    return EngineUnavailable(f"Kafka does not answer: {words}{f' ({last})' if last and last != words else ''}")
