"""W3C Trace Context: the trace of a run and the ids of its spans.

The ``traceparent`` of a run is part of its policy. The span id of an attempt derives from the run's id and the
attempt's number, so the worker, a child process and the next attempt can all compute it.
"""

import hashlib
import re
from collections.abc import Callable
from math import log1p

import msgspec

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.model.runs.view import RunView

#: Version, trace, span and flags; later versions may append more.
_read = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?").fullmatch
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16
#: The number of values of the pseudo-random bits in the run id of a tick.
_CHANCE = 1 << 48


def read_traceparent(text: str) -> str:
    """Return a caller's ``traceparent`` in stored form; empty if it is invalid or not sampled."""
    found = _read(text.strip())
    if found is None:
        return ""
    version, trace, span, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or trace == _NO_TRACE or span == _NO_SPAN:
        return ""
    return traceparent(int(trace, 16), int(span, 16)) if int(flags, 16) & 1 else ""


def traceparent(trace: int, span: int) -> str:
    """Format the ``traceparent`` of a sampled span."""
    return f"00-{trace:032x}-{span:016x}-01"


def ids_in(text: str) -> tuple[int, int]:
    """Return the trace id and the span id of a stored ``traceparent``."""
    return int(text[3:35], 16), int(text[36:52], 16)


def traced(policy: RunPolicy, text: str) -> RunPolicy:
    return msgspec.structs.replace(policy, trace=text)


def span_of_attempt(run: RunId, attempt: int, given_back: int | None = None) -> int:
    """Return the span id of an attempt. Attempt 0 is the root span of a tick's run.

    ``given_back`` is the fence of a released attempt: the next attempt has the same number but needs another span id.
    """
    name = f"{run}/{attempt}" if given_back is None else f"{run}/{attempt}/{given_back}"
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") or 1


def chosen(count: int, ratio: float, random: Callable[[], float]) -> list[int]:
    """Select which of ``count`` items are sampled, each with probability ``ratio``.

    It draws the distance to the next sampled item, so items that are not sampled cost nothing. ``random`` returns
    values from 0 to 1, excluding 1.
    """
    if not 0 < ratio < 1:
        return list(range(count)) if ratio >= 1 else []
    found: list[int] = []
    scale = 1 / log1p(-ratio)
    number = -1
    while (number := number + 1 + int(min(log1p(-random()) * scale, count))) < count:
        found.append(number)
    return found


def chosen_tick(run: RunId, ratio: float) -> bool:
    """Return whether a tick's run is sampled. It has no caller to decide, so all nodes derive it from the run's id."""
    return int(run[20:], 16) < ratio * _CHANCE


def build_trace(run: HeldRun | RunView, ratio: float = 0) -> tuple[int, int] | None:
    """Return the trace id of a run and the parent span of its attempts; None: not sampled.

    ``ratio`` is the fraction of ticks that are sampled.
    """
    if run.policy.trace:
        return ids_in(run.policy.trace)
    if ratio and run.job_id is not None and run.scheduled_at is not None and chosen_tick(run.id, ratio):
        return int(run.id, 16), span_of_attempt(run.id, 0)
    return None
