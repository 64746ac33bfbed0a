"""Data centers: one that is down is replaced, and seeds fail when a safeguard is removed."""

from typing import Any

import msgspec
import pytest

from mainspring.core.model.base.instant import MILLISECOND, SECOND
from mainspring.core.model.cluster.datacenters import ALL, Preference, Serving
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.schedules.job import JobSpec, JobState, LedgerEntry
from mainspring.core.model.schedules.schedule import Interval
from mainspring.core.scheduler import datacenter_choice as scheduler_datacenters
from mainspring.stores.memory.records import datacenters as store_datacenters
from mainspring.stores.memory.records.datacenters import MemoryDatacenters
from mainspring.stores.memory.rows import JobRow, SessionRow
from tests.simulation.test_bites import WithoutTickKey
from tests.support.builders import a_job_id
from tests.support.simulation.acts import Act
from tests.support.simulation.biting import SEEDS, MakeStore, bites, complains
from tests.support.simulation.datacenter_invariants import (
    every_tick_is_in_each_of_its_datacenters,
    no_live_data_center_is_replaced,
)
from tests.support.simulation.directed import LEASE, Director, play
from tests.support.simulation.evidence import Evidence
from tests.support.simulation.history import Heartbeat, History, JobChange, Step, Truth
from tests.support.simulation.scenario import Chaos, draw
from tests.support.simulation.store import RecordedStore
from tests.support.simulation.workload import LOOP

pytestmark = pytest.mark.simulation

WORK = Act("work", 100 * MILLISECOND)
ORDER = Preference(("us", "eu"), 2 * SECOND)
TWO_DATACENTERS: dict[str, Any] = {"workers": ({"default": 4}, {"default": 4}), "datacenters": ("us", "eu")}
#: Every seed, with workers in each of two data centers; one of them goes down again and again.
PLACED: dict[str, Any] = {
    "datacenters": ("eu", "us", "eu", "us"),
    "old_worker": False,
    "chaos": Chaos(every=2 * SECOND, lose_datacenter=2, kill=1, freeze=1),
}


def test_a_preferred_data_center_is_replaced_while_it_is_down() -> None:
    async def script(director: Director) -> None:
        us, _ = director.world.workers
        policy = RunPolicy(requires=(ORDER.word,))
        [first] = director.submit(director.run(WORK, policy=policy))
        await director.until(lambda: director.state(first) is RunState.SUCCEEDED)
        end = director.world.now() + 14 * SECOND
        schedule = Interval(every=SECOND, start=director.world.now() + SECOND, end=end)
        job = director.put(JobSpec(name="order", task=LOOP, schedule=schedule, policy=policy), WORK)
        await director.sleep(2.5)
        assert us.process is not None
        us.process.kill()
        [waiting] = director.submit(director.run(WORK, policy=policy))
        died = director.world.now()
        await director.until(lambda: director.state(waiting) is RunState.SUCCEEDED)
        took = director.world.now() - died
        assert ORDER.patience <= took <= LEASE + ORDER.patience + 2 * SECOND
        us.boot()
        await director.until(lambda: director.world.store.tables.preferences[ORDER.word].serving == "us")
        [last] = director.submit(director.run(WORK, policy=policy))
        await director.until(lambda: director.state(last) is RunState.SUCCEEDED)
        datacenters = director.world.history.truth.datacenters
        ran = {call.run: datacenters[call.process.partition("#")[0]] for call in director.world.history.calls}
        assert [ran[run] for run in (first, waiting, last)] == ["us", "eu", "us"]
        ledger = director.world.store.tables.ledgers[job].between(0, 1 << 62, 100)
        moved = [entry for entry in ledger if entry.reason == "moved to eu: no live worker in us for 2 s"]
        assert moved
        assert all(ran[entry.run_id] == "eu" for entry in moved if entry.run_id in ran)

    play(script, **TWO_DATACENTERS)


