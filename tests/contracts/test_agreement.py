"""Every store behaves like the memory store under random operations."""

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from random import Random
from typing import Any

import msgspec
import pytest

from mainspring.core.model.base.ids import JobId, RunId, SessionId
from mainspring.core.model.base.instant import DAY, MILLISECOND, MINUTE, SECOND
from mainspring.core.model.limits.limits import Breaker
from mainspring.core.model.runs.completion import (
    Completion,
    CompletionAnswer,
    complete_cancel,
    complete_failure,
    complete_loss,
    complete_release,
    complete_success,
)
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.run import HeldRun, RunState
from mainspring.core.model.runs.unique import Unique
from mainspring.core.model.schedules.job import JobState, NewJob, Overlap
from mainspring.core.model.workflows.dependencies import Dependencies, DependencyRule
from mainspring.core.store import Demand
from tests.support.builders import a_fire, a_job, a_limit, a_policy, a_run, a_spec, a_tick, after_each, every
from tests.support.store_harness import Harness, MemoryHarness, ids

READER = "walk"
#: The labels of the workers, and those that some runs require. No worker has the last ones.
LABELS: list[tuple[str, ...]] = [(), ("gpu=a100",), ("gpu=a100", "region=eu")]
REQUIRED: list[tuple[str, ...]] = [("gpu=a100",), ("region=eu",), ("gpu=a100", "region=eu"), ("gpu=h100",)]


#: No period is a whole number of minutes, so that none ends exactly when the clock moves.
LIMITED: list[dict[str, Any]] = [
    {},
    {},
    {"limits": (a_limit("one", 1),)},
    {"limits": (a_limit("two", 2),)},
    {"limits": (a_limit("rate", 2, 90 * SECOND),)},
    {"limits": (a_limit("one", 1), a_limit("two", 2))},
    {"limits": (a_limit("two", 3), a_limit("rate", 2, 90 * SECOND))},
    {"breaker": Breaker(failures=2, within=210 * SECOND, pause=90 * SECOND)},
]
UNIQUE: list[Unique | None] = [
    *[None] * 8,
    Unique(key="u"),
    Unique(key="u", otherwise="reject"),
    Unique(key="u", otherwise="replace"),
    Unique(key="u", otherwise="debounce"),
    Unique(key="v", otherwise="debounce", period=210 * SECOND),
]


