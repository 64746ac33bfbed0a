"""Topics with job requests, which all schedulers read as one group. Each topic has a dead-letter topic."""

import hashlib
from collections.abc import Collection, Sequence

import msgspec

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import DAY, MILLISECOND, SECOND, Micros
from mainspring.core.model.events.record_mapping import Record as MappedRecord
from mainspring.core.model.runs.names import MAX_NAME
from mainspring.core.model.runs.traces import read_traceparent
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.ingest import JobRequest, Rejection
from mainspring.core.runtime.tracing.current import current_traceparent
from mainspring.integrations.kafka.admin import KafkaAdmin
from mainspring.integrations.kafka.connection import RecordTooLarge
from mainspring.integrations.kafka.consumer import BatchConsumer, ConsumedRecord
from mainspring.integrations.kafka.producer import BatchProducer, Headers, Record
from mainspring.integrations.kafka.request_topic import (
    AUTHOR_HEADER,
    PROBLEM_HEADER,
    RUN_HEADER,
    SIGNATURE_HEADER,
    TENANT_HEADER,
    TRACE_HEADER,
    RequestSigner,
    RequestTopic,
    name_dead_topic,
)

_DEAD_KEPT: Micros = 30 * DAY
#: How long the handover of a partition waits for requests that the store is committing.
_SETTLE: Micros = 5 * SECOND
_ROOM = 5_000
#: If Kafka refuses a rejected record because of its size, this many bytes of it are kept. Each text of the reason
#: is cut to this many characters.
_CUT_TO = 10_000
_LONGEST_TEXT = 1_000
#: No caller waits for rejected records.
_PATIENCE: Micros = 10 * SECOND


