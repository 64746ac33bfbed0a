"""Alerts as an event sink: groups failures and submits a run for each message."""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Protocol

import msgspec

from mainspring.core.model.alerts.alert_messages import QUEUE, Alert, AlertStage, Message, shorten_error
from mainspring.core.model.alerts.notification_rules import NotificationRules, ProblemEvent
from mainspring.core.model.base.errors import Fenced
from mainspring.core.model.base.fingerprint import compute_fingerprint
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
from mainspring.core.ports.storage.reads import StoreReads
from mainspring.core.ports.storage.slos import Slos
from mainspring.core.ports.wakeups import Wakeups
from mainspring.core.runtime.service import TickingService
from mainspring.core.submit.jobs import Jobs
from mainspring.features.alerts.alert_state import SLO, AlertState
from mainspring.features.alerts.target_alerts import AlertMessage

NAME = "notifications"
_SHARD = 0
_INTERVAL: Micros = SECOND
#: Interval of the checks while nothing is pending: dropping old problems is not urgent.
_IDLE_INTERVAL: Micros = HOUR
#: About an hour, to outlast an outage of the service that delivers the message.
_RETRY = RetryPolicy(max_retries=15, first_delay=2 * SECOND, max_delay=10 * MINUTE)
#: Each error of an attempt takes a query of its own. This limits the queries per job or task in one batch; attempts
#: beyond it are counted with the last error found.
_MAX_ERROR_QUERIES = 20
#: The rule stages that each kind of event can lead to.
_STAGES_BY_KIND = {
    "run.retried": (AlertStage.FAILED,),
    "run.failed": (AlertStage.FAILED, AlertStage.DEAD),
    "job.slo_missed": (AlertStage.SLO_MISSED,),
    "job.slo_recovered": (AlertStage.SLO_MISSED,),
}


class NotifierStore(NotificationStore, Slos, StoreReads, Protocol):
    """The store methods that the notifier uses."""


class _Data(msgspec.Struct, frozen=True, rename="camel"):
    run_id: str = ""
    job_id: str = ""
    task: str = ""
    queue: str = ""
    reason: str = ""
    error: str | None = None


class _EventFields(msgspec.Struct, frozen=True):
    """The fields of an event that the notifier reads."""

    type: str
    time: str
    data: _Data
    tenant: str = ""

    @property
    def at(self) -> Instant:
        return parse_instant(self.time)

    @property
    def subject(self) -> str:
        return choose_subject(self.data.job_id, self.data.task)


_decode_event = msgspec.json.Decoder(_EventFields).decode


def choose_subject(job: str, task: str) -> str:
    """Return the subject of a problem: the recurring job, or the task for all other runs."""
    return job or f"task:{task}"


def build_message_run(jobs: Jobs, rules: NotificationRules, target: str, alert: Alert, to: str = "") -> NewRun:
    """Build the run that delivers a message to a target. ``to``: one of its addresses; empty: all of them."""
    channel = rules.find_channel(target)
    owner = target.partition(" ")[2]
    # The ordering key delivers one message at a time, so that a recovery never arrives before its problem. A test has
    # none: a caller waits for it.
    key = "" if alert.test else f"notification:{channel.name}:{_hash_words(target, to)}"
    policy = RunPolicy(retry=RetryPolicy(max_retries=0) if alert.test else _RETRY, ordering_key=key)
    return NewRun(
        id=jobs.new_run_id(key, tenant=channel.tenant),
        task=NOTIFICATION,
        payload=msgspec.json.encode(Message(channel.name, alert, owner, to)),
        queue=QUEUE,
        tenant=channel.tenant,
        policy=policy,
    )