def test_runs_bound_to_a_data_center_wait_while_it_is_down() -> None:
    async def script(director: Director) -> None:
        _, eu = director.world.workers
        now = director.world.now()
        schedule = Interval(every=SECOND, start=now + SECOND, end=now + 3 * SECOND)
        jobs = [
            director.put(JobSpec(name=str(where), task=LOOP, schedule=schedule, datacenters=where), WORK)
            for where in ((ALL,), ("us", "eu"))
        ]
        await director.sleep(1.5)
        assert eu.process is not None
        eu.process.kill()
        await director.sleep(8)
        tables = director.world.store.tables
        waiting = [run for run in tables.runs.values() if run.state is RunState.QUEUED]
        assert len(waiting) == 4
        assert {run.policy.requires for run in waiting} == {("datacenter=eu",)}
        for job in jobs:
            ledger = tables.ledgers[job].between(0, 1 << 62, 100)
            assert [entry.target for entry in ledger] == ["eu", "us"] * 3
        eu.boot()

    play(script, **TWO_DATACENTERS)


@pytest.mark.slow
@pytest.mark.parametrize(("store", "complaint"), [pytest.param(WithoutTickKey, "'us')]", id="the key of each target")])
def test_a_seed_fails_without_the_safeguard(store: MakeStore, complaint: str) -> None:
    assert any(bites(seed, store, complaint, **PLACED) for seed in SEEDS)


def test_a_seed_fails_if_claims_ignore_the_data_center_of_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SessionRow, "may_take", lambda *_: True)
    assert _complain("every_run_is_where_it_belongs")


def test_a_seed_fails_if_a_data_center_is_replaced_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_datacenters, "serving", lambda preference, *_: Serving(preference.order[-1], "a whim"))
    assert _complain("no_live_data_center_is_replaced")


@pytest.mark.parametrize(("heartbeat", "expected"), [(6, 1), (8, 0)], ids=["before", "after"])
def test_a_heartbeat_counts_only_if_it_arrived_before_the_data_center_was_replaced(
    heartbeat: int, expected: int
) -> None:
    # The store's clock stands still.
    at = 100 * SECOND
    heartbeats = [Heartbeat(1, at - 10 * SECOND, "us"), Heartbeat(heartbeat, at, "us")]
    step = Step(order=7, at=at, process="scheduler-1#1", operation="serve_orders", sent=at, serving={ORDER.word: "eu"})
    evidence = Evidence(History(steps=[step], truth=Truth(alive=heartbeats)))
    assert len(list(no_live_data_center_is_replaced(evidence))) == expected


@pytest.mark.parametrize(
    ("earlier", "expected"), [(("us",), 0), ((), 1)], ids=["it had the tick before", "it never had the tick"]
)
def test_a_tick_may_leave_out_only_a_data_center_that_had_it_before(earlier: tuple[str, ...], expected: int) -> None:
    tick = 100 * SECOND
    job = a_job_id()
    steps = []
    for order, (datacenters, targets) in enumerate([(earlier, earlier), (("us", "eu"), ("eu",))]):
        spec = JobSpec(name="job", task=LOOP, schedule=Interval(every=SECOND), datacenters=datacenters)
        row = JobRow(id=job, tenant="default", spec=spec, payload=b"", state=JobState.SCHEDULED)
        entries = [
            LedgerEntry(
                job_id=job,
                scheduled_at=tick,
                decision="skipped",
                reason="paused",
                run_id=None,
                job_version=1,
                epoch=1,
                target=target,
            )
            for target in targets
        ]
        step = Step(order=order, at=tick, process="scheduler-1#1", operation="fire", sent=tick)
        step.ticks, step.jobs = entries, [JobChange(row, row)]
        steps.append(step)
    assert len(list(every_tick_is_in_each_of_its_datacenters(Evidence(History(steps=steps))))) == expected


def test_a_seed_fails_if_a_tick_does_not_make_a_run_for_each_data_center(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_datacenters, "spread", lambda fire, _: fire)
    assert _complain("every_tick_is_in_each_of_its_datacenters")


@pytest.mark.slow
def test_a_seed_fails_if_the_ledger_does_not_name_the_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_datacenters, "noted", lambda fire, _: fire)
    monkeypatch.setattr(MemoryDatacenters, "_note_moves", lambda *_: None)
    assert _complain("the_ledger_names_replacements")


def _complain(complaint: str) -> bool:
    scenarios = (msgspec.structs.replace(draw(seed), ending=20 * SECOND, **PLACED) for seed in SEEDS)
    return any(complains(scenario, RecordedStore, complaint) for scenario in scenarios)
