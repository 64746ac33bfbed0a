"""Tells a sink what happens: all that stands in the outbox, in order, until the sink has it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from mainspring.core.dispatch.outbox import SINK, parts_of
from mainspring.core.model.base.errors import EngineUnavailable, Fenced
from mainspring.core.model.base.ids import RunId
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
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.events_out import EventFacts, Sink
from mainspring.core.ports.wakeups import Wakeups
from mainspring.core.runtime.service import TickingService
from mainspring.core.store import EventBatch, Outbox

_SHARD = 0
_ATTACH_EVERY: Micros = 10 * SECOND
#: Rows of the outbox that are read at once, and events that are published at once, or a row more.
_BATCHES = 50
_EVENTS = 4_000
#: Nobody waits for an event: several changes are told together.
_GATHER: Micros = 50 * MILLISECOND
_IDLE: Micros = SECOND // 2
_FAR_BEHIND: Micros = MINUTE
_FIRST_PAUSE: Micros = 250 * MILLISECOND
_LONGEST_PAUSE: Micros = 5 * SECOND
#: The same runs are told of when they are made, start and end, mostly within seconds. Twice as many at most.
_REMEMBERED = 50_000


class PublisherStore(Outbox, EventFacts, Protocol):
    """The part of the store that is read here."""

    async def identity(self) -> str: ...

    async def now(self) -> Instant: ...


class Publisher(TickingService):
    """One in the cluster does the work for a sink, whoever owns the first shard.

    The sink's place in the outbox moves when the sink has the events: whoever dies in between tells them once more.
    What happens while it is away waits in the outbox for ``kept``; what is older is given up, and the sink is told so.
    The newest of what is older stays there as a sign: whoever takes over sees by it that something may be missing.
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
        #: Events that the sink has; calls that failed; events that were given up.
        self.sent = self.failed = self.dropped = 0
        self._store = store
        self._sink = sink
        self._owned = owned
        self._kept = kept
        self._reader = SINK + sink.name
        self._source = ""
        self._subjects: dict[str, Subject] = {}
        #: Those from before, from which whatever is asked for again goes over.
        self._older: dict[str, Subject] = {}
        self._attached_at: Micros | None = None
        self._wait: Micros = _GATHER
        #: Grows while the sink is away.
        self._pause: Micros = 0
        #: What the sink is to be told before anything else; how many are missing since when, as far as is known.
        self._gap: Event | None = None
        self._lost: int | None = None
        self._lost_from: Instant | None = None
        #: Another may have been here before.
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
            self._subjects, self._older = {}, {}
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
        except EngineUnavailable as error:
            return await self._sink_is_away(error)
        self._sink_is_there()
        if len(batches) == _BATCHES:
            # This process and the store have other things to do: a burst is told at leisure. Who is far behind, by this
            # node's clock, which is good enough for that, catches up.
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
            wanted = [batch for batch in part if self._sink.wants(batch.kind, batch.tenant)]
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
        """What is to be said of all that these are about, in one question."""
        if len(self._subjects) > _REMEMBERED:
            self._subjects, self._older = {}, self._subjects
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
            for facts in await self._store.facts_of(list(runs), min(batch.at for batch in batches)):
                self._subjects[facts.id] = subject_of_run(facts)
        if workers:
            for worker in await self._store.workers_of([worker_of_id(each) for each in workers]):
                self._subjects[id_of_worker(worker.id)] = subject_of_worker(worker)

    def _sink_is_there(self) -> None:
        if self.away:
            self._pause = 0
            self.log.info("sink answers again")

    async def _sink_is_away(self, error: EngineUnavailable) -> Micros:
        self.failed += 1
        if not self.away:
            self.log.warning("sink away: events wait in the outbox", error=str(error))
        self._pause = min(max(2 * self._pause, _FIRST_PAUSE), _LONGEST_PAUSE)
        await self._give_up_the_oldest()
        return self._pause

    async def _look_for_a_sign(self, batches: Sequence[EventBatch]) -> None:
        """Whoever gave something up may have died before the sink was told. How much it was nobody knows then."""
        now = await self._store.now()
        if batches and batches[0].at < now - self._kept:
            self._lost = self._lost_from = None
            self._gap = dropped(self._source, batches[0].position, now, None, None, batches[0].at)
        self._new_here = False

    async def _give_up_the_oldest(self) -> None:
        """The outbox is no archive: what has waited for too long goes, and the sink is told when it is back."""
        now = await self._store.now()
        while True:
            batches = await self._store.events(self._reader, _BATCHES)
            # All but the last, which is the sign.
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
