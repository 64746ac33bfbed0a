"""Dead letters that are replayed: some canaries first, and when they have succeeded the rest, at a pace.

    canary ─▶ going ─▶ done
       │        │
       └────────┴────▶ stopped     (a canary failed, or somebody said so)

A replay is stored, so that it survives whoever drives it. What is to be made next is written down before it is made,
and the id of a replayed run follows from the old one: whoever goes on makes nothing twice.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from mainspring.core.model.base.ids import RunId, derived_id, shard_of
from mainspring.core.model.base.instant import SECOND, Instant
from mainspring.core.model.base.merge_patch import patched
from mainspring.core.model.runs.new_run import JobRef, NewRun
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import RunView

MOST_CANARIES = 1_000
#: So many are made in one step.
AT_ONCE = 500


class Replay(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    author: str
    #: Which dead letters, of those that failed before it was made.
    tenant: str | None
    fingerprint: str = ""
    task: str = ""
    queue: str = ""
    #: Only these queues, whatever else; none: all.
    queues: tuple[str, ...] = ()
    failed_after: Instant | None = None
    failed_before: Instant | None = None
    #: What to change of every payload; none: nothing.
    patch: bytes | None = None
    per_second: float | None = None
    canaries: int = 0
    #: How many there were when it was made, where that was counted.
    matched: int | None = None
    state: Literal["canary", "going", "done", "stopped"] = "canary"
    #: Why it was stopped.
    why: str = ""
    made_at: Instant = 0
    ended_at: Instant | None = None
    #: Since when the rest goes.
    going_since: Instant | None = None
    canary_runs: tuple[RunId, ...] = ()
    #: Dead letters to be replayed next, and the place in the list after them.
    next: tuple[RunId, ...] = ()
    after: RunId | None = None
    replayed: int = 0
    #: Those that could not be: their payload, with its changes, is none.
    passed_over: int = 0
    #: Grows with every change.
    rev: int = 0

    @property
    def is_open(self) -> bool:
        return self.state in ("canary", "going")

    def covers(self, run: RunView) -> bool:
        """Whether a dead letter that a list has found is one of those that are meant."""
        failed = run.finished_at or 0
        return (
            failed < self.made_at
            and (self.failed_after is None or failed > self.failed_after)
            and (self.failed_before is None or failed < self.failed_before)
            and (not self.queues or run.queue in self.queues)
        )


def room(replay: Replay, now: Instant) -> int:
    """How many more may be chosen now."""
    if replay.state == "canary":
        return max(replay.canaries - replay.replayed, 0)
    if replay.per_second is None:
        return AT_ONCE
    gone = now - (replay.going_since or now)
    made = replay.replayed - len(replay.canary_runs)
    return max(0, min(int(gone * replay.per_second / SECOND) + 1 - made, AT_ONCE))


def judged(replay: Replay, canaries: Sequence[RunView | None], now: Instant) -> Replay:
    """What the canaries say. They are all there are if ``canaries`` were asked for and fewer died."""
    for run_id, run in zip(replay.canary_runs, canaries, strict=True):
        if run is None or (run.state.ended and run.state is not RunState.SUCCEEDED):
            how = "is gone" if run is None else f"{run.state.value} ({run.reason})"
            return stopped(replay, f"canary {run_id} {how}", now)
    if all(run is not None and run.state is RunState.SUCCEEDED for run in canaries):
        return msgspec.structs.replace(replay, state="going", going_since=now)
    return replay


def stopped(replay: Replay, why: str, now: Instant) -> Replay:
    """What is chosen and not made yet stays where it is."""
    return msgspec.structs.replace(
        replay, state="stopped", why=why, ended_at=now, next=(), replayed=replay.replayed - len(replay.next)
    )


def replay_id(run: RunView, number: int = 0) -> RunId:
    """The same for every replay of a run under this number, on whichever node."""
    return RunId(derived_id(run.finished_at or run.created_at, shard_of(run.id), run.id, "replay", number))


def again(run: RunView, payload: bytes | None, author: str, run_id: RunId) -> NewRun:
    """The same once more, as a run that names the old one. The trace of that one is over."""
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
    """With its payload."""
    payload = run.payload if replay.patch is None else patched(run.payload or b"null", replay.patch)
    return again(run, payload, replay.author, replay_id(run))
