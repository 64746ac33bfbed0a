"""Tells people what goes wrong: hears of it as a sink of events, and makes a run of every message."""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Protocol

import msgspec

from mainspring.core.model.alerts.notices import QUEUE, Message, Notice, On, last_line
from mainspring.core.model.alerts.notification_rules import NotificationRules, Trouble
from mainspring.core.model.base.errors import Fenced
from mainspring.core.model.base.fingerprint import fingerprint_of
from mainspring.core.model.base.ids import JobId, RunId
from mainspring.core.model.base.instant import HOUR, MINUTE, SECOND, Instant, Micros, parse_instant
from mainspring.core.model.events.events import Event
from mainspring.core.model.runs.new_run import NewRun, made_once
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.model.runs.reserved import NOTIFICATION
from mainspring.core.model.runs.retry import RetryPolicy
from mainspring.core.model.runs.view import RunView
from mainspring.core.model.schedules.job import Job
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.storage.notifications import NotificationStore
from mainspring.core.ports.storage.slos import Slos
from mainspring.core.ports.wakeups import Wakeups
from mainspring.core.runtime.service import TickingService
from mainspring.core.store import Reading
from mainspring.core.submit.jobs import Jobs
from mainspring.features.alerts.grouping import SLO, Delivery, Situation

NAME = "notifications"
_SHARD = 0
_EVERY: Micros = SECOND
#: While nothing is to be told: what is forgotten need not be so at once.
_SELDOM: Micros = HOUR
#: About an hour: whoever passes it on may be away for a while.
_RETRY = RetryPolicy(max_retries=15, first_delay=2 * SECOND, max_delay=10 * MINUTE)
#: What an attempt failed of is a question of its own. Of one job, or one task, it is asked so often in a batch; the
#: attempts beyond that are counted with the last of them.
_MOST_ASKED = 20
#: What a kind of change in the outbox can be, for rules.
_HEARD = {
    "run.retried": (On.FAILED,),
    "run.failed": (On.FAILED, On.DEAD),
    "job.slo_missed": (On.SLO_MISSED,),
    "job.slo_recovered": (On.SLO_MISSED,),
}


class NotifierStore(NotificationStore, Slos, Reading, Protocol):
    """The part of the store that it uses."""


class _Data(msgspec.Struct, frozen=True, rename="camel"):
    run_id: str = ""
    job_id: str = ""
    task: str = ""
    queue: str = ""
    reason: str = ""
    error: str | None = None


class _Told(msgspec.Struct, frozen=True):
    """An event, as far as it is read here."""

    type: str
    time: str
    data: _Data
    tenant: str = ""

    @property
    def at(self) -> Instant:
        return parse_instant(self.time)

    @property
    def subject(self) -> str:
        return subject_of(self.data.job_id, self.data.task)


_read = msgspec.json.Decoder(_Told).decode


def subject_of(job: str, task: str) -> str:
    """A recurring job; all other runs are known by their task."""
    return job or f"task:{task}"


def message_run(jobs: Jobs, rules: NotificationRules, target: str, notice: Notice, to: str = "") -> NewRun:
    """The run that tells a target. ``to``: one of its addresses, or all of them."""
    channel = rules.channel_of(target)
    owner = target.partition(" ")[2]
    # One at a time, in order: what is over must not be told before what was wrong. A test is for who waits for it.
    key = "" if notice.test else f"notification:{channel.name}:{_short(target, to)}"
    policy = RunPolicy(retry=RetryPolicy(max_retries=0) if notice.test else _RETRY, ordering_key=key)
    return NewRun(
        id=jobs.new_run_id(key, tenant=channel.tenant),
        task=NOTIFICATION,
        payload=msgspec.json.encode(Message(channel.name, notice, owner, to)),
        queue=QUEUE,
        tenant=channel.tenant,
        policy=policy,
    )


