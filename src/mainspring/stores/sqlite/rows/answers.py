"""Decodes the answers of procedures."""

import msgspec

from mainspring.core.model.base.ids import JobId, RunId, SessionId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.runs.completion import CompletionAnswer
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.schedules.job import JobState
from mainspring.core.ports.storage.answers import HeartbeatAnswer, StageResult
from mainspring.core.ports.storage.upkeep import UnattemptedRuns


class SubmitAnswer(msgspec.Struct, array_like=True, frozen=True):
    """The answer for a run of a basic submit that is not both new and queued."""

    index: int
    state: RunState
    new: int


class FullSubmitAnswer(msgspec.Struct, array_like=True, frozen=True):
    id: RunId
    state: RunState
    new: int
    conflict: int


class RejectedCompletion(msgspec.Struct, array_like=True, frozen=True):
    """The answer for a completion that was not accepted."""

    index: int
    answer: CompletionAnswer


class FireAnswer(msgspec.Struct, frozen=True):
    """The answer for a fire that was applied."""

    index: int
    runs: int
    queues: list[str]


class ShardEpoch(msgspec.Struct, array_like=True, frozen=True):
    shard: int
    epoch: int


class RenewalAnswer(msgspec.Struct, frozen=True):
    now: Instant
    members: tuple[SessionId, ...]
    owned: list[ShardEpoch]
    first_end: Instant | None


class StagedShard(msgspec.Struct, array_like=True, frozen=True):
    """A time at which runs of a shard are due."""

    shard: int
    due: Instant


class StoredState(msgspec.Struct, frozen=True):
    """The state of a run, for the audit."""

    id: RunId
    tenant: str
    state: RunState


class StoredJobState(msgspec.Struct, frozen=True):
    """The state of a recurring job, for the audit."""

    id: JobId
    tenant: str
    state: JobState
    resume_at: Instant | None
    rev: int


class NewState(msgspec.Struct, frozen=True):
    id: RunId
    state: RunState


class NewJobState(msgspec.Struct, frozen=True):
    id: JobId
    state: JobState


class TidyAnswer(msgspec.Struct, frozen=True):
    more: bool
    unattempted: list[UnattemptedRuns]


class SweepCandidates(msgspec.Struct, array_like=True, frozen=True):
    """Rows that may wait for nothing: the sweep procedure checks them again."""

    key_locks: list[int]
    jobs: list[JobId]
    limiters: list[int]
    parents: list[RunId]

    @property
    def found(self) -> bool:
        return bool(self.key_locks or self.jobs or self.limiters or self.parents)


decode_submit = msgspec.json.Decoder(list[SubmitAnswer]).decode
decode_full_submit = msgspec.json.Decoder(list[FullSubmitAnswer]).decode
decode_rejected = msgspec.json.Decoder(list[RejectedCompletion]).decode
decode_fired = msgspec.json.Decoder(list[FireAnswer]).decode
decode_staged = msgspec.json.Decoder(StageResult).decode
decode_heartbeat = msgspec.json.Decoder(HeartbeatAnswer).decode
decode_renewal = msgspec.json.Decoder(RenewalAnswer | None).decode
decode_tidy = msgspec.json.Decoder(TidyAnswer).decode
decode_sweep = msgspec.json.Decoder(SweepCandidates).decode
decode_stored_states = msgspec.json.Decoder(list[StoredState]).decode
decode_stored_job_states = msgspec.json.Decoder(list[StoredJobState]).decode
decode_strings = msgspec.json.Decoder(list[str]).decode
decode_ids = msgspec.json.Decoder(list[RunId]).decode

_flags = msgspec.json.Decoder(list[int])
_epochs = msgspec.json.Decoder(list[ShardEpoch])
_upcoming = msgspec.json.Decoder(list[StagedShard])
_new_states = msgspec.json.Decoder(list[NewState])
_new_job_states = msgspec.json.Decoder(list[NewJobState])
_number = msgspec.json.Decoder(int)
_number_or_none: msgspec.json.Decoder[int | None] = msgspec.json.Decoder(int | None)


def decode_flags(text: str) -> list[bool]:
    return [flag != 0 for flag in _flags.decode(text)]


def decode_epochs(text: str) -> dict[int, int]:
    return {row.shard: row.epoch for row in _epochs.decode(text)}


def decode_upcoming(text: str) -> list[tuple[int, Instant]]:
    return [(row.shard, row.due) for row in _upcoming.decode(text)]


def decode_new_states(text: str) -> dict[RunId, RunState]:
    return {row.id: row.state for row in _new_states.decode(text)}


def decode_new_job_states(text: str) -> dict[JobId, JobState]:
    return {row.id: row.state for row in _new_job_states.decode(text)}


def decode_number(text: str) -> int:
    return _number.decode(text)


def decode_number_or_none(text: str) -> int | None:
    return _number_or_none.decode(text)
