"""The interleavings that could lose or double work, each forced to happen. The numbers are those of the review.

Every world is also checked for all invariants. A test asserts in addition that its interleaving took place.
"""

import msgspec
import pytest

from mainspring.core.model.base.instant import MILLISECOND, SECOND
from mainspring.core.model.runs.completion import CompletionAnswer
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.model.runs.retry import RetryPolicy
from mainspring.core.model.runs.run import Outcome, RunState
from mainspring.core.model.schedules.job import JobSpec, Overlap
from mainspring.core.model.schedules.schedule import CronSchedule, Interval
from tests.support.simulation.acts import Act
from tests.support.simulation.directed import LEASE, Director, play
from tests.support.simulation.faults import Fate
from tests.support.simulation.workload import CHILD, LOOP

pytestmark = pytest.mark.simulation

WORK = Act("work", 300 * MILLISECOND)
RETRIED = RunPolicy(retry=RetryPolicy(max_retries=2, backoff="fixed", first_delay=100 * MILLISECOND))
KEYED = RunPolicy(ordering_key="video 7")


# 1. Claim applied, reply lost.


@pytest.mark.parametrize("fate", [Fate.REPLY_LOST, Fate.LATE])
def test_hole_1_a_claim_without_an_answer_is_returned_by_the_heartbeat(fate: Fate) -> None:
    async def script(director: Director) -> None:
        if fate is Fate.REPLY_LOST:
            director.next("claim", fate, of="worker-1")
        else:
            # The claim is in flight when the run arrives. The worker has timed out, and its next claim is refused.
            director.next("claim", fate, of="worker-1", request=2.5)
            await director.until(lambda: not director.world.faults.script)
            await director.sleep(2.4)
            director.next("claim", Fate.REFUSED, of="worker-1")
        [run] = director.submit(director.run(WORK))
        await director.until(lambda: director.state(run) is RunState.RUNNING)
        director.world.faults.script.clear()
        assert not director.world.history.calls, "no worker knows the run"
        await director.until(lambda: bool(director.steps("heartbeat")))
        assert director.row(run).attempt == 0, "an attempt that never started is not charged"
        await director.until(lambda: director.state(run) is RunState.SUCCEEDED)
        assert director.row(run).attempt == 1

    history = play(script)
    assert len(history.calls) == 1


# 2. A lease per worker could make innocent runs poison.


def test_hole_2_runs_next_to_one_that_kills_its_worker_do_not_fail_as_poison() -> None:
    async def script(director: Director) -> None:
        director.world.keep_up()
        neighbours = [director.run(Act("work", 1_500 * MILLISECOND)) for _ in range(3)]
        killer, *innocent = director.submit(director.run(Act("kill", 500 * MILLISECOND)), *neighbours)
        await director.until(lambda: director.state(killer).ended, within=90)
        assert (director.row(killer).reason, director.row(killer).lost) == ("poison", 3)
        await director.until(lambda: all(director.state(run) is RunState.SUCCEEDED for run in innocent))
        assert max(director.row(run).lost for run in innocent) == 2, "they shared two deaths, then it ran alone"

    play(script)


def test_hole_2_a_run_that_kills_its_child_process_is_identified_as_poison() -> None:
    async def script(director: Director) -> None:
        [killer] = director.submit(director.run(Act("kill", 100 * MILLISECOND), task=CHILD))
        await director.until(lambda: director.state(killer).ended)
        assert (director.row(killer).reason, director.row(killer).lost) == ("poison", 3)
        assert director.world.workers[0].up

    play(script)


# 4. Reaper, heartbeat and claim at the same time.


def test_hole_4_a_worker_without_its_lease_stops_and_its_late_claim_starts_nothing() -> None:
    async def script(director: Director) -> None:
        [run] = director.submit(director.run(Act("work", 20 * SECOND)))
        await director.until(lambda: director.state(run) is RunState.RUNNING)
        first = director.row(run).session
        # A claim of this worker is in flight for longer than its lease, and arrives after the lease expired.
        director.next("claim", Fate.LATE, of="worker-1", request=LEASE / SECOND + 4)
        await director.sleep(0.6)
        director.world.faults.cut_off.add("worker-1#1")
        await director.until(lambda: director.row(run).lost == 1)
        assert director.world.history.calls[0].how == "stopped", "it stops what it runs before the lease is over"
        director.world.faults.cut_off.clear()
        await director.until(lambda: director.state(run) is RunState.RUNNING)
        await director.sleep(6)
        claims = [move.after.session for step in director.steps("claim") for move in step.runs]
        assert claims == [first, director.row(run).session]
        director.cancel(run)

    history = play(script)
    assert len(history.calls) == 2


