"""Traces, as W3C Trace Context has them: which one a run belongs to, and what its spans are called.

The ``traceparent`` of a run stands in its policy. That of an attempt follows from the run and the attempt's number, so
whoever knows these can name its span: the worker, a child process, the next attempt.
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

#: Version, trace, span, flags; later versions may say more behind these.
_read = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?").fullmatch
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16
#: Bits of an id of a tick's run that are as good as random.
_CHANCE = 1 << 48


def read_traceparent(text: str) -> str:
    """What a caller sent, as it is kept; empty if it cannot be read, or says that nobody records this."""
    found = _read(text.strip())
    if found is None:
        return ""
    version, trace, span, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or trace == _NO_TRACE or span == _NO_SPAN:
        return ""
    return traceparent(int(trace, 16), int(span, 16)) if int(flags, 16) & 1 else ""


def traceparent(trace: int, span: int) -> str:
    """Of a span that is recorded."""
    return f"00-{trace:032x}-{span:016x}-01"


def ids_in(text: str) -> tuple[int, int]:
    """Trace and span of a ``traceparent`` that is kept."""
    return int(text[3:35], 16), int(text[36:52], 16)


def traced(policy: RunPolicy, text: str) -> RunPolicy:
    return msgspec.structs.replace(policy, trace=text)


def span_of_attempt(run: RunId, attempt: int, given_back: int | None = None) -> int:
    """0: what stands before all attempts, of a tick. ``given_back``: the fence of an attempt that was released. The
    next one has its number, and must have another span."""
    name = f"{run}/{attempt}" if given_back is None else f"{run}/{attempt}/{given_back}"
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") or 1


def chosen(count: int, ratio: float, random: Callable[[], float]) -> list[int]:
    """Which of so many are recorded, each by its own chance. Asks how many are passed over until the next, which costs
    nothing for those. ``random``: from 0 up to, not including, 1."""
    if not 0 < ratio < 1:
        return list(range(count)) if ratio >= 1 else []
    found: list[int] = []
    scale = 1 / log1p(-ratio)
    number = -1
    while (number := number + 1 + int(min(log1p(-random()) * scale, count))) < count:
        found.append(number)
    return found


def chosen_tick(run: RunId, ratio: float) -> bool:
    """Nobody submits the run of a tick. Its trace has the id of the run, and everybody decides alike about it."""
    return int(run[20:], 16) < ratio * _CHANCE


def trace_of(run: HeldRun | RunView, ratio: float = 0) -> tuple[int, int] | None:
    """The trace of a run, and the span that its attempts stand under; none: nobody records it. ``ratio``: of ticks."""
    if run.policy.trace:
        return ids_in(run.policy.trace)
    if ratio and run.job_id is not None and run.scheduled_at is not None and chosen_tick(run.id, ratio):
        return int(run.id, 16), span_of_attempt(run.id, 0)
    return None