class Notifier(TickingService):
    """One in the cluster does the work, whoever owns the first shard. It is a sink of events, and has a loop for what
    time does: a message that has gathered for long enough, quiet hours that are over, a problem that is.

    All that it knows is in the store before it acts on it. Of two who believe to be the one, the store hears one.
    """

    def __init__(
        self,
        store: NotifierStore,
        jobs: Jobs,
        rules: NotificationRules,
        wakeups: Wakeups,
        clock: Clock,
        owned: Callable[[], Mapping[int, int]],
    ) -> None:
        super().__init__(NAME, clock, wakeups.listen([]))
        self._store = store
        self._jobs = jobs
        self._rules = rules
        self._owned = owned
        self._source = ""
        self._situation: Situation | None = None
        self._rev = 0
        self._looked_at: Micros | None = None
        #: Tenants of whom something that failed is about to be told: what succeeds after it is of interest.
        self._expected: set[str] = set()
        self._changing = asyncio.Lock()

    # As a sink.

    async def open(self, source: str) -> None:
        self._source = source

    async def close(self) -> None: ...

    def wants(self, kind: str, tenant: str) -> bool:
        """Asked of every batch in order, before any of them is told. A success is of interest while something is wrong,
        which is mostly not so: nobody has to look those up."""
        if kind == "run.succeeded":
            known = self._situation is None or self._situation.has_open_of(tenant)
            return known or tenant in self._expected
        stages = _HEARD.get(kind)
        if stages is None or not any(self._rules.hears(stage, tenant) for stage in (*stages, On.RECOVERED)):
            return False
        self._expected.add(tenant)
        return True

    async def publish(self, events: Sequence[Event], epoch: int) -> None:
        # Of our own messages nothing is told.
        heard = [event for event in events if event.task != NOTIFICATION]
        if heard and self._source:
            async with self._changing:
                await self._alone(lambda situation: self._hear(situation, heard))
        self._expected.clear()

    # As a service.

    async def tick(self) -> Micros:
        if _SHARD not in self._owned():
            self._situation = None
        elif self._source:
            async with self._changing:
                try:
                    await self._alone(self._advance)
                except Fenced as error:
                    self.log.info("another scheduler tells of problems", error=str(error))
        return _EVERY

    async def _alone(self, work: Callable[[Situation], Awaitable[None]]) -> None:
        """What could not be written down is not known either: it is read anew."""
        try:
            if self._situation is None:
                kept = await self._store.notification_rows()
                self._rev = kept.rev
                self._situation = Situation(self._rules, self._source, kept.rows)
            await work(self._situation)
        except BaseException:
            self._situation = None
            raise

    async def _save(self, situation: Situation) -> None:
        changes = situation.changes()
        if not changes:
            return
        if not await self._store.change_notification_rows(self._rev, changes):
            raise Fenced("what is kept of problems was changed by another")
        self._rev += 1

    async def _advance(self, situation: Situation) -> None:
        now = self.clock.monotonic()
        if situation.rests and self._looked_at is not None and now - self._looked_at < _SELDOM:
            return
        self._looked_at = now
        situation.advance(await self._store.now())
        await self._save(situation)
        for target, deliveries in situation.outgoing().items():
            runs = [run for each in deliveries for run in self._runs(target, each)]
            await self._jobs.submit_many(runs)
            situation.delivered(target)
        await self._save(situation)

    def _runs(self, target: str, delivery: Delivery) -> list[NewRun]:
        """One for each who is to have it: who has it does not get it again when another one could not be told."""
        found = []
        for to in self._rules.channel_of(target).apart or ("",):
            run = message_run(self._jobs, self._rules, target, delivery.notice, to)
            name = f"notification:{_short(self._source, target, to)}"
            found.append(made_once(run, f"{name}:{delivery.number}"))
        return found

    async def _hear(self, situation: Situation, events: Sequence[Event]) -> None:
        bad = {event.id: _read(event.body) for event in events if event.type in _BAD}
        troubles = await _Looking(self._store).troubles(bad)
        met = await self._met_again([told.data.job_id for told in bad.values() if told.type == "job.slo_recovered"])
        for event in events:
            if event.id in troubles:
                situation.trouble(troubles[event.id])
            elif event.type == "job.slo_recovered" and event.key in met:
                situation.met_again(event.tenant, event.key, bad[event.id].at)
            elif event.type == "run.succeeded":
                self._succeeded(situation, event)
        await self._save(situation)

    def _succeeded(self, situation: Situation, event: Event) -> None:
        if not situation.has_open(event.tenant, event.key) and not situation.has_open(
            event.tenant, subject_of("", event.task)
        ):
            return
        told = _read(event.body)
        situation.succeeded(event.tenant, told.subject, told.at)

    async def _met_again(self, jobs: Collection[str]) -> set[str]:
        """Those that meet all of their objectives: of two, one may still be missed."""
        if not jobs:
            return set()
        states = await self._store.slo_states([JobId(job) for job in jobs])
        missing = {job for job, state in states.items() if state.late_since or state.quiet_since}
        return {job for job in jobs if job not in missing}


