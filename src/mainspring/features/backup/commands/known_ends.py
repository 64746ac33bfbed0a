"""Reads files of runs that have ended: plain ids, events as sinks receive them, or runs as ``--json`` prints them."""

import sys
from pathlib import Path

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import RunId, check_id
from mainspring.core.model.events.events import ENDS
from mainspring.core.model.runs.names import clean_error
from mainspring.core.model.runs.restored import KnownOutcome
from mainspring.core.model.runs.run import ENDED, RunState

#: Reason of a run whose end was reported by such a file.
_REASON = "ended before the restore"
_STATES_BY_TYPE = {
    kind: RunState.FAILED if kind == "run.dead" else RunState(kind.removeprefix("run.")) for kind in ENDS
}
_STATES_BY_STATUS = {state.value: state for state in ENDED}


class _EventData(msgspec.Struct, frozen=True, rename="camel"):
    run_id: str = ""
    reason: str = ""
    error: str | None = None


class _Line(msgspec.Struct, rename="camel"):
    """A run or an event. The ``id`` of an event is not that of its run."""

    id: str = ""
    run_id: str = ""
    #: Fields of an event.
    type: str = ""
    data: _EventData = _EventData()
    #: Fields of a run.
    status: str = "succeeded"
    reason: str = ""
    error_message: str | None = None
    result: msgspec.Raw = msgspec.Raw(b"null")


def read_known_ends(file: Path) -> tuple[list[KnownOutcome], int]:
    """Read how runs ended, the last line per run, and count the lines that report no end. ``-`` is stdin."""
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid("FILE", f"{file} cannot be read: {error}") from None
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    found = [_parse_line(line, number) for number, line in lines]
    ends = {end.run: end for end in found if end is not None}
    return list(ends.values()), found.count(None)


def _parse_line(line: str, number: int) -> KnownOutcome | None:
    """Parse a line; None if it reports no end."""
    if not line.startswith("{"):
        return KnownOutcome(run=_parse_run_id(line, number), reason=_REASON)
    try:
        found = msgspec.json.decode(line, type=_Line)
    except msgspec.MsgspecError as error:
        raise Invalid("FILE", f"line {number}: {error}") from None
    state = _STATES_BY_TYPE.get(found.type) if found.type else _STATES_BY_STATUS.get(found.status)
    if state is None:
        return None
    error_text = found.data.error or found.error_message
    end = KnownOutcome(
        run=_parse_run_id(found.data.run_id or found.run_id or found.id, number),
        state=state,
        reason=clean_error(found.data.reason or found.reason) or _REASON,
        result=bytes(found.result) if state is RunState.SUCCEEDED and bytes(found.result) != b"null" else None,
        error=None if error_text is None else clean_error(error_text),
    )
    try:
        end.check()
    except Invalid as error:
        raise Invalid("FILE", f"line {number}: {error}") from None
    return end


def _parse_run_id(word: str, number: int) -> RunId:
    try:
        check_id("id", word)
    except Invalid:
        raise Invalid("FILE", f"line {number}: {word[:40]!r} is not the id of a run") from None
    return RunId(word)
