"""Submits runs and changes jobs; used by the API, the SDK and the command line."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from random import Random
from typing import TYPE_CHECKING, TypeVar

from mainspring.core.model.base.errors import StoreDamaged, StoreUnavailable
from mainspring.core.model.base.ids import IdMaker, JobId, RunId, decode_shard, derived_id, made_at, shard_for
from mainspring.core.model.base.instant import DAY, MILLISECOND, SECOND, Instant, Micros
from mainspring.core.model.cluster.placement import choose_placement_group, find_placement_group, shard_in
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.schedules.job import JobState, NewJob
from mainspring.core.model.workflows.dependencies import parents_first
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.answers import PutResult, SubmitResult
from mainspring.core.ports.wakeups import CANCELS, SCHEDULES, Wakeups, queue_topic
from mainspring.core.runtime.backoff import Backoff, jitter
from mainspring.core.runtime.batcher import Batcher
from mainspring.core.runtime.metrics.run_metrics import RunMetrics
from mainspring.core.scheduler.loader import HORIZON
from mainspring.core.store import Submissions

if TYPE_CHECKING:
    from mainspring.core.runtime.tracing.spans import Tracing

T = TypeVar("T")

_LARGEST_BATCH = 1_000
#: The most payload bytes per call of the store: stores make several copies of them.
_LARGEST_BYTES = 8 * 1024 * 1024
#: How long calls are retried while the store does not answer, and the pauses between them …
_PATIENCE: Micros = 5 * SECOND
_FIRST_PAUSE: Micros = 50 * MILLISECOND
_LONGEST_PAUSE: Micros = SECOND
#: … and the time limit of a whole call.
_LONGEST: Micros = 8 * SECOND


class Jobs:
    """Submits work. When a method returns, the store has the work and interested processes were notified.

    Retrying a call that the store did not answer is safe: ids are created before, and a known id is not created twice.
    """

    def __init__(
        self,
        store: Submissions,
        wakeups: Wakeups,
        clock: Clock,
        random: Random,
        *,
        shards: int,
        after_cancel: "Callable[[Jobs, Collection[RunId]], Awaitable[None]] | None" = None,
        placement_groups: int = 0,
        group_by: Callable[[NewRun], int] | None = None,
        metrics: RunMetrics | None = None,
        tracing: "Tracing | None" = None,
    ) -> None:
        """Create the service.

        ``after_cancel``: called with the runs that were cancelled, to cancel what belongs to them.
        ``placement_groups``: how many a sharded store has; 0: a single server. ``group_by``: only runs with the same
        result share a commit, so that an unavailable server does not block runs of others. ``metrics``: counts what
        happens. ``tracing``: records spans.
        """
        self._store = store
        self._after_cancel = after_cancel
        self._wakeups = wakeups
        self._clock = clock
        self._random = random
        self._shards = shards
        self._placement_groups = placement_groups
        self._group_by = group_by
        self._metrics = metrics
        self._tracing = tracing
        self._ids = IdMaker(random)
        self._batchers: dict[int, Batcher[NewRun, SubmitResult]] = {}

    def new_run_id(self, ordering_key: str = "", *, tenant: str = "default", placement: str = "") -> RunId:
        return self.new_run_ids([ordering_key], tenant=tenant, placement=placement)[0]

    def new_run_ids(self, ordering_keys: Iterable[str], *, tenant: str = "default", placement: str = "") -> list[RunId]:
        """Return ids for one batch: a run with an ordering key goes to its key's shard, all others to one shard."""
        now = self._clock.now()
        chance = self._random.randrange(self._shards)
        shard = self._shard("", chance, tenant, placement)
        return [
            self._ids.run(now, self._shard(key, chance, tenant, placement) if key else shard) for key in ordering_keys
        ]

    def new_run_id_beside(self, run: RunId) -> RunId:
        """Return an id in the shard of another run."""
        return self._ids.run(self._clock.now(), decode_shard(run))

    def id_by_key(self, run: NewRun) -> RunId:
        """Return an id for a run with an idempotency key that is announced before the store has it.

        The id is the same for the same request on one UTC day, in every process. A key is remembered for at least a
        day, so no other run has this id.
        """
        assert run.idempotency is not None
        words = (run.tenant, run.idempotency.key, run.idempotency.fingerprint.hex())
        shard = self._shard(run.policy.ordering_key or "\x1f".join(words), 0, run.tenant, run.placement)
        return RunId(derived_id(self._clock.now() // DAY * DAY, shard, *words))

    def placed(self, identifier: RunId, tenant: str, placement: str = "") -> RunId:
        """Return an external id, or an id derived from it that lies in the right placement group."""
        if not self._placement_groups or find_placement_group(
            identifier, self._placement_groups
        ) == choose_placement_group(tenant, placement, self._placement_groups):
            return identifier
        return RunId(derived_id(made_at(identifier), self._shard(identifier, 0, tenant, placement), identifier))

    def new_job_id(self, tenant: str, name: str) -> JobId:
        return self._ids.job(self._clock.now(), self._shard(f"{tenant}\x1f{name}", 0, tenant))

    def _shard(self, key: str, chance: int, tenant: str, placement: str = "") -> int:
        if self._placement_groups:
            return shard_in(
                choose_placement_group(tenant, placement, self._placement_groups), self._shards, key, chance
            )
        return shard_for(key, self._shards) if key else chance

    async def submit(self, run: NewRun) -> SubmitResult:
        """Submit one run. Runs submitted at the same time share a commit."""
        run.check()
        if self._tracing is not None and (submitting := self._tracing.submitting([run], self._clock)) is not None:
            with submitting:
                return await self._submit_one(submitting.runs[0])
        return await self._submit_one(run)

    def _submit_one(self, run: NewRun) -> Awaitable[SubmitResult]:
        if run.after is not None:
            return self._submit_alone(run)
        group = 0 if self._group_by is None else self._group_by(run)
        batcher = self._batchers.get(group)
        if batcher is None:
            batcher = self._batchers[group] = Batcher(self._submit, largest=_LARGEST_BATCH)
        return batcher.add(run)

    async def _submit_alone(self, run: NewRun) -> SubmitResult:
        """Submit alone: if a parent is missing, no unrelated run is rejected with it."""
        return (await self._submit([run]))[0]

    async def submit_many(self, runs: Sequence[NewRun]) -> list[SubmitResult]:
        """Submit runs in batches.

        If it fails halfway, accepted runs stay: submit all of them again with the same ids.
        """
        for run in runs:
            run.check()
        return await self._traced(runs, self._submit)

    async def submit_whole(self, runs: Sequence[NewRun]) -> list[SubmitResult]:
        """Submit runs that belong together in one transaction: all of them, or none."""
        for run in runs:
            run.check()
        return await self._traced(runs, self._submit_part)

    async def put_jobs(self, jobs: Sequence[NewJob]) -> list[PutResult]:
        for job in jobs:
            job.check()
        put = await self._retry_for_a_while(lambda: self._store.put_jobs(jobs))
        self._wakeups.notify([SCHEDULES])
        return put

    async def pause(
        self, jobs: Collection[JobId], author: Author | None = None, *, resume_at: Instant | None = None
    ) -> dict[JobId, JobState]:
        return await self._retry_for_a_while(
            lambda: self._store.set_jobs_state(jobs, JobState.PAUSED, author, resume_at=resume_at)
        )

    async def resume(self, jobs: Collection[JobId], author: Author | None = None) -> dict[JobId, JobState]:
        return await self._retry_for_a_while(lambda: self._store.set_jobs_state(jobs, JobState.SCHEDULED, author))

    async def cancel_jobs(self, jobs: Collection[JobId], author: Author | None = None) -> dict[JobId, JobState]:
        """End the schedules of jobs, and ask their runs to stop."""
        states = await self._retry_for_a_while(lambda: self._store.set_jobs_state(jobs, JobState.CANCELLED, author))
        self._wakeups.notify([CANCELS])
        return states

    async def cancel_runs(self, runs: Collection[RunId], author: Author | None = None) -> dict[RunId, RunState]:
        states = await self._retry_for_a_while(lambda: self._store.cancel(runs, author))
        if RunState.CANCELLING in states.values():
            self._wakeups.notify([CANCELS])
        stopped = [run for run, state in states.items() if state in (RunState.CANCELLED, RunState.CANCELLING)]
        if stopped and self._after_cancel is not None:
            await self._after_cancel(self, stopped)
        return states

    async def _traced(
        self, runs: Sequence[NewRun], submit: Callable[[Sequence[NewRun]], Awaitable[list[SubmitResult]]]
    ) -> list[SubmitResult]:
        """Submit with tracing.

        Call this after the idempotency keys were computed: a repeated request has another trace.
        """
        submitting = None if self._tracing is None else self._tracing.submitting(runs, self._clock)
        if submitting is None:
            return await submit(runs)
        with submitting:
            return await submit(submitting.runs)

    async def _submit(self, runs: Sequence[NewRun]) -> list[SubmitResult]:
        if any(run.after is not None for run in runs):
            return await self._submit_families(runs)
        accepted: list[SubmitResult] = []
        for part in _parts(runs):
            accepted += await self._submit_part(part)
        return accepted

    async def _submit_families(self, runs: Sequence[NewRun]) -> list[SubmitResult]:
        """Submit parents before their children, which may be in a later part."""
        edges = {run.id: () if run.after is None else run.after.parents for run in runs}
        order_of = {run: number for number, run in enumerate(parents_first(edges))}
        order = sorted(range(len(runs)), key=lambda number: order_of[runs[number].id])
        answers: dict[int, SubmitResult] = {}
        for part in _parts([runs[number] for number in order]):
            for answer in await self._submit_part(part):
                answers[order[len(answers)]] = answer
        return [answers[number] for number in range(len(runs))]

    async def _submit_part(self, runs: Sequence[NewRun]) -> list[SubmitResult]:
        sent = self._clock.monotonic()
        try:
            accepted = await self._retry_for_a_while(lambda: self._store.submit(runs))
        except StoreUnavailable:
            if self._metrics is not None:
                self._metrics.failed("submit")
            raise
        if self._metrics is not None:
            self._metrics.called("submit", self._clock.monotonic() - sent, len(runs))
            new = [run for run, answer in zip(runs, accepted, strict=True) if answer.new]
            self._metrics.known += len(runs) - len(new)
            self._metrics.submitted(new)
        topics: dict[str, None] = {}
        for run, answer in zip(runs, accepted, strict=True):
            if answer.state is RunState.QUEUED:
                topics[queue_topic(run.queue)] = None
            elif answer.state is RunState.SCHEDULED and self._is_soon(run):
                topics[SCHEDULES] = None
        if topics:
            self._wakeups.notify(list(topics))
        return accepted

    def _is_soon(self, run: NewRun) -> bool:
        """Compare with this node's clock, which is accurate enough for a notification."""
        return run.delay <= HORIZON if run.at is None else run.at - self._clock.now() <= HORIZON

    async def _retry_for_a_while(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Call the store again while it is unavailable, for ``_PATIENCE`` at most."""
        retry_until = self._clock.monotonic() + _PATIENCE
        backoff = None
        try:
            async with asyncio.timeout(_LONGEST / SECOND):
                while True:
                    try:
                        return await ask()
                    except StoreDamaged:
                        raise
                    except StoreUnavailable:
                        backoff = backoff or Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
                        pause = backoff.next()
                        if self._clock.monotonic() + pause > retry_until:
                            raise
                    await self._clock.sleep(jitter(pause, self._random))
        except TimeoutError:
            raise StoreUnavailable("the store did not answer in time") from None


def _parts(runs: Sequence[NewRun]) -> Iterator[Sequence[NewRun]]:
    """Split runs in order into parts of a size that a store takes at once."""
    start = size = 0
    for number, run in enumerate(runs):
        size += len(run.payload)
        if number - start == _LARGEST_BATCH or (size > _LARGEST_BYTES and number > start):
            yield runs[start:number]
            start, size = number, len(run.payload)
    if start < len(runs):
        yield runs[start:]