_BAD = frozenset({"run.retried", "run.dead", "job.slo_missed", "job.slo_recovered"})


class _Looking:
    """Finds out what events are about, in few questions."""

    def __init__(self, store: NotifierStore) -> None:
        self._store = store

    async def troubles(self, events: Mapping[str, _Told]) -> dict[str, Trouble]:
        """By event."""
        bad = {identifier: told for identifier, told in events.items() if told.type != "job.slo_recovered"}
        jobs = await self._jobs({told.data.job_id for told in bad.values() if told.data.job_id})
        runs = await self._runs({told.data.run_id for told in bad.values() if not told.data.job_id})
        errors = await self._errors({name: told for name, told in bad.items() if told.type == "run.retried"})
        return {
            name: _trouble(told, jobs.get(told.data.job_id), runs.get(told.data.run_id), errors.get(name))
            for name, told in bad.items()
        }

    async def _errors(self, retried: Mapping[str, _Told]) -> dict[str, str]:
        """By event."""
        asked: Counter[tuple[str, str]] = Counter()
        last: dict[tuple[str, str], str] = {}
        found: dict[str, str] = {}
        for name, told in retried.items():
            whose = (told.tenant, told.subject)
            if asked[whose] < _MOST_ASKED:
                last[whose] = await self._error_of(told.data.run_id, told.at)
            asked[whose] += 1
            found[name] = last[whose]
        return found

    async def _error_of(self, run: str, at: Instant) -> str:
        """Of the attempt that had ended then. The run may have gone on since."""
        attempts = await self._store.attempts(RunId(run))
        if not attempts:
            return ""
        meant = min(attempts, key=lambda attempt: abs(attempt.ended_at - at))
        return meant.error or meant.reason

    async def _jobs(self, ids: Collection[str]) -> dict[str, Job]:
        found = await self._store.jobs([JobId(job) for job in sorted(ids)]) if ids else []
        return {job.id: job for job in found if job is not None}

    async def _runs(self, ids: Collection[str]) -> dict[str, RunView]:
        found = await self._store.runs([RunId(run) for run in sorted(ids) if run]) if ids else []
        return {run.id: run for run in found if run is not None}


def _trouble(told: _Told, job: Job | None, run: RunView | None, attempt_error: str | None) -> Trouble:
    """``attempt_error``: of an attempt that is followed by another one."""
    data, about = told.data, None if run is None else run.about
    spec = None if job is None else job.spec
    name = spec.name if spec is not None else (about.name if about is not None else "") or data.task or data.job_id
    known = Trouble(
        stage=On.SLO_MISSED,
        tenant=told.tenant,
        subject=told.subject,
        fingerprint=SLO,
        at=told.at,
        name=name or data.run_id,
        task=data.task or ("" if spec is None else spec.task),
        queue=data.queue or ("" if spec is None else spec.queue),
        owner=spec.owner if spec is not None else "" if about is None else about.owner,
        tags=spec.tags if spec is not None else () if about is None else about.tags,
        run=data.run_id,
        job=data.job_id,
    )
    if told.type == "job.slo_missed":
        return known
    stage, error = On.DEAD, data.error or data.reason
    if attempt_error is not None:
        stage, error = On.FAILED, attempt_error
    # The same for an attempt that failed and for the run that is dead of it.
    return msgspec.structs.replace(known, stage=stage, fingerprint=fingerprint_of("", error), error=last_line(error))


def _short(*words: str) -> str:
    return hashlib.blake2b("\0".join(words).encode(), digest_size=8).hexdigest()
