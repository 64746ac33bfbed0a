"""Usage by day, and budgets."""

import msgspec
import pytest

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import DAY, MINUTE, SECOND
from mainspring.core.model.limits.budget import Budget, BudgetStatus
from mainspring.core.model.runs.completion import Completion, complete_release, complete_success
from mainspring.core.model.runs.new_run import JobRef
from mainspring.core.model.runs.run import HeldRun, Outcome, RunState
from mainspring.core.model.runs.usage import USAGE_KEPT, AttemptCost, GroupBy, UsageLine, by_line, find_day
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.upkeep import Retention
from tests.support.builders import a_job, a_run, a_spec, every
from tests.support.store_harness import Harness

pytestmark = pytest.mark.api

ME = Author("me")


def success(held: HeldRun, cpu: int | None = None, **units: float) -> Completion:
    return msgspec.structs.replace(complete_success(held, None), spent=AttemptCost(cpu=cpu, units=units))


async def roll_up(harness: Harness, by: GroupBy = "task", tenant: str | None = None, key: str = "") -> list[UsageLine]:
    await harness.advance(MINUTE)
    await harness.store.tidy()
    now = await harness.now()
    return by_line(await harness.store.usage(tenant, now - 20 * DAY, now + DAY, by, key=key))


async def test_every_attempt_counts_in_the_usage(harness: Harness) -> None:
    good, bad, back = await harness.start(*(a_run(task=task) for task in ("good", "bad", "back")))
    await harness.advance(2 * SECOND)
    await harness.succeed(good)
    await harness.fail(bad)
    await harness.complete(complete_release(back))
    found = {line.key: line for line in await roll_up(harness)}
    assert {key: line.attempts for key, line in found.items()} == {"good": 1, "bad": 1, "back": 0}
    for line in found.values():
        assert 2 * SECOND <= line.wall < 2 * SECOND + MINUTE
        assert (line.cpu, line.units) == (0, {})


async def test_a_completion_carries_cpu_time_and_units(harness: Harness) -> None:
    one, two, plain = await harness.start(a_run(), a_run(), a_run())
    await harness.complete(
        success(one, 500, tokens=3, pages=0.5), success(two, tokens=4), complete_success(plain, b"1")
    )
    [line] = await roll_up(harness)
    assert (line.attempts, line.cpu, line.units) == (3, 500, {"pages": 0.5, "tokens": 7})
    # Tidying again rolls nothing up twice.
    assert [(again.attempts, again.units) for again in await roll_up(harness)] == [(3, {"pages": 0.5, "tokens": 7})]


async def test_the_usage_of_a_failed_attempt_counts_once(harness: Harness) -> None:
    [held] = await harness.start(a_run(key="k"))
    failed = Completion(
        run=held.id,
        fence=held.fence,
        outcome=Outcome.ERROR,
        state=RunState.FAILED,
        reason="error",
        error="boom",
        unblocks_others=True,
        spent=AttemptCost(cpu=7, units={"tokens": 1}),
    )
    await harness.complete(failed)
    await harness.complete(failed)
    [line] = await roll_up(harness)
    assert (line.attempts, line.cpu, line.units) == (1, 7, {"tokens": 1})


async def test_usage_is_summed_by_job_task_or_tenant(harness: Harness) -> None:
    job = await harness.put(a_job(a_spec(task="report", schedule=every(DAY))))
    of_job = a_run(task="report", job=JobRef(id=job.id, version=1))
    held = await harness.start(of_job, a_run(task="report"), a_run(task="mail", tenant="acme"))
    await harness.complete(*(success(run, tokens=1) for run in held))
    assert {(line.tenant, line.key) for line in await roll_up(harness)} == {
        ("acme", "mail"),
        ("default", "report"),
    }
    assert {(line.key, line.attempts) for line in await roll_up(harness, "job", "default")} == {(job.id, 1), ("", 1)}
    assert {(line.key, line.attempts) for line in await roll_up(harness, "tenant")} == {("acme", 1), ("default", 2)}
    assert [line.key for line in await roll_up(harness, "job", None, job.id)] == [job.id]
    assert await roll_up(harness, "task", None, "nobody") == []
    # A tenant scope returns only the usage of its tenant.
    now = await harness.now()
    seen = harness.store.seen_by("acme")
    assert {item.key for item in await seen.usage(None, 0, now, "task")} == {"mail"}
    assert await seen.usage("default", 0, now, "task") == []


