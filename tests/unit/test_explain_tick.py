"""Did it run then? If not, why?"""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from mainspring.domain.catch_up import CatchUp
from mainspring.domain.explain_tick import TickExplained, TickFacts, explain_tick
from mainspring.domain.ids import RunId
from mainspring.domain.instant import DAY, HOUR, MINUTE, SECOND, Instant
from mainspring.domain.job import Job, JobState, LedgerEntry
from mainspring.domain.plan import plan_job
from mainspring.domain.run import RunState, RunView
from tests.support.builders import a_spec, a_stored_job, after_each, every

MADE: Instant = 1_800_000_000 * SECOND // HOUR * HOUR
NOW = MADE + DAY


def a_daily(next_fire: Instant | None = NOW + HOUR, state: JobState = JobState.SCHEDULED) -> Job:
    job = a_stored_job(a_spec(name="report", schedule=every(HOUR)), next_fire=next_fire, state=state)
    return msgspec.structs.replace(job, created_at=MADE, updated_at=MADE)


def an_entry(at: Instant, reason: str = "", **more: object) -> LedgerEntry:
    decision = "skipped" if reason else "run"
    run = None if reason else RunId("0" * 12 + "7" + "0" * 19)
    fields = {"job_id": "j", "scheduled_at": at, "decision": decision, "reason": reason, "run_id": run}
    return msgspec.convert({**fields, "job_version": 1, "epoch": 1, **more}, LedgerEntry)


def a_run_view(state: RunState, **more: object) -> RunView:
    fields = {"id": "0" * 32, "state": state, "task": "t", "queue": "q", "tenant": "d", "priority": 5}
    return msgspec.convert({**fields, "attempt": 1, "due": NOW, "created_at": NOW, **more}, RunView)


def asked(job: Job, at: Instant, **more: object) -> TickExplained:
    known = {"version": job.version, "schedule": job.spec.schedule, "oldest": MADE, **more}
    return explain_tick(TickFacts(now=NOW, job=job, at=at, **known))  # type: ignore[arg-type]


def codes(found: TickExplained) -> tuple[str, str]:
    return found.answer, found.because[0].code


def test_a_tick_that_ran_says_how_it_ended() -> None:
    at = NOW - HOUR
    ended = a_run_view(RunState.SUCCEEDED, started_at=at, finished_at=at + 1)
    assert codes(asked(a_daily(), at, entry=an_entry(at), run=ended)) == ("ran", "succeeded")
    never = a_run_view(RunState.SKIPPED, reason="expired", finished_at=at + 1)
    assert codes(asked(a_daily(), at, entry=an_entry(at), run=never)) == ("skipped", "skipped")
    assert codes(asked(a_daily(), at, entry=an_entry(at))) == ("ran", "run-forgotten")
    for state, answer in ((RunState.RUNNING, "running"), (RunState.QUEUED, "waiting"), (RunState.BLOCKED, "waiting")):
        assert asked(a_daily(), at, entry=an_entry(at), run=a_run_view(state)).answer == answer


def test_a_tick_without_a_run_says_why() -> None:
    at = NOW - HOUR
    for reason, code in (
        ("paused", "paused"),
        ("missed", "missed"),
        ("superseded by a later tick", "superseded"),
        ("too old", "too-old"),
        ("over the cap of 3", "over-the-cap"),
        ("overlap", "overlap"),
        ("schedule changed", "schedule-changed"),
        ("cancelled", "cancelled"),
        ("calendar holidays: New Year", "skipped"),
    ):
        assert codes(asked(a_daily(), at, entry=an_entry(at, reason))) == ("skipped", code)


def test_a_span_of_ticks_speaks_for_each_of_them() -> None:
    span = an_entry(NOW - 10 * HOUR, "missed: more ticks than are listed one by one", ticks=0, last_at=NOW - 5 * HOUR)
    assert codes(asked(a_daily(), NOW - 7 * HOUR, entry=span)) == ("skipped", "missed")
    assert codes(asked(a_daily(), NOW - 7 * HOUR + 1, entry=span)) == ("no-tick", "no-tick")
    assert asked(a_daily(), NOW - 4 * HOUR, entry=span).entry is None


