"""Whether a job ran at a given time, and if not, why. The ledger and the schedule in, reasons out."""

from typing import Literal, TypeAlias

import msgspec

from mainspring.core.model.base.instant import Instant, format_duration, isoformat
from mainspring.core.model.explain.reason import Holder, Reason
from mainspring.core.model.explain.runs import RunSituation, explain
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.model.schedules.job import Job, JobState, LedgerEntry
from mainspring.core.model.schedules.schedule import CronSchedule, Interval, latest_until, next_after

#: The answer about a tick.
#: - ran: its run has started and ended, with any outcome.
#: - running, waiting: it has a run.
#: - skipped: it has no run, or one that never started.
#: - no-tick: the schedule has none at this time.
#: - due: it is not recorded yet.
#: - ahead: it is in the future.
#: - unknown: the decision is no longer stored.
Answer: TypeAlias = Literal["ran", "running", "waiting", "skipped", "no-tick", "due", "ahead", "unknown"]


class TickFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the store knows about a job at a given time."""

    now: Instant
    job: Job
    at: Instant
    #: The newest ledger row at or before the time, and the run that it names.
    entry: LedgerEntry | None = None
    run: RunView | None = None
    #: The run of a backfill that made up for the tick.
    backfill: RunView | None = None
    #: The job version of that time and its schedule; None: the job did not exist yet.
    version: int | None = None
    schedule: Interval | CronSchedule | None = None
    #: The oldest tick of the job in the ledger.
    oldest: Instant | None = None
    #: The scheduler that owns the job's shard, by session and name, and the number of live schedulers.
    owner: tuple[int, str] | None = None
    schedulers: int = 0


class TickExplanation(msgspec.Struct, frozen=True, kw_only=True):
    answer: Answer
    #: The reasons, most important first.
    because: list[Reason]
    #: The ledger row behind the answer.
    entry: LedgerEntry | None = None
    #: The nearest ticks of the schedule that was in force.
    before: Instant | None = None
    after: Instant | None = None


def explain_tick(facts: TickFacts) -> TickExplanation:
    entry = _covering(facts)
    answer, because = _recorded(facts, entry) if entry is not None else _unrecorded(facts)
    if facts.backfill is not None:
        answer, because = _made_up(facts.backfill, facts.now, because)
    before, after = _nearest(facts)
    return TickExplanation(answer=answer, because=because, entry=entry, before=before, after=after)


def _covering(facts: TickFacts) -> LedgerEntry | None:
    """Return the ledger row about exactly this time: that of the tick, or a span of ticks too many to list."""
    entry = facts.entry
    if entry is None or entry.scheduled_at == facts.at:
        return entry
    in_span = entry.last_at is not None and facts.at <= entry.last_at
    return entry if in_span and _is_tick(facts) else None


def _recorded(facts: TickFacts, entry: LedgerEntry) -> tuple[Answer, list[Reason]]:
    if entry.decision == "skipped":
        return "skipped", [_why_skipped(entry, facts.job)]
    assert entry.run_id is not None
    if facts.run is None:
        words = f"it got run {entry.run_id}, whose outcome is not kept any more"
        return "ran", [Reason(code="run-forgotten", words=words, holders=(Holder("run", entry.run_id),))]
    return _of_run(facts.run, facts.now)


def _of_run(run: RunView, now: Instant) -> tuple[Answer, list[Reason]]:
    holder = (Holder("run", run.id),)
    if run.state in (RunState.RUNNING, RunState.CANCELLING):
        since = "" if run.started_at is None else f" since {isoformat(run.started_at)}"
        return "running", [Reason(code="running", words=f"run {run.id} runs{since}", holders=holder)]
    if not run.state.ended:
        first = explain(run, RunSituation(now=now)).because[0] if run.state is RunState.SCHEDULED else None
        words = f"run {run.id} is {run.state.value}{f': {first.words}' if first else ''}"
        hint = f"ask why: mainspring runs explain {run.id}"
        until = first.until if first else None
        return "waiting", [Reason(code=run.state.value, words=words, hint=hint, holders=holder, until=until)]
    ended = explain(run, RunSituation(now=now)).because[0]
    took = "" if run.started_at is None else f", started {isoformat(run.started_at)}"
    words = f"run {run.id}: {ended.words}{took}"
    answer: Answer = "skipped" if run.started_at is None else "ran"
    return answer, [Reason(code=run.state.value, words=words, hint=ended.hint, holders=holder)]


def _made_up(run: RunView, now: Instant, because: list[Reason]) -> tuple[Answer, list[Reason]]:
    answer, [reason] = _of_run(run, now)
    made_up = msgspec.structs.replace(reason, code="backfilled", words=f"a backfill made up for it: {reason.words}")
    return answer, [made_up, *because]


#: The meaning of the ledger's reasons for skipped ticks: code, sentence and hint.
_SKIPPED = {
    "paused": ("paused", "the job was paused", "mainspring jobs resume {job}, then a backfill"),
    "missed": ("missed", "nothing could fire it in time, and the job's catch-up rule is none", "a backfill"),
    "superseded by a later tick": (
        "superseded",
        "nothing could fire it in time, and by the job's catch-up rule (latest) only the newest tick ran",
        "a backfill, or catchUp.mode all",
    ),
    "too old": ("too-old", "nothing could fire it before it was older than catchUp.maxAge", "a backfill"),
    "overlap": ("overlap", "an earlier run of the job was still on its way, by its overlap rule", ""),
    "schedule changed": ("schedule-changed", "the schedule was changed before the tick was fired", "a backfill"),
    "cancelled": ("cancelled", "the job was cancelled before the tick was fired", ""),
}


def _why_skipped(entry: LedgerEntry, job: Job) -> Reason:
    """Return why a tick was skipped. Reasons that are not listed above are shown as the ledger has them."""
    reason = entry.reason
    if reason in _SKIPPED:
        code, words, hint = _SKIPPED[reason]
    elif reason.startswith("over the cap"):
        code, words, hint = "over-the-cap", f"more ticks were missed than are caught up on: {reason}", "a backfill"
    elif reason.startswith("missed"):
        code, words, hint = "missed", f"it was one of many ticks that nothing could fire: {reason}", "a backfill"
    else:
        code, words, hint = "skipped", reason or "it was skipped", ""
    return Reason(code=code, words=words, hint=hint.format(job=job.spec.name))


def _unrecorded(facts: TickFacts) -> tuple[Answer, list[Reason]]:
    job, at = facts.job, facts.at
    if facts.version is None:
        words = f"the job did not exist: it was made at {isoformat(job.created_at)}"
        return "no-tick", [Reason(code="before-the-job", words=words)]
    if at > facts.now:
        return _ahead(facts)
    if job.spec.fixed_delay is not None and job.version == facts.version:
        return _no_tick_of_delay(facts)
    if not _is_tick(facts):
        return "no-tick", [Reason(code="no-tick", words="the schedule has no tick then")]
    if _is_open(job) and job.next_fire is not None and job.next_fire <= at:
        return "due", [_who_fires(facts)]
    if facts.oldest is None or at < facts.oldest:
        kept = "nothing is kept of this job" if facts.oldest is None else f"kept from {isoformat(facts.oldest)} on"
        return "unknown", [Reason(code="forgotten", words=f"the ledger does not reach back so far: {kept}")]
    if not _is_open(job) and at >= job.updated_at:
        return "no-tick", [_closed(job)]
    words = "the ledger has no row for it: the job was cancelled or finished then, and came back later"
    return "no-tick", [Reason(code="not-active", words=words)]


def _ahead(facts: TickFacts) -> tuple[Answer, list[Reason]]:
    job = facts.job
    if not _is_open(job):
        return "no-tick", [_closed(job)]
    if job.spec.fixed_delay is not None:
        words = "its next tick is counted from the end of its run"
        return "ahead", [Reason(code="fixed-delay", words=words, until=job.next_fire)]
    if not _is_tick(facts):
        return "no-tick", [Reason(code="no-tick", words="the schedule has no tick then")]
    if job.state is JobState.PAUSED:
        words = "its time has not come; as long as the job is paused, it will be skipped"
        hint = f"mainspring jobs resume {job.spec.name}"
        return "ahead", [Reason(code="paused", words=words, hint=hint, until=facts.at)]
    wait = format_duration((facts.at - facts.now) // 1_000 * 1_000)
    return "ahead", [Reason(code="not-due", words=f"its time has not come: it fires in {wait}", until=facts.at)]


def _no_tick_of_delay(facts: TickFacts) -> tuple[Answer, list[Reason]]:
    job = facts.job
    if _is_open(job) and job.next_fire is not None and job.next_fire <= facts.at:
        return "due", [_who_fires(facts)]
    return "no-tick", [
        Reason(code="no-tick", words="a fixed delay ticks only after the previous run has completed, which it had not")
    ]


def _who_fires(facts: TickFacts) -> Reason:
    late = format_duration(max(facts.now - facts.at, 0) // 1_000 * 1_000)
    if facts.owner is not None:
        session, name = facts.owner
        words = f"it was due {late} ago and is not recorded yet; scheduler {name} owns its shard and will fire it"
        return Reason(code="firing", words=words, holders=(Holder("scheduler", str(session)),))
    if facts.schedulers:
        words = f"it was due {late} ago; its shard {facts.job.shard} has no owner now; a scheduler takes it soon"
        return Reason(code="no-owner", words=words)
    return Reason(
        code="no-scheduler",
        words=f"it was due {late} ago, and no scheduler is alive",
        hint="start one: mainspring scheduler, or mainspring up; the catch-up rule then decides",
    )


def _closed(job: Job) -> Reason:
    when = f" at {isoformat(job.updated_at)}" if job.updated_at else ""
    return Reason(code=f"job-{job.state.value}", words=f"the job is {job.state.value}{when}")


def _is_open(job: Job) -> bool:
    return job.state in (JobState.SCHEDULED, JobState.PAUSED)


def _is_tick(facts: TickFacts) -> bool:
    schedule = facts.schedule
    if schedule is None or (isinstance(schedule, Interval) and schedule.mode == "fixed_delay"):
        return False
    return latest_until(schedule, facts.at, facts.job.id) == facts.at


def _nearest(facts: TickFacts) -> tuple[Instant | None, Instant | None]:
    schedule = facts.schedule
    if schedule is None or (isinstance(schedule, Interval) and schedule.mode == "fixed_delay"):
        earlier = facts.entry
        known = None if earlier is None or earlier.scheduled_at >= facts.at else earlier.scheduled_at
        return known, facts.job.next_fires(1)[0] if facts.job.next_fire is not None else None
    before = latest_until(schedule, facts.at - 1, facts.job.id)
    if before is not None and before < facts.job.created_at and (facts.entry is None):
        before = None
    return before, next_after(schedule, facts.at, facts.job.id)
