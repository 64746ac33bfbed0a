"""A Kafka producer that sends batches and waits for all required replicas."""

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from mainspring.core.model.base.errors import BrokerUnavailable
from mainspring.core.model.base.instant import MILLISECOND, SECOND, Micros
from mainspring.core.runtime.threads import joined
from mainspring.integrations.kafka.address import KafkaAddress
from mainspring.integrations.kafka.connection import PATIENCE, build_options, build_unavailable

#: How often an idle client is polled for errors.
_IDLE_SECONDS = 30
_POLL_SECONDS = 0.2
#: The size limit of the client. The broker decides which record is too large; beyond this it closes the connection.
_LARGEST = 100_000_000

#: In the form that the client expects.
Headers = list[tuple[str, str | bytes | None]]


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record to send. Records with the same key stay in order, in one partition."""

    topic: str
    value: bytes
    key: str | bytes | None = None
    headers: Headers | None = None


class _Batch:
    """Counts the delivery reports of a batch, and notifies the event loop after the last one."""

    def __init__(self, size: int) -> None:
        self.sent: asyncio.Future[KafkaError | None] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._left = size
        self._error: KafkaError | None = None

    def report(self, error: KafkaError | None, message: Message | None) -> None:
        """Handle the report of one record. It is called on the polling thread only."""
        if error is not None:
            self._error = error
        self._left -= 1
        if not self._left:
            with suppress(RuntimeError):  # The loop is closed, so no task waits.
                self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        if not self.sent.done():
            self.sent.set_result(self._error)


class BatchProducer:
    """A producer. Its thread sleeps while no batch is in flight."""

    def __init__(self, server: KafkaAddress, patience: Micros = PATIENCE, linger: Micros = 0) -> None:
        """``patience``: how long to try to send a record. ``linger``: how long the first record waits for others."""
        self._options = build_options(server, self._erred) | {
            "enable.idempotence": True,
            "acks": "all",
            "message.timeout.ms": patience // MILLISECOND,
            "linger.ms": linger / MILLISECOND,
            "compression.type": "lz4",
            "message.max.bytes": _LARGEST,
            # The partitioner of Java clients, so that a key maps to the same partition for every sender.
            "partitioner": "murmur2_random",
        }
        self._patience = patience
        self._producer: Producer | None = None
        self._thread: threading.Thread | None = None
        self._work = threading.Event()
        self._under_way = 0
        self._said = ""

    async def send(self, records: Sequence[Record]) -> None:
        """Send records, and return when Kafka has all of them.

        After an error some may be stored: send all again, or drop them.
        """
        if not records:
            return
        producer, batch = self._connected(), _Batch(len(records))
        self._under_way += 1
        self._work.set()
        try:
            error = self._enqueue(producer, records, batch) or await batch.sent
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._work.clear()
        if error is not None:
            if isinstance(error, KafkaError) and error.fatal():
                # A client with a fatal error sends nothing more; the next call creates another client.
                await self.close()
            raise build_unavailable(error, self._said)
        self._said = ""

    async def close(self) -> None:
        """Close the client. Records in flight are dropped after the time limit."""
        producer, self._producer = self._producer, None
        thread, self._thread = self._thread, None
        if producer is None or thread is None:
            return
        self._work.set()
        await joined(thread)
        if not self._under_way:
            self._work.clear()

    def _enqueue(self, producer: Producer, records: Sequence[Record], batch: _Batch) -> KafkaError | BufferError | None:
        produce, report = producer.produce, batch.report
        try:
            for record in records:
                produce(record.topic, record.value, record.key, on_delivery=report, headers=record.headers)
        except (KafkaException, BufferError) as error:
            # The client's queue is full, or the topic does not exist.
            return error if isinstance(error, BufferError) else error.args[0]
        return None

    def _connected(self) -> Producer:
        if self._producer is None:
            try:
                self._producer = Producer(self._options)
            except KafkaException as error:
                raise BrokerUnavailable(f"Kafka cannot be spoken to: {error.args[0].str()}") from error
            self._thread = threading.Thread(target=self._serve, args=[self._producer], name="kafka: send", daemon=True)
            self._thread.start()
        return self._producer

    def _serve(self, producer: Producer) -> None:
        while self._producer is producer:
            if self._work.wait(_IDLE_SECONDS):
                producer.poll(_POLL_SECONDS)
            else:
                producer.poll(0)
        producer.flush(self._patience / SECOND)

    def _erred(self, error: KafkaError) -> None:
        # The message that all brokers are down follows the actual cause, so it must not replace it.
        if error.code() != KafkaError._ALL_BROKERS_DOWN or not self._said:
            self._said = error.str()
