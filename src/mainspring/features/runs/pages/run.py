"""Pages of one run: its status, its attempts and its log."""

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from mainspring.core.model.access.access import Permission
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.runs.run import ENDED
from mainspring.core.ports.blobs import BlobsUnavailable
from mainspring.features.runs.operations import LogPage, cancel_run, explain_run, get_run, retry_run, run_logs
from mainspring.http.schemas.runs import AttemptOut, LogLineOut, RunOut
from mainspring.http.schemas.status_words import WAITING
from mainspring.web.formatting import duration, instant
from mainspring.web.page import ActionReply, DownloadReply, Pages, Reply, Visit, read_json_field

run = Pages()

#: Lines in one part of the log. A piece may have several lines, and the last piece is shown in full.
_MAX_LINES = 500
_DOWNLOAD_PAGE = 1_000
#: How many dependents are counted, and how many are shown. Their own page lists all.
_MAX_RELATIVES = 100
_LISTED_RELATIVES = 20
ENDED_STATES = frozenset(state.value for state in ENDED)
_WIDTH = 1_000
#: Narrower bars would be invisible.
_MIN_BAR_WIDTH = 3.0


class LogQuery(msgspec.Struct, frozen=True):
    after: int = 0
    #: Show the lines before this position instead.
    before: int = 0


class LogPart(NamedTuple):
    """Some lines of a log, in order."""

    run_id: str
    pieces: list[LogLineOut]
    #: Whether there are earlier lines. ``None`` if the page already shows those.
    earlier: bool | None
    #: The position to continue from. ``None`` if no lines follow.
    after: int | None
    #: Whether more lines can be read at once.
    has_more: bool = False
    #: Whether a person asked for these lines.
    requested: bool = False


class Bar(NamedTuple):
    """A period of a run's timeline, which is 1,000 units wide."""

    x: float
    width: float
    kind: str
    words: str


@run.page("GET", "/runs/{id}", permission=Permission.READ)
async def show_run(visit: Visit[Any]) -> Reply:
    found: RunOut = await visit.ask(get_run, path=visit.path)
    explanation, log, children, parents = await asyncio.gather(
        visit.ask(explain_run, path=visit.path),
        _read_last_lines(visit),
        visit.ask("run_children", path=visit.path, query={"limit": _MAX_RELATIVES}),
        visit.ask("run_parents", path=visit.path),
    )
    ended = found.status in ENDED_STATES
    return visit.show(
        "runs/detail.html",
        run=found,
        name=found.name or found.task,
        ended=ended,
        waits=found.status in WAITING,
        retried=was_retried(found),
        begin=get_begin(found),
        attempts=list_attempts(found),
        bars=build_timeline(found, visit.now),
        explanation=explanation,
        log=log,
        parents=parents.items,
        children=children.items,
        shown=_LISTED_RELATIVES,
        more_children=children.next_cursor is not None,
        recurring=found.job_id != found.run_id,
        editable=found.job_id == found.run_id and found.status in WAITING and not found.attempt_number,
    )


async def _read_last_lines(visit: Visit[Any]) -> LogPart | None:
    """Read the end of the log. ``None`` if the blob store is unavailable: the rest of the page does not need it."""
    try:
        log: LogPage = await visit.ask(run_logs, path=visit.path, query={"last": "true", "limit": _MAX_LINES + 1})
    except BlobsUnavailable:
        return None
    shown = _limit_lines(log.items[::-1])[::-1]
    return LogPart(log.run_id, shown, len(shown) < len(log.items), None if log.ended else log.next_after)


@run.page("GET", "/runs/{id}/log", permission=Permission.READ, query=LogQuery)
async def more_log(visit: Visit[LogQuery]) -> Reply:
    """Render the lines after a position, with the request for later ones; or the lines before a position."""
    query: dict[str, object] = {"after": visit.query.after, "limit": _MAX_LINES + 1}
    if visit.query.before:
        query |= {"last": "true", "before": visit.query.before}
    log: LogPage = await visit.ask(run_logs, path=visit.path, query=query)
    if visit.query.before:
        shown = _limit_lines(log.items[::-1])[::-1]
        part = LogPart(log.run_id, shown, len(shown) < len(log.items), None, requested=True)
    else:
        shown = _limit_lines(log.items)
        cut = len(shown) < len(log.items)
        after = shown[-1].position if shown else log.next_after
        part = LogPart(log.run_id, shown, None, None if log.ended and not cut else after, has_more=cut)
    return visit.show("runs/log_lines.html", log=part)