def test_hole_4_a_heartbeat_does_not_revive_an_expired_session() -> None:
    async def script(director: Director) -> None:
        [run] = director.submit(director.run(Act("work", 3 * LEASE)))
        process = (await director.begins(run)).process
        assert process is not None
        since = director.world.now()
        process.freeze()
        await director.until(lambda: director.row(run).lost == 1)
        process.thaw()
        director.world.history.truth.freezes.append((process.name, since, director.world.now()))
        await director.until(lambda: director.state(run) is RunState.SUCCEEDED)
        assert director.row(run).attempt == 2

    history = play(script)
    assert [call.how for call in history.calls] == ["stopped", "returned"]


# 7. Completion applied, reply lost.


def test_hole_7_an_outcome_that_is_reported_twice_counts_once() -> None:
    async def script(director: Director) -> None:
        director.next("complete", Fate.REPLY_LOST)
        [run] = director.submit(director.run(WORK))
        await director.until(lambda: len(director.steps("complete")) == 2)
        answers = [answer for step in director.steps("complete") for _, answer in step.completions]
        assert answers == [CompletionAnswer.ACCEPTED, CompletionAnswer.DUPLICATE]
        assert director.state(run) is RunState.SUCCEEDED

    play(script)


def test_hole_7_an_outcome_that_arrives_during_the_next_attempt_has_no_effect() -> None:
    async def script(director: Director) -> None:
        # The first report of the failure is in flight for a long time. The second one is accepted at once.
        director.next("complete", Fate.LATE, request=3.5)
        policy = RunPolicy(retry=RetryPolicy(max_retries=3, backoff="fixed", first_delay=0))
        [run] = director.submit(director.run(Act("flaky", 2 * SECOND, times=1), policy=policy))
        await director.until(lambda: director.row(run).fence > 0 and len(director.steps("complete")) == 2)
        assert director.state(run) is RunState.RUNNING
        late = director.steps("complete")[-1]
        assert [(move.outcome, answer) for move, answer in late.completions] == [
            (Outcome.ERROR, CompletionAnswer.DUPLICATE)
        ]
        assert late.runs == []

    history = play(script)
    assert [call.how for call in history.calls] == ["raised", "returned"]


def test_hole_7_a_release_that_is_reported_twice_is_uncharged_once() -> None:
    async def script(director: Director) -> None:
        [run] = director.submit(director.run(Act("work", 10 * SECOND)))
        worker = await director.begins(run)
        director.next("complete", Fate.REPLY_LOST, of=worker.name)
        worker.ask_to_leave()
        await director.until(lambda: len(director.steps("complete")) == 2)
        answers = [(move.outcome, answer) for step in director.steps("complete") for move, answer in step.completions]
        assert answers == [
            (Outcome.RELEASED, CompletionAnswer.ACCEPTED),
            (Outcome.RELEASED, CompletionAnswer.DUPLICATE),
        ]
        assert director.row(run).attempt in (0, 1)

    history = play(script, workers=({"default": 1}, {"default": 1}))
    assert [call.how for call in history.calls] == ["stopped", "returned"]


# 8. A frozen owner blocks take-over.


def test_hole_8_a_frozen_scheduler_is_replaced_and_its_late_fire_changes_nothing() -> None:
    async def script(director: Director) -> None:
        end = director.start + 14 * SECOND
        spec = JobSpec(name="each second", task=LOOP, schedule=CronSchedule(expression="* * * * * *", end=end))
        job = director.put(spec)
        ledger = director.world.store.tables.ledgers[job]
        await director.until(lambda: len(ledger.times) == 3)
        owner = ledger.entries[ledger.times[-1]].epoch
        machine = director.world.schedulers[_find_owner(director) - 1]
        assert machine.process is not None
        # Its next fire is in flight when it freezes, and reaches the store long after another scheduler took over.
        director.next("fire", Fate.LATE, of=machine.process.name, request=5.0)
        await director.until(lambda: not director.world.faults.script)
        machine.process.freeze()
        await director.until(lambda: len(ledger.times) == 6)
        assert ledger.entries[ledger.times[-1]].epoch > owner
        lateness = [step.at - tick.scheduled_at for step in director.steps("fire") for tick in step.ticks]
        assert max(lateness) < 2 * SECOND
        await director.sleep(6)
        machine.process.thaw()

    play(script, schedulers=2)


def _find_owner(director: Director) -> int:
    """The number of the scheduler that fired last."""
    return int(director.steps("fire")[-1].process.partition("#")[0].removeprefix("scheduler-"))


# 9. Wheel and loader: late commits.


@pytest.mark.parametrize("ahead", [0.0, 0.02, 0.3, 0.9])
def test_hole_9_a_run_committed_after_the_load_is_staged_on_time(ahead: float) -> None:
    async def script(director: Director) -> None:
        older = director.run(Act())
        [later] = director.submit(director.run(Act(), delay=3 * SECOND))
        # A load, which happens every second, has seen only the second run.
        await director.sleep(1.2)
        now = director.world.now()
        # The late commit has an older id and an earlier due time, and there is no notification.
        director.submit(msgspec.structs.replace(older, at=now + round(ahead * SECOND)))
        director.world.history.truth.calm.append((now - SECOND, now + 5 * SECOND))
        await director.until(lambda: director.state(later).ended and director.state(older.id).ended)

    play(script)


