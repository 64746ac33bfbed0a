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
from mainspring.core.ports.wakeups import Wakeups
from mainspring.core.runtime.service import TickingService
from mainspring.core.store import Reading
from mainspring.core.submit.jobs import Jobs
from mainspring.features.dead_letters.quotas import QuotasLeft, QuotaStore

_WATCH_EVERY: Micros = 2 * SECOND
_STEP_EVERY: Micros = 100 * MILLISECOND
#: Payloads held in memory at once, at most 256 KiB each.
_READ_TOGETHER = 50


class DeadLetterServiceStore(DeadLetters, Reading, QuotaStore, Protocol):
    """The store methods that the service uses."""


class _Choice(msgspec.Struct, frozen=True):
    """The next dead letters, and the cursor after them. ``held``: there may be more, but a quota has no room."""

    runs: list[RunView]
    after: RunId | None
    held: bool = False


class DeadLetterService(TickingService):
    """Watches dead letters and drives replays. Any number of processes may run it.

    If two take the same step of a replay, the second one changes nothing. Runs created by a replay count against the
    quotas of their tenant, and wait while there is no room.
    """

    def __init__(self, store: DeadLetterServiceStore, jobs: Jobs, wakeups: Wakeups, clock: Clock) -> None:
        super().__init__("undertaker", clock, wakeups.listen([]))
        self._store = store
        self._jobs = jobs
        self._quotas = QuotasLeft(store, clock)
        self._watched_at: Micros = -_WATCH_EVERY

    async def tick(self) -> Micros:
        if self.clock.monotonic() - self._watched_at >= _WATCH_EVERY:
            self._watched_at = self.clock.monotonic()
            alarms = await self._store.watch_dead_letters()
            if alarms:
                self.log.warning("groups of dead letters are new, or grow quickly", groups=alarms)
        going = await self._store.open_replays()
        if going:
            await self._quotas.look()
        # Create the runs that were chosen before, so that the quota count includes them.
        passed_over = [await self._make(replay) for replay in going]
        for replay, passed in zip(going, passed_over, strict=True):
            await self._advance(replay, passed)
        return _STEP_EVERY if going else _WATCH_EVERY

    async def _advance(self, replay: Replay, passed_over: int) -> None:
        """Choose the next runs of a replay and save the choice. The runs chosen before have been created."""
        now = await self._store.now()
        moved = msgspec.structs.replace(replay, next=(), passed_over=replay.passed_over + passed_over)
        if moved.state == "canary" and (moved.canary_runs or not moved.canaries):
            said = judged(moved, await self._store.runs(moved.canary_runs), now)
            moved = moved if said.state == "going" and await self._has_more_canaries(moved, now) else said
        if moved.is_open and (wanted := room(moved, now)):
            choice = await self._choose(moved, wanted)
            for run in choice.runs:
                self._quotas.take(run.tenant)
            moved = msgspec.structs.replace(
                moved,
                next=tuple(run.id for run in choice.runs),
                replayed=moved.replayed + len(choice.runs),
                after=choice.after,
            )
            if moved.state == "canary":
                made = tuple(replay_id(run) for run in choice.runs)
                moved = msgspec.structs.replace(moved, canary_runs=moved.canary_runs + made)
            if not choice.runs and not choice.held and (moved.state == "going" or not moved.canary_runs):
                moved = msgspec.structs.replace(moved, state="done", ended_at=now)
        if moved != replay and await self._store.move_replay(moved) and not moved.is_open:
            self.log.info("a replay has ended", replay=moved.id, state=moved.state, runs=moved.replayed, why=moved.why)

    async def _has_more_canaries(self, replay: Replay, now: Instant) -> bool:
        """Whether canaries remain to be chosen, because a quota held some of them back."""
        wanted = room(replay, now)
        choice = await self._choose(replay, wanted) if wanted else None
        return choice is not None and (bool(choice.runs) or choice.held)

    async def _choose(self, replay: Replay, wanted: int) -> _Choice:
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
                    if counts[run.tenant] >= await self._quotas.left(run.tenant):
                        return _Choice(chosen, after, held=True)
                    counts[run.tenant] += 1
                    chosen.append(run)
                after = run.id
            if page.after is None:
                break
            after = RunId(page.after)
        return _Choice(chosen, after)

    async def _make(self, replay: Replay) -> int:
        """Submit the chosen runs, skipping those that exist; return how many could not be submitted."""
        passed_over = 0
        for start in range(0, len(replay.next), _READ_TOGETHER):
            ids = replay.next[start : start + _READ_TOGETHER]
            runs: list[NewRun] = []
            for run in await self._store.runs(ids, payloads=True):
                try:
                    if run is None:
                        raise Invalid("run", "is gone")
                    new = replayed(replay, run)
                    new.check()
                    most = self._quotas.of(new.tenant).payload_bytes
                    if most is not None and len(new.payload) > most:
                        raise Invalid("payload", f"is {len(new.payload)} bytes", f"the quota is {most}")
                    runs.append(new)
                except (Invalid, msgspec.MsgspecError) as error:
                    passed_over += 1
                    self.log.warning("a dead letter cannot be replayed", replay=replay.id, error=str(error))
            await self._jobs.submit_many(runs)
        return passed_over
