"""Watches groups of dead letters and drives open replays. Needs no leader."""

from collections import Counter
from typing import Protocol

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import MILLISECOND, SECOND, Instant, Micros
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.replay import Replay, judged, replay_id, replayed, room
from mainspring.core.model.runs.view import RunView
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.storage.catalog import RunFilter
from mainspring.core.ports.storage.dead_letters import DeadLetters
from mainspring.core.ports.storage.reads import StoreReads
from mainspring.core.ports.wakeups import Wakeups
from mainspring.core.runtime.service import TickingService
from mainspring.core.submit.jobs import Jobs
from mainspring.features.dead_letters.quotas import QuotaBudget, QuotaStore

_WATCH_INTERVAL: Micros = 2 * SECOND
_STEP_INTERVAL: Micros = 100 * MILLISECOND
#: Payloads held in memory at once, at most 256 KiB each.
_BATCH = 50


class DeadLetterServiceStore(DeadLetters, StoreReads, QuotaStore, Protocol):
    """The store methods that the service uses."""


class _ReplayBatch(msgspec.Struct, frozen=True):
    """The next dead letters, and the cursor after them. ``is_limited``: there may be more, but a quota has no room."""

    runs: list[RunView]
    after: RunId | None
    is_limited: bool = False


class DeadLetterService(TickingService):
    """Watches dead letters and drives replays. Any number of processes may run it.

    If two take the same step of a replay, the second one changes nothing. Runs created by a replay count against the
    quotas of their tenant, and wait while there is no room.
    """

    def __init__(self, store: DeadLetterServiceStore, jobs: Jobs, wakeups: Wakeups, clock: Clock) -> None:
        super().__init__("dead-letters", clock, wakeups.listen([]))
        self._store = store
        self._jobs = jobs
        self._quotas = QuotaBudget(store, clock)
        self._watched_at: Micros = -_WATCH_INTERVAL

    async def tick(self) -> Micros:
        if self.clock.monotonic() - self._watched_at >= _WATCH_INTERVAL:
            self._watched_at = self.clock.monotonic()
            growing = await self._store.watch_dead_letters()
            if growing:
                self.log.debug("dead letter groups growing", groups=growing)
        open_replays = await self._store.open_replays()
        if open_replays:
            await self._quotas.refresh()
        # Create the runs that were chosen before, so that the quota count includes them.
        passed_over = [await self._submit_chosen(replay) for replay in open_replays]
        for replay, passed in zip(open_replays, passed_over, strict=True):
            await self._advance(replay, passed)
        return _STEP_INTERVAL if open_replays else _WATCH_INTERVAL

    async def _advance(self, replay: Replay, passed_over: int) -> None:
        """Choose the next runs of a replay and save the choice. The runs chosen before have been created."""
        now = await self._store.now()
        advanced = msgspec.structs.replace(replay, next=(), passed_over=replay.passed_over + passed_over)
        if advanced.state == "canary" and (advanced.canary_runs or not advanced.canaries):
            result = judged(advanced, await self._store.runs(advanced.canary_runs), now)
            advanced = advanced if result.state == "going" and await self._has_more_canaries(advanced, now) else result
        if advanced.is_open and (wanted := room(advanced, now)):
            batch = await self._choose_runs(advanced, wanted)
            for run in batch.runs:
                self._quotas.consume(run.tenant)
            advanced = msgspec.structs.replace(
                advanced,
                next=tuple(run.id for run in batch.runs),
                replayed=advanced.replayed + len(batch.runs),
                after=batch.after,
            )
            if advanced.state == "canary":
                canary_ids = tuple(replay_id(run) for run in batch.runs)
                advanced = msgspec.structs.replace(advanced, canary_runs=advanced.canary_runs + canary_ids)
            if not batch.runs and not batch.is_limited and (advanced.state == "going" or not advanced.canary_runs):
                advanced = msgspec.structs.replace(advanced, state="done", ended_at=now)
        if advanced != replay and await self._store.move_replay(advanced) and not advanced.is_open:
            self.log.info(
                "replay ended", replay=advanced.id, state=advanced.state, runs=advanced.replayed, why=advanced.why
            )

    async def _has_more_canaries(self, replay: Replay, now: Instant) -> bool:
        """Whether canaries remain to be chosen, because a quota held some of them back."""
        wanted = room(replay, now)
        batch = await self._choose_runs(replay, wanted) if wanted else None
        return batch is not None and (bool(batch.runs) or batch.is_limited)

    async def _choose_runs(self, replay: Replay, wanted: int) -> _ReplayBatch:
        dead = RunFilter(
            tenant=replay.tenant, dead=True, fingerprint=replay.fingerprint, task=replay.task, queue=replay.queue
        )
        chosen: list[RunView] = []
        counts: Counter[str] = Counter()
        after = replay.after
        while len(chosen) < wanted:
            page = await self._store.list_runs(dead, after, wanted - len(chosen))
            for run in page.items:
                if replay.covers(run):
                    if counts[run.tenant] >= await self._quotas.count_left(run.tenant):
                        return _ReplayBatch(chosen, after, is_limited=True)
                    counts[run.tenant] += 1
                    chosen.append(run)
                after = run.id
            if page.after is None:
                break
            after = RunId(page.after)
        return _ReplayBatch(chosen, after)

    async def _submit_chosen(self, replay: Replay) -> int:
        """Submit the chosen runs, skipping those that exist; return how many could not be submitted."""
        passed_over = 0
        for start in range(0, len(replay.next), _BATCH):
            ids = replay.next[start : start + _BATCH]
            runs: list[NewRun] = []
            for run in await self._store.runs(ids, payloads=True):
                try:
                    if run is None:
                        raise Invalid("run", "does not exist any more")
                    new = replayed(replay, run)
                    new.check()
                    limit = self._quotas.get_quotas(new.tenant).payload_bytes
                    if limit is not None and len(new.payload) > limit:
                        raise Invalid("payload", f"is {len(new.payload)} bytes", f"the quota is {limit}")
                    runs.append(new)
                except (Invalid, msgspec.MsgspecError) as error:
                    passed_over += 1
                    self.log.warning("dead letter not replayable", replay=replay.id, error=str(error))
            await self._jobs.submit_many(runs)
        return passed_over
