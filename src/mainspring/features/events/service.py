"""Publishes the events of the outbox to a sink, in order, until the sink has accepted them."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Protocol

from mainspring.core.dispatch.outbox import SINK, split_batches
from mainspring.core.model.base.errors import BrokerUnavailable, Fenced
from mainspring.core.model.base.ids import JobId, RunId
from mainspring.core.model.base.instant import MILLISECOND, MINUTE, SECOND, Instant, Micros
from mainspring.core.model.events.events import (
    Event,
    Subject,
    compose,
    dropped,
    find_kind,
    id_of_worker,
    subject_of_plain_run,
    subject_of_run,
    subject_of_worker,
    worker_of_id,
)
from mainspring.core.model.runs.names import external_name
from mainspring.core.model.schedules.job import Job
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.events_out import EventFacts, Sink
from mainspring.core.ports.storage.outbox import EventBatch, Outbox
from mainspring.core.ports.wakeups import Wakeups
from mainspring.core.runtime.service import TickingService

_SHARD = 0
_ATTACH_INTERVAL: Micros = 10 * SECOND
#: Rows of the outbox read at once, and events published at once; one row may exceed the second limit.
_MAX_BATCHES = 50
_MAX_EVENTS = 4_000
#: Events are not urgent: several changes are published together.
_GATHER_TIME: Micros = 50 * MILLISECOND
_IDLE_INTERVAL: Micros = SECOND // 2
_FAR_BEHIND: Micros = MINUTE
_FIRST_RETRY_DELAY: Micros = 250 * MILLISECOND
_MAX_RETRY_DELAY: Micros = 5 * SECOND
#: Subjects cached per generation, two generations at most. A run has events at submission, start and end, mostly within
#: seconds.
_MAX_SUBJECTS = 50_000


class PublisherStore(Outbox, EventFacts, Protocol):
    """The store methods that the publisher uses."""

    async def identity(self) -> str: ...

    async def now(self) -> Instant: ...

    async def jobs(self, ids: Sequence[JobId]) -> list[Job | None]: ...


class Publisher(TickingService):
    """Publishes events to one sink. The scheduler that owns the first shard runs it.

    1. The sink's cursor advances after the sink has accepted the events; a crash in between publishes them again.
    2. While the sink is unavailable, events wait in the outbox for ``keep``. Older ones are dropped, and the sink
       receives an ``events.dropped`` event.
    3. The newest of the events older than ``keep`` stays in the outbox as a marker. A publisher that takes over sees by
       it that events may be missing.
    """

    def __init__(
        self,
        store: PublisherStore,
        sink: Sink,
        wakeups: Wakeups,
        clock: Clock,
        owned: Callable[[], Mapping[int, int]],
        keep: Micros,
    ) -> None:
        super().__init__(f"events.{sink.name}", clock, wakeups.listen([]))
        self.sink = sink.name
        #: Events that the sink accepted; calls that failed; events that were dropped.
        self.sent = self.failed = self.dropped = 0
        self._store = store
        self._sink = sink
        self._owned = owned
        self._keep = keep
        self._reader = SINK + sink.name
        self._source = ""
        self._subjects: dict[str, Subject] = {}
        #: The previous generation; subjects that are used again move to the current one.
        self._older: dict[str, Subject] = {}
        self._job_names: dict[JobId, str] = {}
        self._attached_at: Micros | None = None
        self._wait: Micros = _GATHER_TIME
        #: Delay between retries; it grows while the sink is unavailable.
        self._retry_delay: Micros = 0
        #: The event about dropped events, published before all others; with the number and start of the dropped ones,
        #: None if unknown.
        self._gap: Event | None = None
        self._dropped_count: int | None = None
        self._dropped_since: Instant | None = None
        #: Whether another scheduler may have published before.
        self._is_new_owner = True

    @property
    def is_unavailable(self) -> bool:
        return self._retry_delay > 0

    async def start(self) -> None:
        self._source = f"/mainspring/{await self._store.identity()}"
        await self._sink.open(self._source)
        await super().start()

    async def stop(self) -> None:
        await super().stop()
        await self._sink.close()

    async def tick(self) -> Micros:
        epoch = self._owned().get(_SHARD)
        if epoch is None:
            self._attached_at = None
            self._subjects, self._older, self._job_names = {}, {}, {}
            self._gap, self._is_new_owner = None, True
            return _IDLE_INTERVAL
        await self._attach()
        began = self.clock.monotonic()
        batches = await self._store.events(self._reader, _MAX_BATCHES)
        if self._is_new_owner:
            await self._detect_gap(batches)
        try:
            await self._publish(batches, epoch)
        except Fenced as error:
            self.log.info("sink owned by another scheduler", error=str(error))
            return _MAX_RETRY_DELAY
        except BrokerUnavailable as error:
            return await self._handle_unavailable(error)
        self._mark_available()
        if len(batches) == _MAX_BATCHES:
            # Publish a burst slowly, since this process and the store have other work. Catch up faster when far behind;
            # this node's clock is accurate enough to decide that.
            took = self.clock.monotonic() - began
            return 2 * took if self.clock.now() - batches[0].at < _FAR_BEHIND else took // 4
        self._wait = _GATHER_TIME if batches else min(2 * self._wait, _IDLE_INTERVAL)
        return self._wait

    def health(self) -> dict[str, object]:
        state = "away" if self.is_unavailable else "ok"
        return {"state": state, "sent": self.sent, "failed": self.failed, "dropped": self.dropped}

    async def _attach(self) -> None:
        now = self.clock.monotonic()
        if self._attached_at is None or now - self._attached_at > _ATTACH_INTERVAL:
            await self._store.attach_reader(self._reader, self._keep)
            self._attached_at = now

    async def _publish(self, batches: Sequence[EventBatch], epoch: int) -> None:
        if self._gap is not None:
            await self._sink.publish([self._gap], epoch)
            self._gap = None
        for part in split_batches(batches, _MAX_EVENTS):
            wanted = [batch for batch in part if self._sink.demands(batch.kind, batch.tenant)]
            await self._load_subjects(wanted)
            events = [event for batch in wanted for event in self._compose_events(batch)]
            for start in range(0, len(events), _MAX_EVENTS):
                await self._sink.publish(events[start : start + _MAX_EVENTS], epoch)
            await self._store.acknowledge(self._reader, part[-1].position)
            self.sent += len(events)
            if self.stopping or self._owned().get(_SHARD) != epoch:
                return

    def _compose_events(self, batch: EventBatch) -> Iterator[Event]:
        return compose(
            self._source,
            batch.kind,
            batch.runs,
            self._subjects,
            position=batch.position,
            at=batch.at,
            tenant=batch.tenant,
        )

    async def _load_subjects(self, batches: Sequence[EventBatch]) -> None:
        """Load the subjects of all these batches with one query for runs and one for workers."""
        if len(self._subjects) > _MAX_SUBJECTS:
            self._subjects, self._older, self._job_names = {}, self._subjects, {}
        runs: dict[RunId, None] = {}
        workers: dict[str, None] = {}
        for batch in batches:
            kind = find_kind(batch.kind)
            if kind.subject == "worker":
                workers |= dict.fromkeys(batch.runs)
            elif batch.tasks:
                for run, task, queue in zip(batch.runs, batch.tasks, batch.queues, strict=True):
                    self._subjects[run] = subject_of_plain_run(task, queue)
            elif kind.subject == "run":
                for run in batch.runs:
                    known = self._subjects.get(run) or self._older.get(run)
                    if known is None or (kind.explained and known.end is None):
                        runs[run] = None
                    else:
                        self._subjects[run] = known
        if runs:
            found = await self._store.read_run_facts(list(runs), min(batch.at for batch in batches))
            await self._look_up_jobs({facts.job_id for facts in found if facts.job_id is not None})
            for facts in found:
                job_name = "" if facts.job_id is None else self._job_names[facts.job_id]
                self._subjects[facts.id] = subject_of_run(facts, job_name)
        if workers:
            for worker in await self._store.read_worker_facts([worker_of_id(each) for each in workers]):
                self._subjects[id_of_worker(worker.id)] = subject_of_worker(worker)

    async def _look_up_jobs(self, jobs: Collection[JobId]) -> None:
        """Load the external names of recurring jobs that are not in the cache."""
        missing = [job for job in jobs if job not in self._job_names]
        if missing:
            found = await self._store.jobs(missing)
            for identifier, job in zip(missing, found, strict=True):
                self._job_names[identifier] = "" if job is None else external_name(job.spec.tags)

    def _mark_available(self) -> None:
        if self.is_unavailable:
            self._retry_delay = 0
            self.log.info("sink available again")

    async def _handle_unavailable(self, error: BrokerUnavailable) -> Micros:
        self.failed += 1
        if not self.is_unavailable:
            self.log.warning("sink unavailable, events stay in the outbox", error=str(error))
        self._retry_delay = min(max(2 * self._retry_delay, _FIRST_RETRY_DELAY), _MAX_RETRY_DELAY)
        await self._drop_expired()
        return self._retry_delay

    async def _detect_gap(self, batches: Sequence[EventBatch]) -> None:
        """Set the gap if the oldest event is older than ``keep``.

        The previous publisher may have dropped events and crashed before it notified the sink. Their number is unknown
        then.
        """
        now = await self._store.now()
        if batches and batches[0].at < now - self._keep:
            self._dropped_count = self._dropped_since = None
            self._gap = dropped(self._source, batches[0].position, now, None, None, batches[0].at)
        self._is_new_owner = False

    async def _drop_expired(self) -> None:
        """Drop events older than ``keep``; the sink is notified of it once it is available again."""
        now = await self._store.now()
        while True:
            batches = await self._store.events(self._reader, _MAX_BATCHES)
            # All but the newest one, which stays as the marker.
            expired = [batch for batch in batches if batch.at < now - self._keep][:-1]
            if not expired:
                return
            count = sum(len(batch.runs) for batch in expired)
            if self._gap is None:
                self._dropped_count, self._dropped_since = 0, expired[0].at
            if self._dropped_count is not None:
                self._dropped_count += count
            self._gap = dropped(
                self._source, expired[-1].position, now, self._dropped_count, self._dropped_since, expired[-1].at
            )
            self.dropped += count
            self.log.error("events dropped, sink unavailable for too long", events=count)
            await self._store.acknowledge(self._reader, expired[-1].position)