class Side:
    """One of the two stores, and the runs that its workers hold."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.workers: list[SessionId] = []
        self.held: dict[RunId, HeldRun] = {}
        #: Which worker was last given a run.
        self.given_to: dict[RunId, int] = {}

    async def open(self, workers: int) -> None:
        self.workers = [await self.harness.worker(labels=LABELS[number]) for number in range(workers)]
        await self.harness.owner()
        await self.harness.store.attach_reader(READER)

    async def claim(self, worker: int, demands: list[Demand]) -> list[RunId]:
        claimed = await self.harness.claim_from(self.workers[worker], *demands)
        self.held.update({run.id: run for run in claimed})
        self.given_to.update(dict.fromkeys(ids(claimed), worker))
        return sorted(ids(claimed))

    async def declare(self, job: NewJob) -> tuple[int, JobState]:
        stored = await self.harness.put(job)
        return stored.version, stored.state

    async def seen(self, runs: list[RunId], jobs: list[JobId]) -> object:
        """Return the state that must be equal on both sides. Times differ, because the clocks start apart."""
        store = self.harness.store
        views = []
        for view in await store.runs(runs):
            assert view is not None
            ended = view.state.ended
            views.append(
                (
                    view.id,
                    view.state,
                    # Stores may or may not charge a release that ended in a cancel.
                    None if view.state is RunState.CANCELLED else view.attempt,
                    view.lost,
                    # Stores may name any of several parents as the reason.
                    view.reason.partition(" ")[0] if ended else "",
                    view.error if view.state is RunState.FAILED else None,
                    view.result,
                    view.started_at is not None if view.state is RunState.RUNNING else None,
                    view.finished_at is not None,
                    view.policy.requires,
                    # Sessions have their own numbers on each side.
                    view.target is not None,
                    view.parents,
                    view.rule,
                    view.limiter,
                )
            )
        depths = [(depth.queue, depth.queued, depth.running) for depth in await store.depths()]
        stored = [job and (job.state, job.version, job.next_fire is None) for job in await store.jobs(jobs)]
        return views, depths, stored

    async def read_events(self) -> dict[str, list[RunId]]:
        """Return and acknowledge the new events by kind. Stores may emit the kinds of one step in any order."""
        batches = await self.harness.events(READER)
        if batches:
            await self.harness.store.acknowledge(READER, batches[-1].position)
        kinds = {batch.kind for batch in batches}
        return {kind: sorted(run for batch in batches if batch.kind == kind for run in batch.runs) for kind in kinds}


class Walk:
    """A random walk over both sides. After each step both must have the same state."""

    def __init__(self, seed: int, reference: Harness, subject: Harness) -> None:
        self.random = Random(seed)
        self.sides = [Side(reference), Side(subject)]
        self.runs: list[RunId] = []
        self.submitted: list[RunId] = []
        self.jobs: list[JobId] = []
        self.declared: list[NewJob] = []
        self.ticks = 0
        self.first_tick = 0

    async def both(self, what: str, act: Callable[[Side], Awaitable[object]]) -> object:
        expected, answered = [await act(side) for side in self.sides]
        assert answered == expected, what
        return expected

    async def open(self) -> None:
        for side in self.sides:
            await side.open(workers=3)
        # In the past for both clocks, so that every tick can fire.
        self.first_tick = await self.sides[0].harness.now() - MINUTE
        overlaps = [Overlap.ALLOW, Overlap.SKIP, Overlap.QUEUE, Overlap.CANCEL]
        policy = a_policy(retries=1, pause=MINUTE)
        keyed = a_policy(key="a", retries=1, pause=MINUTE)
        specs = [a_spec(overlap=overlap, schedule=every(DAY), policy=policy) for overlap in overlaps]
        specs.append(a_spec(overlap=Overlap.QUEUE, schedule=every(DAY), policy=keyed))
        labelled = a_policy(retries=1, pause=MINUTE, requires=("gpu=a100",))
        specs.append(a_spec(overlap=Overlap.QUEUE, schedule=every(DAY), policy=labelled))
        specs.append(a_spec(overlap=Overlap.ALLOW, schedule=after_each(DAY), policy=policy))
        specs.append(a_spec(overlap=Overlap.SKIP, schedule=after_each(DAY), policy=policy, start_within=90 * SECOND))
        jobs = [a_job(spec, shard=number) for number, spec in enumerate(specs)]
        self.jobs = [job.id for job in jobs]
        self.declared = jobs
        for side in self.sides:
            await side.harness.store.put_jobs(jobs)

    async def step(self) -> None:
        steps: list[tuple[int, Callable[[], Awaitable[str]]]] = [
            (5, self.submit),
            (5, self.claim),
            (8, self.complete),
            (1, self.settle_again),
            (2, self.cancel),
            (3, self.pass_time),
            (3, self.stage),
            (1, self.expire),
            (1, self.tidy),
            (1, self.lose_an_answer),
            (1, self.lose_a_worker),
            (3, self.fire),
            (1, self.change_a_job),
            (1, self.declare_again),
        ]
        [step] = self.random.choices([step for _, step in steps], [weight for weight, _ in steps])
        what = await step()
        for side in self.sides:
            await side.harness.resolve()
            # The clocks stand still, and later steps must have later times.
            await side.harness.advance(MILLISECOND)
        await self.both(f"what is seen after: {what}", lambda side: side.seen(self.runs, self.jobs))
        await self.both(f"events of: {what}", lambda side: side.read_events())

    async def submit(self) -> str:
        new: list[NewRun] = []
        for _ in range(self.random.randint(1, 4)):
            run = a_run(
                policy=a_policy(
                    key=self.random.choice(["", "", "a", "b"]),
                    retries=self.random.randint(0, 2),
                    pause=MINUTE,
                    requires=self.random.choice([(), (), (), *REQUIRED]),
                    **self.random.choice(LIMITED),
                ),
                queue=self.random.choice(["default", "other"]),
                shard=self.random.randrange(8),
                priority=self.random.choice([5, 5, 1, 10]),
                delay=self.random.choice([0, 0, MINUTE, 3 * MINUTE]),
                start_within=self.random.choice([None, None, None, 90 * SECOND]),
                deadline=self.random.choice([None, None, None, 150 * SECOND]),
                unique=self.random.choice(UNIQUE),
            )
            if run.unique is not None and any(one.unique and one.unique.key == run.unique.key for one in new):
                # Stores may emit one or two events for a run that is created and debounced in one step.
                run = msgspec.structs.replace(run, unique=None)
            if self.random.random() < 0.25:
                # Parents may be in the same batch.
                others = [*self.runs[-20:], *(one.id for one in new)]
                parents = dict.fromkeys(self.random.choices(others, k=self.random.randint(1, 3))) if others else ()
                rule = self.random.choice(list(DependencyRule))
                after = Dependencies(parents=tuple(parents), rule=rule) if parents else None
                run = msgspec.structs.replace(run, after=after)
            new.append(run)
        # Targets by the index of the worker.
        targets = {run.id: self.random.randrange(3) for run in new if self.random.random() < 0.15}
        known = [run for run in self.submitted if self.random.random() < 0.02]

        async def act(side: Side) -> object:
            runs = [
                msgspec.structs.replace(run, target=side.workers[targets[run.id]]) if run.id in targets else run
                for run in new
            ]
            return await side.harness.submit(*runs, *(a_run(id=run) for run in known))

        answers = await self.both("submit", act)
        assert isinstance(answers, list)
        made = [answer.id for answer in answers[: len(new)] if answer.new]
        self.submitted += made
        self.runs += made
        return f"submit {[run.id[-4:] for run in new]}"

    async def claim(self) -> str:
        # Claim all runs of a queue, because ties in rank are broken differently on the two sides.
        worker = self.random.randrange(3)
        demands = [Demand(queue, 100) for queue in self.random.choice([["default"], ["other"], ["default", "other"]])]
        claimed = await self.both("claim", lambda side: side.claim(worker, demands))
        return f"claim {claimed}"

    async def complete(self) -> str:
        chosen = [run for run in self.sides[0].held if self.random.random() < 0.4]
        ends = {run: self.random.randrange(8) for run in chosen}

        async def act(side: Side) -> list[CompletionAnswer]:
            now = await side.harness.now()
            answers = await side.harness.complete(*(_end(side.held[run], end, now) for run, end in ends.items()))
            for run in ends:
                del side.held[run]
            return answers

        await self.both("verdicts", act)
        return f"complete {ends}"

    async def settle_again(self) -> str:
        """Repeat a completion, as a worker does whose answer was lost."""
        if not self.sides[0].held:
            return "complete nothing twice"
        run, end = self.random.choice(list(self.sides[0].held)), self.random.randrange(8)

        async def act(side: Side) -> list[CompletionAnswer]:
            completion = _end(side.held.pop(run), end, await side.harness.now())
            return await side.harness.complete(completion) + await side.harness.complete(completion)

        assert (await self.both("verdicts", act)) == [CompletionAnswer.ACCEPTED, CompletionAnswer.DUPLICATE]
        return f"complete {run} by {end} twice"

    async def cancel(self) -> str:
        chosen = [run for run in self.runs if self.random.random() < 0.1]
        await self.both("cancel", lambda side: side.harness.store.cancel(chosen))
        return f"cancel {chosen}"

    async def pass_time(self) -> str:
        minutes = self.random.randint(1, 3)
        for side in self.sides:
            await side.harness.advance(minutes * MINUTE)
        return f"advance {minutes}"

    async def stage(self) -> str:
        async def act(side: Side) -> object:
            runs, queues, more = 0, set[str](), True
            while more:
                staged = await side.harness.stage(100)
                runs, queues, more = runs + staged.runs, queues | set(staged.queues), staged.more
            return runs, queues

        return f"stage {await self.both('stage', act)}"

    async def expire(self) -> str:
        return f"expire {await self.both('expire', lambda side: side.harness.store.expire(100))}"

    async def tidy(self) -> str:
        for side in self.sides:
            await side.harness.store.tidy()
        return "tidy"

    async def lose_an_answer(self) -> str:
        """Send a heartbeat that does not name some of the claimed runs."""
        worker = self.random.randrange(3)
        mine = [run for run in self.sides[0].held if self.sides[0].given_to[run] == worker]
        forgotten = {run for run in mine if self.random.random() < 0.3}

        async def act(side: Side) -> object:
            known = [run for run in mine if run not in forgotten]
            session = side.workers[worker]
            heartbeat = await side.harness.store.heartbeat(
                session, 365 * DAY, known, [], side.harness.last_claim(session)
            )
            for run in forgotten:
                del side.held[run]
            return heartbeat.alive, sorted(heartbeat.cancels), heartbeat.returned

        return f"beat without {forgotten}: {await self.both('beat', act)}"

    async def lose_a_worker(self) -> str:
        worker = self.random.randrange(3)

        async def act(side: Side) -> object:
            await side.harness.store.close_session(side.workers[worker])
            side.workers[worker] = await side.harness.worker(labels=LABELS[worker])
            lost = sorted(await side.harness.store.lost_runs(1_000), key=lambda run: run.id)
            for run in lost:
                del side.held[run.id]
            answers = await side.harness.complete(*(complete_loss(run, blamed=False) for run in lost))
            return [(run.id, run.attempt, run.lost, run.cancel_requested) for run in lost], answers

        return f"lose worker {worker}: {await self.both('losses', act)}"

    async def fire(self) -> str:
        job_id = self.random.choice(self.jobs)
        self.ticks += 1
        at = self.first_tick + self.ticks
        ahead = self.random.choice([0, 0, 0, MINUTE])

        async def act(side: Side) -> object:
            job = await side.harness.job(job_id)
            now = await side.harness.now()
            # A fixed delay that waits for its run has no tick to fire.
            if job.next_fire is None:
                return None
            delayed = job.spec.fixed_delay is not None
            tick = a_tick(job, at, due=now + ahead)
            fire = a_fire(job, tick, next_fire=None if delayed else job.next_fire)
            [fired] = await side.harness.store.fire(await side.harness.owner(), [fire])
            [entry] = [entry for entry in await side.harness.ticks(job_id) if entry.scheduled_at == at]
            return fired.applied, fired.runs, entry.decision, entry.reason, entry.run_id

        fired = await self.both("fire", act)
        if isinstance(fired, tuple) and fired[4] is not None:
            self.runs.append(fired[4])
        return f"fire {self.jobs.index(job_id)}: {fired}"

    async def change_a_job(self) -> str:
        job = self.random.choice(self.jobs)
        state = self.random.choice([JobState.PAUSED, JobState.SCHEDULED])
        await self.both("job state", lambda side: side.harness.store.set_jobs_state([job], state))
        return f"job {self.jobs.index(job)} {state}"

    async def declare_again(self) -> str:
        """Declare a new version whose runs may have another ordering key."""
        place = self.random.randrange(len(self.declared))
        job = self.declared[place]
        policy = a_policy(key=self.random.choice(["", "", "a"]), retries=1, pause=MINUTE)
        spec = msgspec.structs.replace(job.spec, overlap=self.random.choice(list(Overlap)), policy=policy)
        job = self.declared[place] = msgspec.structs.replace(job, spec=spec)
        await self.both("declare", lambda side: side.declare(job))
        return f"job {place} is {spec.overlap} with key {policy.ordering_key!r}"

    async def finish(self) -> None:
        """Every accepted run ends once there is a worker for it."""
        demands = [Demand("default", 100), Demand("other", 100)]
        for side in self.sides:
            await side.harness.store.close_session(side.workers[0])
            lost = await side.harness.store.lost_runs(1_000)
            await side.harness.complete(*(complete_loss(run, blamed=False) for run in lost))
            side.workers[0] = await side.harness.worker(labels=("gpu=h100",))
            side.held = {run: held for run, held in side.held.items() if run not in set(ids(lost))}
        for _ in range(200):
            for side in self.sides:
                await side.harness.advance(5 * MINUTE)
                await side.harness.store.expire(1_000)
                await side.harness.stage()
                await side.harness.resolve()
            for worker in range(3):
                await self.both("claim", partial(Side.claim, worker=worker, demands=demands))
            for side in self.sides:
                await side.harness.succeed(*side.held.values())
                side.held.clear()
            views = await self.sides[0].harness.store.runs(self.runs)
            if all(view is not None and view.state.ended for view in views):
                break
        await self.both("the end", lambda side: side.seen(self.runs, self.jobs))
        ended = {view.state for view in await self.sides[1].harness.store.runs(self.runs) if view is not None}
        assert all(state.ended for state in ended), ended


def _end(held: HeldRun, way: int, now: int) -> Completion:
    match way:
        case 0 | 1:
            return complete_success(held, b'{"ok":true}')
        case 2 | 3:
            return complete_failure(held, "boom", Random(0), now=now)
        case 4:
            return complete_failure(held, "slow", Random(0), now=now, timed_out=True)
        case 5:
            return complete_release(held)
        case 6:
            return complete_release(held, "unknown task", 2 * MINUTE)
        case _:
            return complete_cancel(held)


@pytest.fixture
async def reference() -> AsyncIterator[Harness]:
    harness = MemoryHarness()
    await harness.open()
    yield harness
    assert await harness.store.sweep(1_000) == 0
    await harness.close()


@pytest.mark.parametrize("seed", range(6))
async def test_a_random_walk_gives_the_same_results_as_on_the_memory_store(
    harness: Harness, reference: Harness, seed: int
) -> None:
    walk = Walk(seed, reference, harness)
    await walk.open()
    for _ in range(120):
        await walk.step()
    await walk.finish()