def test_hole_9_a_job_whose_next_tick_moves_closer_is_not_fired_by_the_old_plan() -> None:
    async def script(director: Director) -> None:
        end = director.start + 10 * SECOND
        job = director.put(JobSpec(name="job", task=LOOP, schedule=Interval(every=4 * SECOND, end=end)))
        await director.sleep(2.1)
        director.put(JobSpec(name="job", task=LOOP, schedule=Interval(every=SECOND, end=end)))
        now = director.world.now()
        director.world.history.truth.calm.append((now, end))
        await director.until(lambda: len(director.world.store.tables.ledgers[job].times) > 3)

    play(script)


# 10. The lost wake-up of a blocked run.


@pytest.mark.parametrize("offset", [-2, -1, 0, 1, 2])
def test_hole_10_a_run_submitted_when_its_key_is_released_is_promoted(offset: int) -> None:
    async def script(director: Director) -> None:
        # The second run is submitted around the moment when the completion of the first arrives.
        director.next("complete", Fate.ANSWERED, request=0.1)
        [first] = director.submit(director.run(WORK, policy=KEYED))
        await director.begins(first)
        await director.ends(first)
        await director.sleep(0.1 + offset * 0.001)
        [second] = director.submit(director.run(WORK, policy=KEYED))
        await director.until(lambda: director.state(second) is RunState.SUCCEEDED, within=3)
        assert director.state(first) is RunState.SUCCEEDED

    play(script)


@pytest.mark.parametrize("how", ["cancelled while queued", "expired", "worker killed", "reply lost"])
def test_hole_10_the_next_run_of_a_key_is_promoted_however_the_holder_ends(how: str) -> None:
    async def script(director: Director) -> None:
        act = Act("work", 2 * SECOND)
        limit = SECOND if how == "expired" else None
        if how in ("cancelled while queued", "expired"):
            director.world.faults.broken.add("claim")
            await director.sleep(0.1)
        if how == "reply lost":
            director.next("complete", Fate.REPLY_LOST)
        holder, waiter = director.submit(
            director.run(act, policy=KEYED, start_within=limit), director.run(act, policy=KEYED)
        )
        assert director.state(waiter) is RunState.BLOCKED
        if how == "cancelled while queued":
            director.cancel(holder)
        elif how == "worker killed":
            process = (await director.begins(holder)).process
            assert process is not None
            process.kill()
            director.world.keep_up()
        await director.sleep(2)
        director.world.faults.broken.clear()
        await director.until(lambda: director.state(waiter) is RunState.SUCCEEDED)

    play(script)


# 11. Cancel lost.


def test_hole_11_a_cancel_just_before_a_failure_is_reported_prevents_the_retry() -> None:
    async def script(director: Director) -> None:
        director.next("complete", request=0.3)
        [run] = director.submit(director.run(Act("fail", 100 * MILLISECOND), policy=RETRIED))
        await director.begins(run)
        await director.ends(run)
        director.cancel(run)
        await director.until(lambda: director.state(run).ended)

    history = play(script)
    assert [row.state for row in history.truth.runs.values()] == [RunState.CANCELLED]
    assert len(history.calls) == 1


def test_hole_11_a_cancel_just_before_a_release_ends_the_run() -> None:
    async def script(director: Director) -> None:
        [run] = director.submit(director.run(Act("work", 10 * SECOND)))
        worker = await director.begins(run)
        director.next("complete", request=0.3)
        worker.ask_to_leave()
        await director.ends(run)
        director.cancel(run)
        await director.until(lambda: director.state(run).ended)

    history = play(script, workers=({"default": 1}, {"default": 1}))
    assert [row.state for row in history.truth.runs.values()] == [RunState.CANCELLED]
    assert len(history.calls) == 1


def test_hole_11_a_run_cancelled_while_it_is_reaped_is_not_started_again() -> None:
    async def script(director: Director) -> None:
        [run] = director.submit(director.run(Act("work", 10 * SECOND)))
        process = (await director.begins(run)).process
        assert process is not None
        process.kill()
        director.world.keep_up()
        # The completion by the reaper is in flight when the cancel is accepted.
        director.next("complete", of="scheduler", request=0.5)
        await director.until(lambda: not director.world.faults.script)
        director.cancel(run)
        await director.until(lambda: director.state(run).ended)

    history = play(script)
    assert [row.state for row in history.truth.runs.values()] == [RunState.CANCELLED]
    assert len(history.calls) == 1


