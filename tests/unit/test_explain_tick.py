"""Explanations of a tick: whether it ran, and if not, why."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import DAY, HOUR, MINUTE, SECOND, Instant
from mainspring.core.model.explain.ticks import TickExplanation, TickFacts, explain_tick
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.schedules.catch_up import CatchUp
from mainspring.core.model.schedules.job import Job, JobState, LedgerEntry
from mainspring.core.model.schedules.plan import plan_job
from tests.support.builders import a_spec, a_stored_job, after_each, every
from tests.support.views import a_run_view

CREATED: Instant = 1_800_000_000 * SECOND // HOUR * HOUR
NOW = CREATED + DAY


def an_hourly_job(next_fire: Instant | None = NOW + HOUR, state: JobState = JobState.SCHEDULED) -> Job:
    job = a_stored_job(a_spec(name="report", schedule=every(HOUR)), next_fire=next_fire, state=state)
    return msgspec.structs.replace(job, created_at=CREATED, updated_at=CREATED)


def an_entry(at: Instant, reason: str = "", **more: object) -> LedgerEntry:
    decision = "skipped" if reason else "run"
    run = None if reason else RunId("0" * 12 + "7" + "0" * 19)
    fields = {"job_id": "j", "scheduled_at": at, "decision": decision, "reason": reason, "run_id": run}
    return msgspec.convert({**fields, "job_version": 1, "epoch": 1, **more}, LedgerEntry)


def explain_at(job: Job, at: Instant, **more: object) -> TickExplanation:
    known = {"version": job.version, "schedule": job.spec.schedule, "oldest": CREATED, **more}
    return explain_tick(TickFacts(now=NOW, job=job, at=at, **known))  # type: ignore[arg-type]


def answer_and_code(found: TickExplanation) -> tuple[str, str]:
    return found.answer, found.because[0].code


def test_a_tick_that_ran_has_the_outcome_of_its_run() -> None:
    at = NOW - HOUR
    ended = a_run_view(RunState.SUCCEEDED, started_at=at, finished_at=at + 1)
    assert answer_and_code(explain_at(an_hourly_job(), at, entry=an_entry(at), run=ended)) == ("ran", "succeeded")
    never = a_run_view(RunState.SKIPPED, reason="expired", finished_at=at + 1)
    assert answer_and_code(explain_at(an_hourly_job(), at, entry=an_entry(at), run=never)) == ("skipped", "skipped")
    assert answer_and_code(explain_at(an_hourly_job(), at, entry=an_entry(at))) == ("ran", "run-forgotten")
    for state, answer in ((RunState.RUNNING, "running"), (RunState.QUEUED, "waiting"), (RunState.BLOCKED, "waiting")):
        assert explain_at(an_hourly_job(), at, entry=an_entry(at), run=a_run_view(state)).answer == answer


def test_a_skipped_tick_has_the_reason_of_the_ledger() -> None:
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
        assert answer_and_code(explain_at(an_hourly_job(), at, entry=an_entry(at, reason))) == ("skipped", code)


def test_a_ledger_row_for_a_span_explains_each_of_its_ticks() -> None:
    span = an_entry(NOW - 10 * HOUR, "missed: more ticks than are listed one by one", ticks=0, last_at=NOW - 5 * HOUR)
    assert answer_and_code(explain_at(an_hourly_job(), NOW - 7 * HOUR, entry=span)) == ("skipped", "missed")
    assert answer_and_code(explain_at(an_hourly_job(), NOW - 7 * HOUR + 1, entry=span)) == ("no-tick", "no-tick")
    assert explain_at(an_hourly_job(), NOW - 4 * HOUR, entry=span).entry is None


def test_a_time_that_is_not_a_tick_names_its_neighbors() -> None:
    found = explain_at(an_hourly_job(), NOW - MINUTE)
    assert answer_and_code(found) == ("no-tick", "no-tick")
    assert (found.before, found.after) == (NOW - HOUR, NOW)


def test_a_time_outside_the_job_or_the_ledger_is_explained() -> None:
    assert answer_and_code(explain_at(an_hourly_job(), CREATED - HOUR, version=None, schedule=None)) == (
        "no-tick",
        "before-the-job",
    )
    assert answer_and_code(explain_at(an_hourly_job(), CREATED + HOUR, oldest=NOW - HOUR)) == ("unknown", "forgotten")
    assert answer_and_code(explain_at(an_hourly_job(), CREATED + HOUR, oldest=None)) == ("unknown", "forgotten")
    gone = an_hourly_job(None, JobState.CANCELLED)
    assert answer_and_code(explain_at(gone, NOW - HOUR)) == ("no-tick", "job-cancelled")
    assert answer_and_code(explain_at(gone, NOW + HOUR)) == ("no-tick", "job-cancelled")
    assert answer_and_code(explain_at(an_hourly_job(), NOW - HOUR)) == ("no-tick", "not-active")


def test_a_due_tick_names_the_scheduler_that_should_fire_it() -> None:
    job = an_hourly_job(NOW - HOUR)
    found = explain_at(job, NOW - HOUR, owner=(7, "node-1"), schedulers=1)
    assert answer_and_code(found) == ("due", "firing")
    assert [(holder.kind, holder.id) for holder in found.because[0].holders] == [("scheduler", "7")]
    assert answer_and_code(explain_at(job, NOW - HOUR, schedulers=1)) == ("due", "no-owner")
    assert answer_and_code(explain_at(job, NOW)) == ("due", "no-scheduler")


def test_a_future_tick_is_explained_with_what_will_prevent_it() -> None:
    assert answer_and_code(explain_at(an_hourly_job(), NOW + HOUR)) == ("ahead", "not-due")
    assert answer_and_code(explain_at(an_hourly_job(state=JobState.PAUSED), NOW + HOUR)) == ("ahead", "paused")
    assert answer_and_code(explain_at(an_hourly_job(), NOW + HOUR + 1)) == ("no-tick", "no-tick")


def test_a_fixed_delay_has_no_ticks_but_those_in_the_ledger() -> None:
    job = msgspec.structs.replace(
        a_stored_job(a_spec(schedule=after_each(HOUR)), next_fire=None), created_at=CREATED, updated_at=CREATED
    )
    assert answer_and_code(explain_at(job, NOW - HOUR)) == ("no-tick", "no-tick")
    assert answer_and_code(explain_at(job, NOW + HOUR)) == ("ahead", "fixed-delay")
    late = msgspec.structs.replace(job, next_fire=NOW - HOUR)
    assert answer_and_code(explain_at(late, NOW - MINUTE)) == ("due", "no-scheduler")


def test_a_backfill_comes_before_the_reason_of_the_skipped_tick() -> None:
    at = NOW - HOUR
    backfill = a_run_view(RunState.SUCCEEDED, started_at=NOW, finished_at=NOW)
    found = explain_at(an_hourly_job(), at, entry=an_entry(at, "paused"), backfill=backfill)
    assert (found.answer, [reason.code for reason in found.because]) == ("ran", ["backfilled", "paused"])


@given(st.sampled_from(["none", "latest", "all"]), st.integers(0, 30 * HOUR), st.integers(0, 5), st.booleans())
def test_every_tick_that_a_plan_decides_has_an_answer(mode: str, age: int, cap: int, paused: bool) -> None:
    catch_up = msgspec.convert({"mode": mode, "cap": cap}, CatchUp)
    first = (NOW - age) // HOUR * HOUR
    spec = a_spec(schedule=every(HOUR), catch_up=catch_up)
    job = a_stored_job(spec, next_fire=first, state=JobState.PAUSED if paused else JobState.SCHEDULED)
    for tick in plan_job(job, NOW).ticks:
        entry = an_entry(tick.scheduled_at, tick.reason)
        found = explain_at(job, tick.scheduled_at, entry=entry, oldest=first)
        assert found.answer == ("ran" if tick.decision == "run" else "skipped")
        assert found.because[0].code != "skipped", "every reason of the planner has a code"