@pytest.mark.slow
async def test_usage_outlives_its_runs_and_is_pruned_later(harness: Harness) -> None:
    await harness.succeed(*await harness.start(a_run()))
    day = find_day(await harness.now())
    assert len(await roll_up(harness)) == 1
    await harness.move_clock(40 * DAY)
    await harness.store.prune(Retention(succeeded=DAY, unsuccessful=DAY, ledger=DAY), 1_000)
    assert await harness.store.usage(None, day - DAY, day + 2 * DAY, "task")
    await harness.move_clock(USAGE_KEPT)
    await harness.store.prune(Retention(succeeded=DAY, unsuccessful=DAY, ledger=DAY), 1_000)
    assert await harness.store.usage(None, day - DAY, day + 2 * DAY, "task") == []


def a_budget(name: str = "b", **more: object) -> Budget:
    fields: dict[str, object] = {"tenant": "default", "name": name, "unit": "tokens", "limit": 10.0}
    return msgspec.convert({**fields, **more}, Budget)


async def test_a_budget_is_stored_changed_and_dropped(harness: Harness) -> None:
    made = await harness.store.put_budget(a_budget(), ME)
    assert (made.state, made.since, made.held) == ("ok", 0, False)
    assert await harness.store.budgets("default") == [made]
    changed = await harness.store.put_budget(a_budget(limit=20.0), ME)
    assert (changed.id, changed.budget.limit) == (made.id, 20.0)
    assert await harness.store.budgets("acme") == []
    assert await harness.store.seen_by("acme").budgets(None) == []
    assert await harness.store.drop_budget("default", "b", ME)
    assert not await harness.store.drop_budget("default", "b", ME)
    actions = [entry.action for entry in await harness.store.audit("default")]
    assert actions == ["budgets.drop", "budgets.put", "budgets.put"]
    with pytest.raises(Invalid, match="a task cannot be paused"):
        await harness.store.put_budget(a_budget(of="task", target="t", then="pause"), ME)


async def test_usage_is_summed_for_the_scope_of_a_budget(harness: Harness) -> None:
    job = await harness.put(a_job(a_spec(name="hourly", task="report", schedule=every(DAY))))
    held = await harness.start(
        a_run(task="report", job=JobRef(id=job.id, version=1)), a_run(task="report"), a_run(task="mail")
    )
    await harness.complete(*(success(run, tokens=amount) for run, amount in zip(held, (1, 2, 4), strict=True)))
    await roll_up(harness)
    day = find_day(await harness.now()) - DAY
    for of, target, spent in (
        ("tenant", "", 7),
        ("job", "hourly", 1),
        ("task", "report", 3),
        ("job", "nobody", 0),
        ("task", "nobody", 0),
    ):
        status = await harness.store.put_budget(a_budget(f"{of}-{target}", of=of, target=target), ME)
        assert await harness.store.spent(status, day) == spent
        assert await harness.store.spent(status, day + 5 * DAY) == 0


async def test_of_concurrent_changes_of_a_budget_state_one_emits_the_event(harness: Harness) -> None:
    before = await harness.store.put_budget(a_budget(), ME)
    await harness.store.attach_reader("r")
    after = msgspec.structs.replace(before, state="warned", since=5, spent=8.0, held=True)
    assert await harness.store.mark_budget(before, after, ["budget.warned"])
    assert not await harness.store.mark_budget(before, after, ["budget.warned"])
    assert await harness.unread_events("r") == [("budget.warned", (before.id,))]
    [kept] = await harness.store.budgets(None)
    assert kept == BudgetStatus(budget=before.budget, id=before.id, state="warned", since=5, spent=8.0, held=True)


async def test_a_budget_lowers_queued_runs_behind_all_others(harness: Harness) -> None:
    lowered, other, running = a_run(task="dear", priority=1), a_run(task="cheap", priority=9), a_run(task="dear")
    await harness.start(running)
    await harness.submit(lowered, other, late := a_run(task="dear", delay=MINUTE))
    budget = a_budget(of="task", target="dear", then="lower")
    assert await harness.store.lower(budget, 1_000) == 1
    assert await harness.store.lower(budget, 1_000) == 0
    assert (await harness.view(lowered.id)).priority == 10
    assert (await harness.view(late.id)).priority == 5
    assert [run.id for run in await harness.claim(await harness.worker())] == [other.id, lowered.id]
    assert await harness.store.lower(a_budget(of="job", target="nobody", then="lower"), 10) == 0
    assert await harness.store.lower(a_budget(tenant="acme", then="lower"), 10) == 0