def test_hole_11_a_run_cancelled_after_a_claim_without_an_answer_never_starts() -> None:
    async def script(director: Director) -> None:
        await director.sleep(0.6)
        director.next("claim", Fate.REPLY_LOST)
        [run] = director.submit(director.run(WORK))
        await director.until(lambda: director.state(run) is RunState.RUNNING)
        director.cancel(run)
        await director.until(lambda: director.state(run).ended)

    history = play(script)
    assert [row.state for row in history.truth.runs.values()] == [RunState.CANCELLED]
    assert history.calls == []


def test_hole_11_a_job_cancelled_while_a_tick_is_in_flight_makes_no_run() -> None:
    async def script(director: Director) -> None:
        end = director.start + 20 * SECOND
        spec = JobSpec(name="each second", task=LOOP, schedule=CronSchedule(expression="* * * * * *", end=end))
        job = director.put(spec, Act("work", 10 * SECOND))
        await director.until(lambda: len(director.world.store.tables.ledgers[job].times) == 2)
        director.next("fire", request=0.4)
        await director.until(lambda: not director.world.faults.script)
        director.cancel_job(job)
        await director.sleep(2)
        ledger = director.world.store.tables.ledgers[job]
        assert [ledger.entries[at].reason for at in ledger.times] == ["", "", "cancelled"]

    history = play(script)
    assert {row.state for row in history.truth.runs.values()} == {RunState.CANCELLED}


# Bugs that the simulation has found.


@pytest.mark.parametrize("how", ["schedule changed", "cancelled"])
def test_ticks_that_were_due_when_their_schedule_ended_are_in_the_ledger(how: str) -> None:
    async def script(director: Director) -> None:
        end = director.start + 20 * SECOND
        job = director.put(JobSpec(name="job", task=LOOP, schedule=CronSchedule(expression="* * * * * *", end=end)))
        await director.until(lambda: len(director.world.store.tables.ledgers[job].times) == 2)
        director.world.faults.broken.add("fire")
        await director.sleep(3)
        if how == "cancelled":
            director.cancel_job(job)
        else:
            director.put(JobSpec(name="job", task=LOOP, schedule=Interval(every=4 * SECOND, end=end)))
        director.world.faults.broken.clear()
        ledger = director.world.store.tables.ledgers[job]
        assert [ledger.entries[at].reason for at in ledger.times] == ["", "", how, how, how]

    play(script)


@pytest.mark.parametrize("overlap", [Overlap.QUEUE, Overlap.CANCEL])
def test_a_tick_does_not_overlap_a_run_of_an_older_version_of_its_job(overlap: Overlap) -> None:
    async def script(director: Director) -> None:
        schedule = CronSchedule(expression="* * * * * *", end=director.start + 8 * SECOND)
        act = Act("stubborn", 3 * SECOND)
        job = director.put(JobSpec(name="job", task=LOOP, schedule=schedule), act)
        ledger = director.world.store.tables.ledgers[job]
        await director.until(lambda: len(ledger.times) == 1 and bool(director.world.history.calls))
        director.put(JobSpec(name="job", task=LOOP, schedule=schedule, overlap=overlap), act)
        await director.until(lambda: len(ledger.times) == 3)
        assert [ledger.entries[at].reason for at in ledger.times] == ["", "overlap", "overlap"]

    play(script)


def test_a_run_that_outlives_its_worker_is_cancelled_only_when_it_has_ended() -> None:
    async def script(director: Director) -> None:
        [run] = director.submit(director.run(Act("stubborn", 30 * SECOND)))
        worker = await director.begins(run)
        director.cancel(run)
        worker.ask_to_leave()
        worker.ask_to_leave()
        await director.ends(run)
        left = director.world.now()
        assert director.state(run) is RunState.RUNNING
        await director.until(lambda: director.state(run) is RunState.CANCELLED)
        assert director.row(run).lost == 1
        assert director.world.now() - left <= LEASE + 2 * SECOND

    history = play(script, workers=({"default": 1}, {"default": 1}))
    assert [call.how for call in history.calls] == ["died"]


@pytest.mark.parametrize("step", [1, 20, 400, 2_000])
def test_no_tick_is_recorded_early_when_the_clock_of_the_store_is_set_back(step: int) -> None:
    async def script(director: Director) -> None:
        end = director.start + 8 * SECOND
        job = director.put(JobSpec(name="job", task=LOOP, schedule=CronSchedule(expression="* * * * * *", end=end)))
        await director.until(lambda: len(director.world.store.tables.ledgers[job].times) == 2)
        await director.until(lambda: director.world.now() % SECOND >= 999 * MILLISECOND)
        director.world.store_clock.offset -= step * MILLISECOND
        director.world.history.truth.clock_steps += step * MILLISECOND
        director.world.history.truth.calm.append((director.world.now(), end))

    play(script)