def _limit_lines(pieces: Sequence[LogLineOut]) -> list[LogLineOut]:
    """Return the first pieces, up to the limit of lines."""
    found: list[LogLineOut] = []
    lines = 0
    for piece in pieces[:_MAX_LINES]:
        if lines >= _MAX_LINES:
            break
        found.append(piece)
        lines += piece.text.count("\n") + 1
    return found


@run.page("GET", "/runs/{id}/log.txt", permission=Permission.READ)
async def whole_log(visit: Visit[Any]) -> Reply:
    lines: list[str] = []
    after = 0
    while True:
        log: LogPage = await visit.ask(run_logs, path=visit.path, query={"after": after, "limit": _DOWNLOAD_PAGE})
        lines += [f"{line.time} {line.text.rstrip()}" for line in log.items]
        if len(log.items) < _DOWNLOAD_PAGE:
            return DownloadReply(f"{visit.path['id']}.log", "\n".join([*lines, ""]))
        after = log.next_after


@run.page("POST", "/runs/{id}/cancel", permission=Permission.OPERATE)
async def do_cancel(visit: Visit[Any]) -> Reply:
    cancelled = await visit.ask(cancel_run, path=visit.path)
    words = "Run cancelled." if cancelled.status == "cancelled" else "Cancel requested. The run is stopping."
    return ActionReply(words=words, to=f"runs/{visit.path['id']}")


@run.page("POST", "/runs/{id}/retry", permission=Permission.OPERATE)
async def do_retry(visit: Visit[Any]) -> Reply:
    payload = read_json_field(visit.form, "payload")
    made = await visit.ask(retry_run, path=visit.path, body=None if payload is None else {"payload": payload})
    return ActionReply(words="New run created.", to=f"runs/{made.run_id}", leave=True)


def was_retried(found: RunOut) -> bool:
    """Return whether the attempt that is active or due is a retry."""
    return found.attempt_number > (0 if found.status in WAITING else 1)


def get_begin(found: RunOut) -> str:
    """Return when the run was first due, or when it was created if the due time is now that of a retry."""
    return (found.tick or found.created_at) if was_retried(found) else found.scheduled_for


def list_attempts(found: RunOut) -> list[AttemptOut]:
    """Return the attempts that did not succeed, followed by the one that did."""
    known = [] if isinstance(found.attempts, msgspec.UnsetType) else found.attempts
    if not known or found.status != "succeeded" or found.start_time is None or found.end_time is None:
        return known
    last = AttemptOut(
        attempt_number=found.attempt_number,
        outcome="success",
        start_time=found.start_time,
        end_time=found.end_time,
        reason="success",
    )
    return [*known, last]


def build_timeline(found: RunOut, now: Instant) -> list[Bar]:
    """Build the bars of waiting times, attempts and back-offs, in proportion."""
    begin = min(instant(get_begin(found)), instant(found.queued_at or found.scheduled_for))
    attempts = list_attempts(found)
    pieces: list[tuple[Instant, Instant, str, str]] = []
    at = begin
    for attempt in attempts:
        start, end = instant(attempt.start_time), instant(attempt.end_time)
        pieces.append((at, start, "waiting" if attempt is attempts[0] else "backoff", ""))
        pieces.append((start, end, f"is-{attempt.outcome}", f"attempt {attempt.attempt_number}: {attempt.outcome}"))
        at = end
    if found.status in ("running", "cancelling") and found.start_time is not None:
        start = instant(found.start_time)
        pieces.append((at, start, "backoff" if attempts else "waiting", ""))
        pieces.append((start, now, "is-running", f"attempt {found.attempt_number}: running"))
    elif found.status not in ENDED_STATES:
        pieces.append((at, max(now, at), "backoff" if attempts else "waiting", ""))
    elif not attempts and found.start_time is not None and found.end_time is not None:
        start, end = instant(found.start_time), instant(found.end_time)
        pieces += [(at, start, "waiting", ""), (start, end, f"is-{found.status}", found.status)]
    first, last = begin, max((end for _, end, _, _ in pieces), default=begin)
    total = max(last - first, 1)
    bars: list[Bar] = []
    for start, end, kind, words in pieces:
        if end < start:
            continue
        name = words or ("back-off" if kind == "backoff" else "waiting")
        x = (start - first) / total * _WIDTH
        width = max((end - start) / total * _WIDTH, _MIN_BAR_WIDTH if words else 0)
        if width:
            x = min(x, _WIDTH - width)
            bars.append(Bar(round(x, 1), round(width, 1), kind, f"{name}, {duration((end - start) / 1e6)}"))
    return bars