class Notifier(TickingService):
    """Event sink that turns failures into alerts. The scheduler that owns the first shard runs it.

    Its loop does what depends on time: messages whose grouping time is over, quiet hours that end, problems that close.
    State is saved in the store before the notifier acts on it. If two schedulers both believe to own the shard, the
    store's revision check rejects one of them.
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
        self._state: AlertState | None = None
        self._rev = 0
        self._checked_at: Micros | None = None
        #: Tenants with a failure later in this batch: their successes after it are relevant, too.
        self._expected: set[str] = set()
        self._changing = asyncio.Lock()

    # Sink interface.

    async def open(self, source: str) -> None:
        self._source = source

    async def close(self) -> None: ...

    def demands(self, kind: str, tenant: str) -> bool:
        """Return whether an event is relevant. Called for each row of a batch in order, before ``publish``.

        Successes are relevant only while the tenant has an open problem. That is rare, so most runs need no lookup.
        """
        if kind == "run.succeeded":
            has_problem = self._state is None or self._state.problems.has_tenant(tenant)
            return has_problem or tenant in self._expected
        stages = _STAGES_BY_KIND.get(kind)
        if stages is None or not any(
            self._rules.has_rule_for(stage, tenant) for stage in (*stages, AlertStage.RECOVERED)
        ):
            return False
        self._expected.add(tenant)
        return True

    async def publish(self, events: Sequence[Event], epoch: int) -> None:
        # Failures of the alert runs themselves cause no alerts.
        relevant = [event for event in events if event.task != NOTIFICATION]
        if relevant and self._source:
            async with self._changing:
                await self._run_on_state(lambda state: self._record(state, relevant))
        self._expected.clear()

    # Service interface.

    async def tick(self) -> Micros:
        if _SHARD not in self._owned():
            self._state = None
        elif self._source:
            async with self._changing:
                try:
                    await self._run_on_state(self._advance)
                except Fenced as error:
                    self.log.info("alerts owned by another scheduler", error=str(error))
        return _INTERVAL

    async def _run_on_state(self, work: Callable[[AlertState], Awaitable[None]]) -> None:
        """Run the work on the situation. After any error the situation is discarded and read from the store again."""
        try:
            if self._state is None:
                stored = await self._store.notification_rows()
                self._rev = stored.rev
                self._state = AlertState(self._rules, self._source, stored.rows)
            await work(self._state)
        except BaseException:
            self._state = None
            raise

    async def _save(self, state: AlertState) -> None:
        changes = state.take_changes()
        if not changes:
            return
        if not await self._store.change_notification_rows(self._rev, changes):
            raise Fenced("the stored problems were changed by another process")
        self._rev += 1

    async def _advance(self, state: AlertState) -> None:
        now = self.clock.monotonic()
        if state.is_idle and self._checked_at is not None and now - self._checked_at < _IDLE_INTERVAL:
            return
        self._checked_at = now
        state.advance(await self._store.now())
        await self._save(state)
        for target, messages in state.list_outgoing().items():
            runs = [run for each in messages for run in self._build_runs(target, each)]
            await self._jobs.submit_many(runs)
            state.mark_submitted(target)
        await self._save(state)

    def _build_runs(self, target: str, message: AlertMessage) -> list[NewRun]:
        """Build one run per address, so that a failure at one address does not resend the message to the others."""
        found = []
        for to in self._rules.find_channel(target).apart or ("",):
            run = build_message_run(self._jobs, self._rules, target, message.alert, to)
            name = f"notification:{_hash_words(self._source, target, to)}"
            found.append(made_once(run, f"{name}:{message.number}"))
        return found

    async def _record(self, state: AlertState, events: Sequence[Event]) -> None:
        failures = {event.id: _decode_event(event.body) for event in events if event.type in _FAILURE_KINDS}
        problem_events = await _EventLookup(self._store).build_problem_events(failures)
        recovered = await self._list_recovered_jobs(
            [fields.data.job_id for fields in failures.values() if fields.type == "job.slo_recovered"]
        )
        for event in events:
            if event.id in problem_events:
                state.add_failure(problem_events[event.id])
            elif event.type == "job.slo_recovered" and event.key in recovered:
                state.add_slo_recovery(event.tenant, event.key, failures[event.id].at)
            elif event.type == "run.succeeded":
                self._record_success(state, event)
        await self._save(state)

    def _record_success(self, state: AlertState, event: Event) -> None:
        if not state.problems.ids_of_subject(event.tenant, event.key) and not state.problems.ids_of_subject(
            event.tenant, choose_subject("", event.task)
        ):
            return
        fields = _decode_event(event.body)
        state.add_success(event.tenant, fields.subject, fields.at)

    async def _list_recovered_jobs(self, jobs: Collection[str]) -> set[str]:
        """Return the jobs that now meet all of their objectives: one may still be missed when another has recovered."""
        if not jobs:
            return set()
        states = await self._store.slo_states([JobId(job) for job in jobs])
        missing = {job for job, state in states.items() if state.late_since or state.quiet_since}
        return {job for job in jobs if job not in missing}


_FAILURE_KINDS = frozenset({"run.retried", "run.dead", "job.slo_missed", "job.slo_recovered"})


class _EventLookup:
    """Looks up the jobs, runs and errors that events refer to, in few queries."""

    def __init__(self, store: NotifierStore) -> None:
        self._store = store

    async def build_problem_events(self, events: Mapping[str, _EventFields]) -> dict[str, ProblemEvent]:
        """Build the problem events by event id."""
        failures = {identifier: fields for identifier, fields in events.items() if fields.type != "job.slo_recovered"}
        jobs = await self._read_jobs({fields.data.job_id for fields in failures.values() if fields.data.job_id})
        runs = await self._read_runs({fields.data.run_id for fields in failures.values() if not fields.data.job_id})
        errors = await self._read_errors(
            {name: fields for name, fields in failures.items() if fields.type == "run.retried"}
        )
        return {
            name: _build_problem_event(
                fields, jobs.get(fields.data.job_id), runs.get(fields.data.run_id), errors.get(name)
            )
            for name, fields in failures.items()
        }

    async def _read_errors(self, retried: Mapping[str, _EventFields]) -> dict[str, str]:
        """Look up the errors of retried attempts by event id, at most ``_MAX_ERROR_QUERIES`` per job or task."""
        queried: Counter[tuple[str, str]] = Counter()
        last: dict[tuple[str, str], str] = {}
        found: dict[str, str] = {}
        for name, fields in retried.items():
            key = (fields.tenant, fields.subject)
            if queried[key] < _MAX_ERROR_QUERIES:
                last[key] = await self._read_attempt_error(fields.data.run_id, fields.at)
            queried[key] += 1
            found[name] = last[key]
        return found

    async def _read_attempt_error(self, run: str, at: Instant) -> str:
        """Return the error of the attempt that ended closest to ``at``; the run may have had more attempts since."""
        attempts = await self._store.attempts(RunId(run))
        if not attempts:
            return ""
        closest = min(attempts, key=lambda attempt: abs(attempt.ended_at - at))
        return closest.error or closest.reason

    async def _read_jobs(self, ids: Collection[str]) -> dict[str, Job]:
        found = await self._store.jobs([JobId(job) for job in sorted(ids)]) if ids else []
        return {job.id: job for job in found if job is not None}

    async def _read_runs(self, ids: Collection[str]) -> dict[str, RunView]:
        found = await self._store.runs([RunId(run) for run in sorted(ids) if run]) if ids else []
        return {run.id: run for run in found if run is not None}


def _build_problem_event(
    fields: _EventFields, job: Job | None, run: RunView | None, attempt_error: str | None
) -> ProblemEvent:
    """Build the problem event of an event. ``attempt_error``: the error of a failed attempt that will be retried."""
    data, about = fields.data, None if run is None else run.about
    spec = None if job is None else job.spec
    name = spec.name if spec is not None else (about.name if about is not None else "") or data.task or data.job_id
    base = ProblemEvent(
        stage=AlertStage.SLO_MISSED,
        tenant=fields.tenant,
        subject=fields.subject,
        fingerprint=SLO,
        at=fields.at,
        name=name or data.run_id,
        task=data.task or ("" if spec is None else spec.task),
        queue=data.queue or ("" if spec is None else spec.queue),
        owner=spec.owner if spec is not None else "" if about is None else about.owner,
        tags=spec.tags if spec is not None else () if about is None else about.tags,
        run=data.run_id,
        job=data.job_id,
    )
    if fields.type == "job.slo_missed":
        return base
    stage, error = AlertStage.DEAD, data.error or data.reason
    if attempt_error is not None:
        stage, error = AlertStage.FAILED, attempt_error
    # The fingerprint ignores the stage: a failed attempt and the run that fails for good have the same one.
    return msgspec.structs.replace(
        base, stage=stage, fingerprint=compute_fingerprint("", error), error=shorten_error(error)
    )


def _hash_words(*words: str) -> str:
    return hashlib.blake2b("\0".join(words).encode(), digest_size=8).hexdigest()