class KafkaRequests:
    def __init__(
        self,
        topic: RequestTopic,
        namespace: str,
        clock: Clock,
        signer: RequestSigner | None = None,
        mapped: Collection[str] = (),
    ) -> None:
        """Configure the source of requests.

        - ``namespace``: identifies the store. Several stores read the same requests independently.
        - ``signer``: verifies the authors of requests from APIs; None: authors are not trusted.
        - ``mapped``: topics with records of other programs, which mappings convert to jobs.
        """
        self._topic = topic
        self._mapped = frozenset(mapped)
        self._topics = [name for name in (topic.name, *mapped) if name]
        self._signer = signer
        self._admin = KafkaAdmin(topic.server)
        self._producer = BatchProducer(topic.server, patience=_PATIENCE)
        self._consumer = BatchConsumer(
            topic.server,
            f"mainspring.{namespace}.ingest",
            self._topics,
            clock,
            room=_ROOM,
            settle=_SETTLE,
            in_turn=True,
        )
        self._made = False

    async def close(self) -> None:
        await self._consumer.close()
        await self._producer.close()

    async def take(self, limit: int, wait: Micros) -> list[JobRequest]:
        await self._make_topics()
        return [self._ask(one) for one in await self._consumer.take(limit, wait)]

    async def done(self, requests: Sequence[JobRequest]) -> None:
        self._consumer.done([ask.receipt for ask in requests if isinstance(ask.receipt, ConsumedRecord)])

    async def refuse(self, refused: Sequence[tuple[JobRequest, Rejection]]) -> None:
        try:
            await self._keep_apart([(_get_record(ask), why) for ask, why in refused])
        except BaseException:
            # The dead-letter topic may have been deleted.
            self._made = False
            raise
        await self.done([ask for ask, _ in refused])

    async def _keep_apart(self, refused: Sequence[tuple[ConsumedRecord, Rejection]]) -> None:
        try:
            await self._producer.send([_build_dead_record(one, why) for one, why in refused])
        except RecordTooLarge:
            # Kafka does not report which record is too large. Records that were sent before it are stored twice.
            for one, why in refused:
                try:
                    await self._producer.send([_build_dead_record(one, why)])
                except RecordTooLarge:
                    await self._producer.send([_build_dead_record(one, why, cut=True)])

    async def _make_topics(self) -> None:
        if not self._made or self._consumer.missing:
            await self._admin.make_topics(self._topics, self._topic.partitions, {})
            kept = {"retention.ms": str(_DEAD_KEPT // MILLISECOND)}
            await self._admin.make_topics([name_dead_topic(name) for name in self._topics], 1, kept)
            self._made, self._consumer.missing = True, False

    def _ask(self, one: ConsumedRecord) -> JobRequest:
        if one.topic in self._mapped:
            return JobRequest(
                body=one.value,
                # The record's key is not used, because other programs key their records for order.
                key=_read_position(one),
                tenant=_read_header(one, TENANT_HEADER),
                trace=read_traceparent(_read_header(one, TRACE_HEADER) or ""),
                topic=one.topic,
                record=MappedRecord(one.key, dict(one.headers), one.value),
                sent_at=one.timestamp * MILLISECOND,
                receipt=one,
            )
        return JobRequest(
            body=one.value,
            key=_read_key(one),
            tenant=_read_header(one, TENANT_HEADER),
            run=_read_header(one, RUN_HEADER),
            author=self._author(one),
            trace=read_traceparent(_read_header(one, TRACE_HEADER) or ""),
            sent_at=one.timestamp * MILLISECOND,
            receipt=one,
        )

    def _author(self, one: ConsumedRecord) -> str | None:
        author, tenant, run = (_read_header(one, name) for name in (AUTHOR_HEADER, TENANT_HEADER, RUN_HEADER))
        signature = next((value for name, value in one.headers if name == SIGNATURE_HEADER), None)
        if self._signer is None or author is None or tenant is None or run is None or signature is None:
            return None
        return author if self._signer.verify(signature, author, tenant, run, one.value) else None


class KafkaSubmitBuffer:
    """A service of the API that appends requests to the topic while the store is unavailable."""

    def __init__(self, topic: RequestTopic, signer: RequestSigner | None = None) -> None:
        self._topic = topic
        self._signer = signer
        self._admin = KafkaAdmin(topic.server)
        self._producer = BatchProducer(topic.server)
        self._made = False

    async def start(self) -> None: ...

    async def stop(self) -> None:
        await self._producer.close()

    async def accept(self, body: bytes, *, key: str, tenant: str, run: RunId, author: str) -> None:
        if not self._made:
            await self._admin.make_topics([self._topic.name], self._topic.partitions, {})
            self._made = True
        headers: Headers = [(TENANT_HEADER, tenant.encode()), (RUN_HEADER, run.encode())]
        if self._signer is not None:
            signature = self._signer.sign(author, tenant, run, body)
            headers += [(AUTHOR_HEADER, author.encode()), (SIGNATURE_HEADER, signature)]
        if trace := current_traceparent():
            headers.append((TRACE_HEADER, trace.encode()))
        await self._producer.send([Record(self._topic.name, body, key, headers)])


def _get_record(ask: JobRequest) -> ConsumedRecord:
    assert isinstance(ask.receipt, ConsumedRecord)
    return ask.receipt


def _build_dead_record(one: ConsumedRecord, why: Rejection, *, cut: bool = False) -> Record:
    """Build the dead-letter record, with the reason in a header. ``cut``: shorten it to fit any size limit."""
    said: dict[str, object] = {
        # These texts quote the request, so they may be long.
        "title": why.title[:_LONGEST_TEXT],
        "field": why.field[:_LONGEST_TEXT],
        "detail": why.detail[:_LONGEST_TEXT],
        "hint": why.hint[:_LONGEST_TEXT],
        "topic": one.topic,
        "partition": one.partition,
        "offset": one.offset,
    }
    headers = [(name, value or b"") for name, value in one.headers if name != PROBLEM_HEADER]
    value, key = one.value, one.key
    if cut:
        said["cutFrom"] = len(value)
        value = value[:_CUT_TO]
        key = key if key is not None and len(key) <= _CUT_TO else None
        headers = headers if sum(len(name) + len(value) for name, value in headers) <= _CUT_TO else []
    return Record(name_dead_topic(one.topic), value, key, [*headers, (PROBLEM_HEADER, msgspec.json.encode(said))])


def _read_header(one: ConsumedRecord, wanted: str) -> str | None:
    found = next((value for name, value in one.headers if name == wanted), None)
    return None if found is None else found.decode(errors="replace")


def _read_key(one: ConsumedRecord) -> str:
    """Return the key of a record, or its position if it has no key."""
    if one.key:
        try:
            key = one.key.decode()
        except UnicodeDecodeError:
            key = ""
        # The key is used as an idempotency key of the API; a key that is not valid there is replaced by its digest.
        plain = key == key.strip() and key.isprintable() and 0 < len(key) <= MAX_NAME
        return key if plain else f"key:{hashlib.blake2b(one.key, digest_size=32).hexdigest()}"
    return _read_position(one)


def _read_position(one: ConsumedRecord) -> str:
    """Return the position with the timestamp, because a topic that was created again reuses offsets."""
    position = f"{one.partition}/{one.offset}/{one.timestamp}"
    return f"{one.topic[: MAX_NAME - len(position) - 1]}/{position}"
