"""Publishes the events of the outbox to a sink, in order, until the sink has accepted them."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Protocol

from mainspring.core.dispatch.outbox import SINK, parts_of
from mainspring.core.model.base.errors import BrokerUnavailable, Fenced
from mainspring.core.model.base.ids import JobId, RunId
from mainspring.core.model.base.instant import MILLISECOND, MINUTE, SECOND, Instant, Micros
from mainspring.core.model.events.events import (
    Event,
    Subject,
    compose,
    dropped,
    id_of_worker,
    kind_of,
    subject_of_plain_run,
    subject_of_run,
    subject_of_worker,
    worker_of_id,
)
from mainspring.core.model.runs.names import external_name
from mainspring.core.model.schedules.job import Job
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.events_out import EventFacts, Sink
from mainspring.core.ports.wakeups import Wakeups
from mainspring.core.runtime.service import TickingService
from mainspring.core.store import EventBatch, Outbox

_SHARD = 0
_ATTACH_EVERY: Micros = 10 * SECOND
#: Rows of the outbox read at once, and events published at once; one row may exceed the second limit.
_BATCHES = 50
_EVENTS = 4_000
#: Events are not urgent: several changes are published together.
_GATHER: Micros = 50 * MILLISECOND
_IDLE: Micros = SECOND // 2
_FAR_BEHIND: Micros = MINUTE
_FIRST_PAUSE: Micros = 250 * MILLISECOND
_LONGEST_PAUSE: Micros = 5 * SECOND
#: Subjects cached per generation, two generations at most. A run has events at submission, start and end, mostly within
#: seconds.
_REMEMBERED = 50_000


class PublisherStore(Outbox, EventFacts, Protocol):
    """The store methods that the publisher uses."""

    async def identity(self) -> str: ...

    async def now(self) -> Instant: ...

    async def jobs(self, ids: Sequence[JobId]) -> list[Job | None]: ...


class Publisher(TickingService):
    """Publishes events to one sink. The scheduler that owns the first shard runs it.

    1. The sink's cursor advances after the sink has accepted the events; a crash in between publishes them again.
    2. While the sink is unavailable, events wait in the outbox for ``kept``. Older ones are dropped, and the sink
       receives an ``events.dropped`` event.
    3. The newest of the events older than ``kept`` stays in the outbox as a marker. A publisher that takes over sees by
       it that events may be missing.
    """

    def __init__(
        self,
        store: PublisherStore,
        sink: Sink,
        wakeups: Wakeups,
        clock: Clock,
        owned: Callable[[], Mapping[int, int]],
        kept: Micros,
    ) -> None:
        super().__init__(f"events.{sink.name}", clock, wakeups.listen([]))
        self.sink = sink.name
        #: Events that the sink accepted; calls that failed; events that were dropped.
        self.sent = self.failed = self.dropped = 0
        self._store = store
        self._sink = sink
        self._owned = owned
        self._kept = kept
        self._reader = SINK + sink.name
        self._source = ""
        self._subjects: dict[str, Subject] = {}
        #: The previous generation; subjects that are used again move to the current one.
        self._older: dict[str, Subject] = {}
        self._job_names: dict[JobId, str] = {}
        self._attached_at: Micros | None = None
        self._wait: Micros = _GATHER
        #: Delay between retries; it grows while the sink is unavailable.
        self._pause: Micros = 0
        #: The event about dropped events, published before all others; with the number and start of the dropped ones,
        #: None if unknown.
        self._gap: Event | None = None
        self._lost: int | None = None
        self._lost_from: Instant | None = None
        #: Whether another scheduler may have published before.
        self._new_here = True

    @property
    def away(self) -> bool:
        return self._pause > 0

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
            self._gap, self._new_here = None, True
            return _IDLE
        await self._attach()
        began = self.clock.monotonic()
        batches = await self._store.events(self._reader, _BATCHES)
        if self._new_here:
            await self._look_for_a_sign(batches)
        try:
            await self._publish(batches, epoch)
        except Fenced as error:
            self.log.info("another scheduler tells it", error=str(error))
            return _LONGEST_PAUSE
        except BrokerUnavailable as error:
            return await self._sink_is_away(error)
        self._sink_is_there()
        if len(batches) == _BATCHES:
            # Publish a burst slowly, since this process and the store have other work. Catch up faster when far behind;
            # this node's clock is accurate enough to decide that.
            took = self.clock.monotonic() - began
            return 2 * took if self.clock.now() - batches[0].at < _FAR_BEHIND else took // 4
        self._wait = _GATHER if batches else min(2 * self._wait, _IDLE)
        return self._wait

    def health(self) -> dict[str, object]:
        state = "away" if self.away else "ok"
        return {"state": state, "sent": self.sent, "failed": self.failed, "dropped": self.dropped}

    async def _attach(self) -> None:
        now = self.clock.monotonic()
        if self._attached_at is None or now - self._attached_at > _ATTACH_EVERY:
            await self._store.attach_reader(self._reader, self._kept)
            self._attached_at = now

    async def _publish(self, batches: Sequence[EventBatch], epoch: int) -> None:
        if self._gap is not None:
            await self._sink.publish([self._gap], epoch)
            self._gap = None
        for part in parts_of(batches, _EVENTS):
            wanted = [batch for batch in part if self._sink.demands(batch.kind, batch.tenant)]
            await self._look_up(wanted)
            events = [event for batch in wanted for event in self._events(batch)]
            for start in range(0, len(events), _EVENTS):
                await self._sink.publish(events[start : start + _EVENTS], epoch)
            await self._store.acknowledge(self._reader, part[-1].position)
            self.sent += len(events)
            if self.stopping or self._owned().get(_SHARD) != epoch:
                return

    def _events(self, batch: EventBatch) -> Iterator[Event]:
        return compose(
            self._source,
            batch.kind,
            batch.runs,
            self._subjects,
            position=batch.position,
            at=batch.at,
            tenant=batch.tenant,
        )

    async def _look_up(self, batches: Sequence[EventBatch]) -> None:
        """Load the subjects of all these batches with one query for runs and one for workers."""
        if len(self._subjects) > _REMEMBERED:
            self._subjects, self._older, self._job_names = {}, self._subjects, {}
        runs: dict[RunId, None] = {}
        workers: dict[str, None] = {}
        for batch in batches:
            kind = kind_of(batch.kind)
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
            found = await self._store.facts_of(list(runs), min(batch.at for batch in batches))
            await self._look_up_jobs({facts.job_id for facts in found if facts.job_id is not None})
            for facts in found:
                job_name = "" if facts.job_id is None else self._job_names[facts.job_id]
                self._subjects[facts.id] = subject_of_run(facts, job_name)
        if workers:
            for worker in await self._store.workers_of([worker_of_id(each) for each in workers]):
                self._subjects[id_of_worker(worker.id)] = subject_of_worker(worker)

    async def _look_up_jobs(self, jobs: Collection[JobId]) -> None:
        """Load the external names of recurring jobs that are not in the cache."""
        missing = [job for job in jobs if job not in self._job_names]
        if missing:
            found = await self._store.jobs(missing)
            for identifier, job in zip(missing, found, strict=True):
                self._job_names[identifier] = "" if job is None else external_name(job.spec.tags)

    def _sink_is_there(self) -> None:
        if self.away:
            self._pause = 0
            self.log.info("sink answers again")

    async def _sink_is_away(self, error: BrokerUnavailable) -> Micros:
        self.failed += 1
        if not self.away:
            self.log.warning("sink away: events wait in the outbox", error=str(error))
        self._pause = min(max(2 * self._pause, _FIRST_PAUSE), _LONGEST_PAUSE)
        await self._give_up_the_oldest()
        return self._pause

    async def _look_for_a_sign(self, batches: Sequence[EventBatch]) -> None:
        """Set the gap if the oldest event is older than ``kept``.

        The previous publisher may have dropped events and crashed before it notified the sink. Their number is unknown
        then.
        """
        now = await self._store.now()
        if batches and batches[0].at < now - self._kept:
            self._lost = self._lost_from = None
            self._gap = dropped(self._source, batches[0].position, now, None, None, batches[0].at)
        self._new_here = False

    async def _give_up_the_oldest(self) -> None:
        """Drop events older than ``kept``; the sink is notified of it once it is available again."""
        now = await self._store.now()
        while True:
            batches = await self._store.events(self._reader, _BATCHES)
            # All but the newest one, which stays as the marker.
            old = [batch for batch in batches if batch.at < now - self._kept][:-1]
            if not old:
                return
            count = sum(len(batch.runs) for batch in old)
            if self._gap is None:
                self._lost, self._lost_from = 0, old[0].at
            if self._lost is not None:
                self._lost += count
            self._gap = dropped(self._source, old[-1].position, now, self._lost, self._lost_from, old[-1].at)
            self.dropped += count
            self.log.error("events given up: the sink was away for too long", events=count)
            await self._store.acknowledge(self._reader, old[-1].position)