def test_a_time_that_is_no_tick_names_its_neighbours() -> None:
    found = asked(a_daily(), NOW - MINUTE)
    assert codes(found) == ("no-tick", "no-tick")
    assert (found.before, found.after) == (NOW - HOUR, NOW)


def test_before_the_job_and_beyond_the_ledger() -> None:
    assert codes(asked(a_daily(), MADE - HOUR, version=None, schedule=None)) == ("no-tick", "before-the-job")
    assert codes(asked(a_daily(), MADE + HOUR, oldest=NOW - HOUR)) == ("unknown", "forgotten")
    assert codes(asked(a_daily(), MADE + HOUR, oldest=None)) == ("unknown", "forgotten")
    gone = a_daily(None, JobState.CANCELLED)
    assert codes(asked(gone, NOW - HOUR)) == ("no-tick", "job-cancelled")
    assert codes(asked(gone, NOW + HOUR)) == ("no-tick", "job-cancelled")
    assert codes(asked(a_daily(), NOW - HOUR)) == ("no-tick", "not-active")


def test_a_tick_that_is_due_names_who_should_fire_it() -> None:
    job = a_daily(NOW - HOUR)
    found = asked(job, NOW - HOUR, owner=(7, "node-1"), schedulers=1)
    assert codes(found) == ("due", "firing")
    assert [(holder.kind, holder.id) for holder in found.because[0].holders] == [("scheduler", "7")]
    assert codes(asked(job, NOW - HOUR, schedulers=1)) == ("due", "no-owner")
    assert codes(asked(job, NOW)) == ("due", "no-scheduler")


def test_what_is_ahead_is_told_with_what_will_keep_it_from_running() -> None:
    assert codes(asked(a_daily(), NOW + HOUR)) == ("ahead", "not-due")
    assert codes(asked(a_daily(state=JobState.PAUSED), NOW + HOUR)) == ("ahead", "paused")
    assert codes(asked(a_daily(), NOW + HOUR + 1)) == ("no-tick", "no-tick")


def test_a_fixed_delay_has_no_ticks_but_those_in_the_ledger() -> None:
    job = msgspec.structs.replace(
        a_stored_job(a_spec(schedule=after_each(HOUR)), next_fire=None), created_at=MADE, updated_at=MADE
    )
    assert codes(asked(job, NOW - HOUR)) == ("no-tick", "no-tick")
    assert codes(asked(job, NOW + HOUR)) == ("ahead", "fixed-delay")
    late = msgspec.structs.replace(job, next_fire=NOW - HOUR)
    assert codes(asked(late, NOW - MINUTE)) == ("due", "no-scheduler")


def test_a_backfill_is_told_before_what_it_made_up_for() -> None:
    at = NOW - HOUR
    made_up = a_run_view(RunState.SUCCEEDED, started_at=NOW, finished_at=NOW)
    found = asked(a_daily(), at, entry=an_entry(at, "paused"), backfill=made_up)
    assert (found.answer, [reason.code for reason in found.because]) == ("ran", ["backfilled", "paused"])


@given(st.sampled_from(["none", "latest", "all"]), st.integers(0, 30 * HOUR), st.integers(0, 5), st.booleans())
def test_every_tick_that_a_plan_decides_has_an_answer(mode: str, age: int, cap: int, paused: bool) -> None:
    catch_up = msgspec.convert({"mode": mode, "cap": cap}, CatchUp)
    first = (NOW - age) // HOUR * HOUR
    spec = a_spec(schedule=every(HOUR), catch_up=catch_up)
    job = a_stored_job(spec, next_fire=first, state=JobState.PAUSED if paused else JobState.SCHEDULED)
    for tick in plan_job(job, NOW).ticks:
        entry = an_entry(tick.scheduled_at, tick.reason)
        found = asked(job, tick.scheduled_at, entry=entry, oldest=first)
        assert found.answer == ("ran" if tick.decision == "run" else "skipped")
        assert found.because[0].code != "skipped", "each of our own reasons has a word"
