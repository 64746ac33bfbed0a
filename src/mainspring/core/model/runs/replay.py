"""Replays of dead letters: first some canaries, then, after all of them succeeded, the rest at a limited rate.

    canary ─▶ going ─▶ done
       │        │
       └────────┴────▶ stopped     (a canary failed, or a user stopped it)

A replay is stored, so it survives the process that drives it. The next runs are stored before they are created, and the
id of a replayed run derives from the id of the original run. A process that takes over therefore creates no run twice.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from mainspring.core.model.base.ids import RunId, decode_shard, derived_id
from mainspring.core.model.base.instant import SECOND, Instant
from mainspring.core.model.base.merge_patch import patched
from mainspring.core.model.runs.new_run import JobRef, NewRun
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import RunView

MOST_CANARIES = 1_000
#: The maximum number of runs created per step.
AT_ONCE = 500


class Replay(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    author: str
    #: The filter for dead letters. Only runs that failed before the replay was created match.
    tenant: str | None
    fingerprint: str = ""
    task: str = ""
    queue: str = ""
    #: Restricts the replay to these queues in addition to the filter; empty: all queues.
    queues: tuple[str, ...] = ()
    failed_after: Instant | None = None
    failed_before: Instant | None = None
    #: A patch applied to every payload; None: payloads stay unchanged.
    patch: bytes | None = None
    per_second: float | None = None
    canaries: int = 0
    #: The number of matching dead letters at creation, if counted.
    matched: int | None = None
    state: Literal["canary", "going", "done", "stopped"] = "canary"
    #: Why the replay was stopped.
    why: str = ""
    made_at: Instant = 0
    ended_at: Instant | None = None
    #: When the replay of the rest began.
    going_since: Instant | None = None
    canary_runs: tuple[RunId, ...] = ()
    #: The dead letters to replay next, and the cursor behind them in the list.
    next: tuple[RunId, ...] = ()
    after: RunId | None = None
    replayed: int = 0
    #: The number of dead letters skipped because their patched payload is invalid.
    passed_over: int = 0
    #: Incremented by every change.
    rev: int = 0

    @property
    def is_open(self) -> bool:
        return self.state in ("canary", "going")

    def covers(self, run: RunView) -> bool:
        """Return whether a dead letter from a listing belongs to this replay."""
        failed = run.finished_at or 0
        return (
            failed < self.made_at
            and (self.failed_after is None or failed > self.failed_after)
            and (self.failed_before is None or failed < self.failed_before)
            and (not self.queues or run.queue in self.queues)
        )


def room(replay: Replay, now: Instant) -> int:
    """Return how many more dead letters may be selected now."""
    if replay.state == "canary":
        return max(replay.canaries - replay.replayed, 0)
    if replay.per_second is None:
        return AT_ONCE
    gone = now - (replay.going_since or now)
    made = replay.replayed - len(replay.canary_runs)
    return max(0, min(int(gone * replay.per_second / SECOND) + 1 - made, AT_ONCE))


def judged(replay: Replay, canaries: Sequence[RunView | None], now: Instant) -> Replay:
    """Evaluate the canaries. If fewer dead letters than ``canaries`` exist, those that exist decide."""
    for run_id, run in zip(replay.canary_runs, canaries, strict=True):
        if run is None or (run.state.ended and run.state is not RunState.SUCCEEDED):
            how = "is gone" if run is None else f"{run.state.value} ({run.reason})"
            return stopped(replay, f"canary {run_id} {how}", now)
    if all(run is not None and run.state is RunState.SUCCEEDED for run in canaries):
        return msgspec.structs.replace(replay, state="going", going_since=now)
    return replay


def stopped(replay: Replay, why: str, now: Instant) -> Replay:
    """Stop the replay. Dead letters that were selected but not replayed yet stay dead letters."""
    return msgspec.structs.replace(
        replay, state="stopped", why=why, ended_at=now, next=(), replayed=replay.replayed - len(replay.next)
    )


def replay_id(run: RunView, number: int = 0) -> RunId:
    """Return the id of a replayed run. It is the same on every node for a run and number."""
    return RunId(derived_id(run.finished_at or run.created_at, decode_shard(run.id), run.id, "replay", number))


def again(run: RunView, payload: bytes | None, author: str, run_id: RunId) -> NewRun:
    """Build a new run that repeats an old one and refers to it. The old run's trace is not continued."""
    return NewRun(
        id=run_id,
        task=run.task,
        payload=b"null" if payload is None else payload,
        queue=run.queue,
        tenant=run.tenant,
        priority=run.priority,
        policy=msgspec.structs.replace(run.policy, trace="") if run.policy.trace else run.policy,
        replay_of=run.id,
        target=run.target,
        about=run.about,
        job=None if run.job_id is None else JobRef(id=run.job_id, version=run.job_version or 1),
        author=author,
    )


def replayed(replay: Replay, run: RunView) -> NewRun:
    """Build the run that replays a dead letter, with its payload patched if the replay has a patch."""
    payload = run.payload if replay.patch is None else patched(run.payload or b"null", replay.patch)
    return again(run, payload, replay.author, replay_id(run))
