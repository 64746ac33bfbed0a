"""Decodes what lists, charts and details show, by the names of the fields."""

import msgspec

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.limits.limits import LimiterState
from mainspring.core.model.runs.view import AttemptView
from mainspring.core.ports.storage.catalog import (
    DeadGroup,
    Load,
    LogLine,
    Minute,
    Pause,
    SessionView,
    Standings,
    Timings,
)
from mainspring.core.ports.storage.datacenters import DatacenterLoad, DatacenterStatus
from mainspring.core.ports.storage.reads import QueueBacklog
from mainspring.stores.depths import DepthRow, fold_depths


class LimiterDetails(msgspec.Struct, frozen=True):
    """A limiter and the first runs that occupy it."""

    state: LimiterState
    occupants: list[RunId]


class LogSize(msgspec.Struct, frozen=True):
    """The size of a run's log, and the daily quota of its tenant."""

    run: RunId
    pieces: int
    bytes: int
    is_cut: bool
    tenant: str
    bytes_per_day: int | None
    bytes_today: int


class _TimingRow(msgspec.Struct, frozen=True):
    bucket: int
    late: int
    took: int


class _RunLog(msgspec.Struct, frozen=True):
    run: RunId
    lines: list[LogLine]


class _DueMinute(msgspec.Struct, frozen=True):
    minute: Instant
    runs: int


decode_attempts = msgspec.json.Decoder(list[AttemptView]).decode
decode_sessions = msgspec.json.Decoder(list[SessionView]).decode
decode_pauses = msgspec.json.Decoder(list[Pause]).decode
decode_minutes = msgspec.json.Decoder(list[Minute]).decode
decode_loads = msgspec.json.Decoder(list[Load]).decode
decode_log_lines = msgspec.json.Decoder(list[LogLine]).decode
decode_dead_groups = msgspec.json.Decoder(list[DeadGroup]).decode
decode_standings = msgspec.json.Decoder(Standings).decode
decode_limiter = msgspec.json.Decoder(LimiterDetails).decode
decode_datacenters = msgspec.json.Decoder(list[DatacenterStatus]).decode
decode_datacenter_loads = msgspec.json.Decoder(list[DatacenterLoad]).decode
decode_log_sizes = msgspec.json.Decoder(list[LogSize]).decode

_depth_rows = msgspec.json.Decoder(list[DepthRow])
_timing_rows = msgspec.json.Decoder(list[_TimingRow])
_run_logs = msgspec.json.Decoder(list[_RunLog])
_due_minutes = msgspec.json.Decoder(list[_DueMinute])


def decode_depths(text: str) -> list[QueueBacklog]:
    return fold_depths(_depth_rows.decode(text))


def decode_timings(text: str) -> Timings:
    rows = _timing_rows.decode(text)
    return Timings(
        {row.bucket: row.late for row in rows if row.late}, {row.bucket: row.took for row in rows if row.took}
    )


def decode_logs(text: str) -> dict[RunId, list[LogLine]]:
    return {log.run: log.lines for log in _run_logs.decode(text)}


def decode_due_minutes(text: str) -> list[tuple[Instant, int]]:
    return [(row.minute, row.runs) for row in _due_minutes.decode(text)]
