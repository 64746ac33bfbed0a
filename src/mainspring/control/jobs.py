"""What everybody calls who wants something run: the API, the SDK and the command line."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from random import Random
from typing import TypeVar

from mainspring.control.scheduler.loader import HORIZON
from mainspring.domain.errors import StoreUnavailable
from mainspring.domain.ids import IdMaker, JobId, RunId, shard_for
from mainspring.domain.instant import MILLISECOND, SECOND, Micros
from mainspring.domain.job import Job, JobState, NewJob
from mainspring.domain.run import NewRun, RunState
from mainspring.ports.clock import Clock
from mainspring.ports.store import Accepted, Submissions
from mainspring.ports.wakeups import CANCELS, SCHEDULES, Wakeups, queue_topic
from mainspring.runtime.batcher import Batcher

T = TypeVar("T")

_LARGEST_BATCH = 1_000
#: How long a store that does not answer is asked again, and how soon.
_PATIENCE: Micros = 5 * SECOND
_FIRST_PAUSE: Micros = 50 * MILLISECOND
_LONGEST_PAUSE: Micros = SECOND


class Jobs:
    """Takes work in. When a method returns, the store has it; whoever should look at it has been told.

    Asking a store again that did not answer is safe: ids are made before, and a known id is not made twice.
    """

    def __init__(self, store: Submissions, wakeups: Wakeups, clock: Clock, random: Random, *, shards: int) -> None:
        self._store = store
        self._wakeups = wakeups
        self._clock = clock
        self._random = random
        self._shards = shards
        self._ids = IdMaker(random)
        self._batcher: Batcher[NewRun, Accepted] = Batcher(self._submit, largest=_LARGEST_BATCH)

    def new_run_id(self, ordering_key: str = "") -> RunId:
        return self.new_run_ids([ordering_key])[0]

    def new_run_ids(self, ordering_keys: Iterable[str]) -> list[RunId]:
        """Ids for one batch: what has an ordering key goes to its key's shard, all the rest to one."""
        now = self._clock.now()
        shard = self._random.randrange(self._shards)
        return [self._ids.run(now, shard_for(key, self._shards) if key else shard) for key in ordering_keys]

    def new_job_id(self, tenant: str, name: str) -> JobId:
        return self._ids.job(self._clock.now(), shard_for(f"{tenant}\x1f{name}", self._shards))

    async def submit(self, run: NewRun) -> Accepted:
        """Submit one run. Those that are submitted at the same time share a commit."""
        run.check()
        return await self._batcher.add(run)

    async def submit_many(self, runs: Sequence[NewRun]) -> list[Accepted]:
        """Submit runs in batches. If it fails halfway, what was accepted stays: submit them again with the same ids."""
        for run in runs:
            run.check()
        accepted: list[Accepted] = []
        for start in range(0, len(runs), _LARGEST_BATCH):
            accepted += await self._submit(runs[start : start + _LARGEST_BATCH])
        return accepted

    async def put_jobs(self, jobs: Sequence[NewJob]) -> list[Job]:
        for job in jobs:
            job.check()
        put = await self._patiently(lambda: self._store.put_jobs(jobs))
        self._wakeups.ring([SCHEDULES])
        return put

    async def pause(self, jobs: Collection[JobId]) -> dict[JobId, JobState]:
        return await self._patiently(lambda: self._store.set_jobs_state(jobs, JobState.PAUSED))

    async def resume(self, jobs: Collection[JobId]) -> dict[JobId, JobState]:
        return await self._patiently(lambda: self._store.set_jobs_state(jobs, JobState.SCHEDULED))

    async def cancel_jobs(self, jobs: Collection[JobId]) -> dict[JobId, JobState]:
        """End the schedules of jobs, and ask their runs to stop."""
        states = await self._patiently(lambda: self._store.set_jobs_state(jobs, JobState.CANCELLED))
        self._wakeups.ring([CANCELS])
        return states

    async def cancel_runs(self, runs: Collection[RunId]) -> dict[RunId, RunState]:
        states = await self._patiently(lambda: self._store.cancel(runs))
        if RunState.CANCELLING in states.values():
            self._wakeups.ring([CANCELS])
        return states

    async def _submit(self, runs: Sequence[NewRun]) -> list[Accepted]:
        accepted = await self._patiently(lambda: self._store.submit(runs))
        topics: dict[str, None] = {}
        for run, answer in zip(runs, accepted, strict=True):
            if answer.state is RunState.QUEUED:
                topics[queue_topic(run.queue)] = None
            elif answer.state is RunState.SCHEDULED and self._is_soon(run):
                topics[SCHEDULES] = None
        if topics:
            self._wakeups.ring(list(topics))
        return accepted

    def _is_soon(self, run: NewRun) -> bool:
        """By this node's clock, which is good enough for a hint."""
        return run.delay <= HORIZON if run.at is None else run.at - self._clock.now() <= HORIZON

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        give_up_at = self._clock.monotonic() + _PATIENCE
        pause = _FIRST_PAUSE
        while True:
            try:
                return await ask()
            except StoreUnavailable:
                if self._clock.monotonic() + pause > give_up_at:
                    raise
            await self._clock.sleep(round(pause * (0.5 + self._random.random() / 2)))
            pause = min(pause * 2, _LONGEST_PAUSE)
