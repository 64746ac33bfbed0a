"""Reconciling declared schedules with the store: applying the steps leaves nothing to do."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.model.base.errors import Conflict
from mainspring.core.model.base.ids import JobId
from mainspring.core.model.schedules.job import Job, JobSpec, JobState
from mainspring.core.model.schedules.schedule import Interval
from mainspring.features.schedules.reconcile import Action, DeclaredSchedule, Reconciliation, reconcile

MINE, OTHER = "app:mine", "app:other"
SECOND = 1_000_000

names = st.sampled_from(["a", "b", "c", "d", "e"])
payloads = st.sampled_from([b"null", b"1"])


@st.composite
def specs(draw: st.DrawFn, name: str, source: str) -> JobSpec:
    every = draw(st.sampled_from([10 * SECOND, 20 * SECOND]))
    return JobSpec(name=name, task="t", schedule=Interval(every=every), source=source)


@st.composite
def declarations(draw: st.DrawFn) -> list[DeclaredSchedule]:
    chosen = draw(st.lists(names, unique=True))
    return [DeclaredSchedule(draw(specs(name, "")), draw(payloads)) for name in chosen]


@st.composite
def stores(draw: st.DrawFn) -> dict[str, Job]:
    chosen = draw(st.lists(names, unique=True))
    return {
        name: a_stored_job(
            draw(specs(name, draw(st.sampled_from(["", MINE, OTHER])))), draw(payloads), draw(st.sampled_from(JobState))
        )
        for name in chosen
    }


def a_stored_job(
    spec: JobSpec, payload: bytes = b"null", state: JobState = JobState.SCHEDULED, version: int = 1
) -> Job:
    job_id = JobId(f"{spec.name:0>12}")
    return Job(id=job_id, tenant="t", spec=spec, version=version, state=state, next_fire=None, rev=1, payload=payload)


def apply_steps(store: dict[str, Job], steps: Reconciliation) -> dict[str, Job]:
    """Apply the steps like a store: a changed job stays paused, any other one is scheduled."""
    after = dict(store)
    for step in steps.steps:
        if step.declared is None:
            assert step.job is not None
            after[step.name] = msgspec.structs.replace(step.job, state=JobState.CANCELLED)
            continue
        state = JobState.PAUSED if step.job is not None and step.job.state is JobState.PAUSED else JobState.SCHEDULED
        version = 1 if step.job is None else step.job.version + 1
        after[step.name] = a_stored_job(step.declared.spec, step.declared.payload, state, version)
    return after


@given(declarations(), stores())
def test_applying_the_plan_makes_the_next_one_empty(declared: list[DeclaredSchedule], store: dict[str, Job]) -> None:
    after = apply_steps(store, reconcile(declared, store.values(), MINE))
    again = reconcile(declared, after.values(), MINE)
    assert again.steps == ()
    assert sorted(again.unchanged) == sorted(one.spec.name for one in declared)


@given(declarations(), stores())
def test_schedules_of_other_sources_are_not_touched(declared: list[DeclaredSchedule], store: dict[str, Job]) -> None:
    after = apply_steps(store, reconcile(declared, store.values(), MINE))
    mine = {one.spec.name for one in declared}
    for name, job in store.items():
        if name not in mine and job.spec.source != MINE:
            assert after[name] is job


@given(declarations(), stores())
def test_after_applying_the_active_schedules_of_a_source_are_the_declared_ones(
    declared: list[DeclaredSchedule], store: dict[str, Job]
) -> None:
    after = apply_steps(store, reconcile(declared, store.values(), MINE))
    ticking = {
        name
        for name, job in after.items()
        if job.spec.source == MINE and job.state in (JobState.SCHEDULED, JobState.PAUSED)
    }
    assert ticking <= {one.spec.name for one in declared}
    for one in declared:
        assert after[one.spec.name].spec == msgspec.structs.replace(one.spec, source=MINE)
        assert after[one.spec.name].payload == one.payload


def a_declared(name: str, every: int = 10 * SECOND) -> DeclaredSchedule:
    return DeclaredSchedule(JobSpec(name=name, task="t", schedule=Interval(every=every)), b"null")


def actions(found: Reconciliation) -> list[tuple[str, str]]:
    return [(step.action.value, step.name) for step in found.steps]


def test_every_kind_of_step_is_planned() -> None:
    def stored(name: str, source: str) -> Job:
        return a_stored_job(JobSpec(name=name, task="t", schedule=Interval(every=10 * SECOND), source=source))

    store = [stored("same", MINE), stored("slower", MINE), stored("gone", MINE), stored("theirs", OTHER)]
    store += [stored("by-hand", ""), stored("adopted", ""), stored("taken", OTHER)]
    declared = [a_declared(name) for name in ("same", "new", "adopted", "taken")] + [a_declared("slower", 20 * SECOND)]
    found = reconcile(declared, store, MINE)
    assert actions(found) == [
        ("add", "new"),
        ("change", "adopted"),
        ("take over", "taken"),
        ("change", "slower"),
        ("remove", "gone"),
    ]
    assert found.unchanged == ("same",)


def test_a_renamed_schedule_is_removed_and_added() -> None:
    old = a_stored_job(JobSpec(name="old", task="t", schedule=Interval(every=10 * SECOND), source=MINE))
    assert actions(reconcile([a_declared("new")], [old], MINE)) == [("add", "new"), ("remove", "old")]


@pytest.mark.parametrize(
    ("state", "expected"),
    [(JobState.PAUSED, []), (JobState.FINISHED, []), (JobState.CANCELLED, [(Action.CHANGE.value, "a")])],
)
def test_a_paused_or_finished_schedule_stays_and_a_cancelled_one_comes_back(
    state: JobState, expected: list[tuple[str, str]]
) -> None:
    spec = JobSpec(name="a", task="t", schedule=Interval(every=10 * SECOND), source=MINE)
    assert actions(reconcile([a_declared("a")], [a_stored_job(spec, state=state)], MINE)) == expected


def test_a_name_that_is_declared_twice_is_rejected() -> None:
    with pytest.raises(Conflict, match="'a' is declared twice"):
        reconcile([a_declared("a"), a_declared("a")], [], MINE)
