"""A Kafka group consumer: takes batches of records, commits those done, and hands partitions over."""

import asyncio
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from mainspring.core.model.base.instant import MILLISECOND, SECOND, Micros
from mainspring.core.ports.clock import Clock
from mainspring.core.runtime.threads import joined
from mainspring.integrations.kafka.address import KafkaAddress
from mainspring.integrations.kafka.admin import KafkaAdmin
from mainspring.integrations.kafka.connection import build_options, build_unavailable
from mainspring.integrations.kafka.offsets import OffsetTracker

#: The number of records of each topic that are buffered.
_ROOM = 1_000
_COMMIT_EVERY: Micros = 100 * MILLISECOND
_BUSY_SECONDS, _IDLE_SECONDS = 0.1, 0.5
#: How long the handover of a partition waits for its taken records to be done.
_SETTLE: Micros = SECOND
_AWAY = (KafkaError._ALL_BROKERS_DOWN, KafkaError._AUTHENTICATION, KafkaError._SSL)
_MISSING = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)


class ConsumedRecord(msgspec.Struct, frozen=True):
    """A taken record."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes
    headers: Sequence[tuple[str, bytes | None]]
    #: Milliseconds since 1970, set by the sender or by the broker, which is a setting of the topic.
    timestamp: int
    track: OffsetTracker


class BatchConsumer:
    """A member of a consumer group, on its own thread from the first ``take`` on.

    With several topics, records of the first one are taken first; with ``in_turn`` the topics take turns.
    """

    def __init__(
        self,
        server: KafkaAddress,
        group: str,
        topics: Sequence[str],
        clock: Clock,
        *,
        room: int = _ROOM,
        settle: Micros = _SETTLE,
        in_turn: bool = False,
    ) -> None:
        self._options = build_options(server, self._erred) | {
            "group.id": group,
            "partition.assignment.strategy": "cooperative-sticky",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 10_000,
            "heartbeat.interval.ms": 1_000,
            "topic.metadata.refresh.interval.ms": 5_000,
            # A waiting fetch delays partitions that were resumed or assigned meanwhile.
            "fetch.wait.max.ms": 100,
            "fetch.queue.backoff.ms": 10,
            "fetch.error.backoff.ms": 100,
            "queued.min.messages": 2 * room,
            "on_commit": self._committed,
        }
        #: A topic did not exist when it was requested. The caller may create it.
        self.missing = False
        self._admin = KafkaAdmin(server)
        self._topics = list(topics)
        self._clock = clock
        self._room = room
        self._settle = settle
        self._in_turn = in_turn
        #: Guards the state that the thread and the event loop share.
        self._shared = threading.Condition()
        self._buffers: dict[str, deque[ConsumedRecord]] = {topic: deque() for topic in topics}
        self._tracks: dict[tuple[str, int], OffsetTracker] = {}
        self._paused: set[str] = set()
        self._dirty = False
        self._commit_at: Micros = 0
        self._away = ""
        self._failed: Exception | None = None
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._came = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def take(self, limit: int, wait: Micros) -> list[ConsumedRecord]:
        """Return up to ``limit`` records. If there are none, wait for the first one for at most ``wait``."""
        until = self._clock.monotonic() + wait
        self._start()
        while True:
            if found := self._pop(limit):
                return found
            await self._check()
            left = until - self._clock.monotonic()
            if left <= 0 or limit <= 0:
                return self._pop(limit)
            self._came.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left / SECOND):
                    await self._came.wait()

    def done(self, received: Sequence[ConsumedRecord]) -> None:
        """Mark records as done. Each is committed soon after all records before it in its partition are done."""
        with self._shared:
            for one in received:
                one.track.done(one.offset)
            self._dirty = True
            self._shared.notify_all()

    async def close(self) -> None:
        """Leave the group. Records that are not done are delivered to other members."""
        thread, self._thread = self._thread, None
        if thread is not None:
            with self._shared:
                self._stopping = True
                self._shared.notify_all()
            await joined(thread)

    def _pop(self, limit: int) -> list[ConsumedRecord]:
        found: list[ConsumedRecord] = []
        with self._shared:
            for buffer in self._buffers.values():
                number = min(limit - len(found), len(buffer))
                for _ in range(number):
                    one = buffer.popleft()
                    one.track.held += 1
                    found.append(one)
            if found:
                self._shared.notify_all()
            if self._in_turn:
                first = next(iter(self._buffers))
                self._buffers[first] = self._buffers.pop(first)
        return found

    async def _check(self) -> None:
        """Raise an error if no records can arrive."""
        if self._failed is not None:
            error, self._failed = self._failed, None
            await self.close()
            raise build_unavailable(error)
        if self._away:
            # The client reports that all brokers are unavailable, but not that one is back. Only its thread may ask
            # it.
            await self._admin.check()
            self._away = ""

    def _start(self) -> None:
        if self._thread is None:
            self._loop = asyncio.get_running_loop()
            self._stopping = False
            # Partitions of an earlier thread no longer belong to this consumer.
            self._give_up([TopicPartition(*one) for one in self._tracks])
            self._paused.clear()
            self._thread = threading.Thread(target=self._run, name="kafka: receive", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        consumer: Consumer | None = None
        try:
            consumer = Consumer(self._options)
            consumer.subscribe(self._topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)
            while not self._stopping:
                self._commit(consumer)
                self._make_room(consumer)
                first = consumer.poll(_BUSY_SECONDS if self._dirty or self._paused else _IDLE_SECONDS)
                if first is not None:
                    self._receive([first, *consumer.consume(self._room, 0)])
        except Exception as error:
            self._failed = error
            self._notify()
        finally:
            if consumer is not None:
                # Closing hands the partitions over, as in a rebalance.
                consumer.close()

    def _receive(self, messages: Sequence[Message]) -> None:
        with self._shared:
            for message in messages:
                if (error := message.error()) is not None:
                    self._note(error)
                    continue
                topic, partition, offset = message.topic(), message.partition(), message.offset()
                assert topic is not None
                assert partition is not None
                assert offset is not None
                track = self._tracks.get((topic, partition))
                if track is None or offset < track.next:
                    # A new partition, or the topic was deleted and created again.
                    track = self._tracks[topic, partition] = OffsetTracker(topic, partition)
                track.came(offset)
                self._buffers[topic].append(
                    ConsumedRecord(
                        topic,
                        partition,
                        offset,
                        message.key(),
                        message.value() or b"",
                        _headers(message),
                        message.timestamp()[1],
                        track,
                    )
                )
        self._notify()

    def _make_room(self, consumer: Consumer) -> None:
        """Pause topics whose buffer is full.

        Pausing discards prefetched records, so it first waits for free space.
        """
        with self._shared:
            if self._full() and not self._paused:
                self._shared.wait_for(lambda: self._stopping or not self._full(), _BUSY_SECONDS)
            full, paused = self._full(), self._paused
            resumed = {topic for topic in paused if len(self._buffers[topic]) <= self._room // 2}
            self._paused = (paused - resumed) | full
            changes = ((consumer.pause, full - paused), (consumer.resume, resumed))
            for change, topics in changes:
                if assigned := [TopicPartition(*one) for one in self._tracks if one[0] in topics]:
                    change(assigned)

    def _full(self) -> set[str]:
        return {topic for topic, buffer in self._buffers.items() if len(buffer) >= self._room}

    def _commit(self, consumer: Consumer, *, now: bool = False) -> None:
        with self._shared:
            if not self._dirty or (not now and self._clock.monotonic() < self._commit_at):
                return
            self._dirty = False
            self._commit_at = self._clock.monotonic() + _COMMIT_EVERY
            moved = [track for track in self._tracks.values() if track.position > track.committed]
            for track in moved:
                track.committed = track.position
            assigned = [TopicPartition(track.topic, track.partition, track.committed) for track in moved]
        if assigned:
            consumer.commit(offsets=assigned, asynchronous=True)

    def _committed(self, error: KafkaError | None, assigned: Sequence[TopicPartition]) -> None:
        if error is not None:
            with self._shared:
                for one in assigned:
                    if (track := self._tracks.get((one.topic, one.partition))) is not None:
                        track.committed = -1
                        self._dirty = True

    def _assigned(self, consumer: Consumer, assigned: Sequence[TopicPartition]) -> None:
        with self._shared:
            paused, self._paused = self._paused, set()
            if held := [TopicPartition(*one) for one in self._tracks if one[0] in paused]:
                # New partitions are not paused, so resume the topic and decide again for all its partitions.
                consumer.resume(held)

    def _revoked(self, consumer: Consumer, assigned: Sequence[TopicPartition]) -> None:
        """Hand partitions over. Taken records get a moment to be done, so that they are not delivered twice."""
        with self._shared:
            tracks = self._give_up(assigned)
            if not self._stopping:
                self._shared.wait_for(
                    lambda: self._stopping or all(track.held <= 0 for track in tracks), self._settle / SECOND
                )
            done = [
                TopicPartition(track.topic, track.partition, track.position)
                for track in tracks
                if track.position > track.committed
            ]
            for track in tracks:
                track.lost = True
        if done:
            with suppress(KafkaException):
                consumer.commit(offsets=done, asynchronous=False)

    def _lost(self, consumer: Consumer, assigned: Sequence[TopicPartition]) -> None:
        with self._shared:
            for track in self._give_up(assigned):
                track.lost = True

    def _give_up(self, assigned: Sequence[TopicPartition]) -> list[OffsetTracker]:
        tracks = [
            track for one in assigned if (track := self._tracks.pop((one.topic, one.partition), None)) is not None
        ]
        gone = set(map(id, tracks))
        for topic, buffer in self._buffers.items():
            if any(track.topic == topic for track in tracks):
                self._buffers[topic] = deque(one for one in buffer if id(one.track) not in gone)
        return tracks

    def _note(self, error: KafkaError) -> None:
        if error.code() in _MISSING:
            self.missing = True

    def _erred(self, error: KafkaError) -> None:
        if error.code() in _AWAY:
            self._away = error.str()
            self._notify()

    def _notify(self) -> None:
        assert self._loop is not None
        with suppress(RuntimeError):  # The loop is closed, so no task waits.
            self._loop.call_soon_threadsafe(self._came.set)


def _headers(message: Message) -> Sequence[tuple[str, bytes | None]]:
    found = message.headers()
    return () if found is None else found  # type: ignore[return-value]
