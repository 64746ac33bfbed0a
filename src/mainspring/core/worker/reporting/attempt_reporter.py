"""Reports of a running attempt: progress, signs of life, output, and the checkpoint for the next attempt.

User code calls this from any thread, as often as it likes. Nothing here waits, takes a lock (an interrupted thread
might hold it forever) or grows without bound.
"""

import threading
from collections import deque
from contextvars import ContextVar
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import Micros
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.model.runs.traces import ids_in
from mainspring.core.model.runs.usage import MOST_UNITS, AttemptCost
from mainspring.core.ports.storage.catalog import MOST_LOG_BYTES
from mainspring.core.runtime import log_lines
from mainspring.core.runtime.log import get_logger
from mainspring.core.runtime.masking import masks

#: The largest amount of unsent output of one attempt. Output that arrives faster is dropped and counted.
_MOST_WAITING = 256 * 1024
_MOST_LINES = 2_000
#: More than the store keeps, so that the store records the cut; any later output is discarded.
_MOST_EVER = MOST_LOG_BYTES + _MOST_WAITING
_LONGEST_LINE = 64 * 1024
#: The longest piece of a log.
_PIECE = 16 * 1024

_output = get_logger("mainspring.output")

Owner = TypeVar("Owner")
Listened = TypeVar("Listened")


class ReportBatch(msgspec.Struct, frozen=True, tag="report-batch"):
    """What an attempt has reported since the last take."""

    progress: tuple[float, float | None, str] | None = None
    #: Pieces of the log.
    log: list[str] = []
    #: JSON.
    state: bytes | None = None


class _Boxes:
    """Holds reports until they are taken: only the newest progress and state, and a limited number of lines."""

    def __init__(self) -> None:
        self.progress: deque[tuple[float, float | None, str]] = deque(maxlen=1)
        self.state: deque[bytes] = deque(maxlen=1)
        self.lines: deque[str] = deque()
        #: The unfinished line that ``print`` has begun.
        self.begun = ""
        self.size = 0
        self.total = 0
        self.dropped = 0


class ReportListener(Protocol[Listened]):
    """Receives the reports of attempts."""

    #: The receiver also wants what handlers print and log.
    captures: bool

    def wake(self, reporter: "AttemptReporter[Listened]") -> None:
        """Notify that reports are waiting. Called on the attempt's thread."""
        ...

    async def flush(self, reporter: "AttemptReporter[Listened]") -> None:
        """Return when all reports of the attempt have arrived."""
        ...


class AttemptReporter(Generic[Owner]):
    """The reports of one attempt.

    Most attempts never report anything, so creating this object must cost next to nothing.
    """

    #: Why the attempt was asked to stop.
    stop: str | None = None
    #: The attempt, for owners that do not carry it.
    held: HeldRun | None = None
    #: The attempt has sent a sign of life since the last check.
    alive = False
    #: Reports are waiting here, and the receiver was notified.
    waiting = False
    #: Reports were taken but have not reached the store yet.
    undelivered = False
    #: The attempt has reported something.
    ever = False
    #: The attempt has recorded costs.
    costs = False
    _over = False
    #: Spent amounts by thread: two threads that add to one sum would lose updates.
    _spent: dict[int, dict[str, float]] | None = None
    _cpu: Micros | None = None

    def __init__(
        self, owner: Owner, listener: "ReportListener[Owner]", *, shows_life: bool = False, tenant: str = ""
    ) -> None:
        """With ``shows_life``, signs of life notify the receiver, too.

        Secrets of the ``tenant`` are masked in all reports.
        """
        self.owner = owner
        self.listener = listener
        self.tenant = tenant
        self._shows_life = shows_life

    def spend(self, unit: str, amount: float) -> None:
        """Add to the attempt's cost in a unit. Reported when the attempt ends."""
        by_thread = self._spent
        if by_thread is None:
            self.costs = True
            by_thread = self._spent = self.__dict__.setdefault("_spent", {})
        mine = by_thread.setdefault(threading.get_ident(), {})
        if unit not in mine and len(mine) >= MOST_UNITS:
            raise Invalid("unit", f"{unit!r} is one kind too many for an attempt", f"at most {MOST_UNITS}")
        mine[unit] = mine.get(unit, 0.0) + amount

    def used_cpu(self, cpu: Micros) -> None:
        self.costs = True
        self._cpu = cpu

    def was_spent(self, spent: AttemptCost) -> None:
        """Add the cost that was recorded in another process."""
        if spent.cpu is not None:
            self.used_cpu(spent.cpu)
        for unit, amount in spent.units.items():
            self.spend(unit, amount)

    def spent(self) -> AttemptCost:
        """Return the cost of the attempt beyond its duration."""
        units: dict[str, float] = {}
        for mine in list((self._spent or {}).values()):
            for unit, amount in mine.items():
                units[unit] = units.get(unit, 0.0) + amount
        return AttemptCost(cpu=self._cpu, units=dict(sorted(units.items())[:MOST_UNITS]))

    def heartbeat(self) -> None:
        self.alive = True
        if self._shows_life:
            self._lies_here()

    def progress(self, done: float, total: float | None, note: str) -> None:
        self.alive = True
        if masks.any:
            note = masks.text(self.tenant, note)
        self._boxes().progress.append((done, total, note))
        self._lies_here()

    def checkpoint(self, state: bytes) -> None:
        self.alive = True
        if masks.any:
            state = masks.json(self.tenant, state)
        self._boxes().state.append(state)
        self._lies_here()

    def log(self, text: str) -> None:
        """Add one or more lines to the log."""
        boxes = self._boxes()
        if masks.any:
            # Mask before cutting: half a secret would not be found.
            text = masks.text(self.tenant, text)
        if len(text) > _LONGEST_LINE:
            text = text[:_LONGEST_LINE] + " … (cut)"
        boxes.total += len(text) + 1
        if boxes.total > _MOST_EVER:
            return
        if boxes.size + len(text) > _MOST_WAITING or len(boxes.lines) >= _MOST_LINES:
            boxes.dropped += 1
            boxes.total -= len(text) + 1
        else:
            boxes.size += len(text) + 1
            boxes.lines.append(text)
        self._lies_here()

    def write(self, text: str) -> None:
        """Write like a file: lines end only at newlines."""
        boxes = self._boxes()
        *lines, begun = (boxes.begun + text).split("\n")
        if masks.any and len(begun) > _LONGEST_LINE:
            begun = masks.text(self.tenant, begun)
        boxes.begun = begun[:_LONGEST_LINE]
        if lines:
            self.print("\n".join(lines))

    def print(self, text: str) -> None:
        """Add lines printed by the task to the run's log, and to the process log if output is shown there."""
        if self.listener.captures:
            self.log(text)
        if log_lines.shows_output():
            found = _describe_attempt(self)
            for line in text.split("\n"):
                _output.info(line, **found)

    def add_batch(self, batch: ReportBatch) -> None:
        """Add reports that were made in another process."""
        self.alive = True
        if batch.progress is not None:
            self.progress(*batch.progress)
        if batch.state is not None:
            self.checkpoint(batch.state)
        for piece in batch.log:
            self.log(piece)

    def take(self) -> ReportBatch:
        self.waiting = False
        if not self.ever:
            return ReportBatch()
        boxes = self._boxes()
        lines = []
        while boxes.lines:
            lines.append(boxes.lines.popleft())
        boxes.size = 0
        if boxes.dropped:
            dropped, boxes.dropped = boxes.dropped, 0
            lines.append(f"… {dropped} lines dropped here: they came faster than they could be kept")
        return ReportBatch(
            boxes.progress.popleft() if boxes.progress else None,
            _pieces(lines),
            boxes.state.popleft() if boxes.state else None,
        )

    def close(self) -> bool:
        """Ignore later reports; returns whether any are still on their way to the store."""
        if self.ever:
            self._end_line()
        self._over = True
        return self.waiting or self.undelivered

    async def flush(self) -> None:
        """Return when all reports have arrived. For code that completes the run by other means."""
        if self.ever:
            self._end_line()
            if self.waiting or self.undelivered:
                await self.listener.flush(self)

    def _end_line(self) -> None:
        boxes = self._boxes()
        if boxes.begun:
            self.print(boxes.begun)
            boxes.begun = ""

    def _boxes(self) -> _Boxes:
        found: _Boxes | None = self.__dict__.get("_made")
        if found is None:
            # A single atomic step, so that two threads get the same object.
            found = self.__dict__.setdefault("_made", _Boxes())
            self.ever = True
        return found

    def _lies_here(self) -> None:
        if not self.waiting and not self._over:
            self.waiting = True
            self.listener.wake(self)


def _pieces(lines: list[str]) -> list[str]:
    """Join lines into as few pieces as possible."""
    pieces = []
    text = "\n".join(lines).encode("utf-8", "replace").decode().replace("\x00", "�")
    while len(text) > _PIECE:
        end = text.rfind("\n", 0, _PIECE) + 1 or _PIECE
        pieces.append(text[:end].removesuffix("\n"))
        text = text[end:]
    return [*pieces, text] if lines else pieces


#: The attempt that the current code belongs to.
current: ContextVar["AttemptReporter[Any] | None"] = ContextVar("mainspring attempt", default=None)


def _attempt_here() -> dict[str, Any]:
    """Return the log fields that describe the current attempt."""
    reporter = current.get()
    return {} if reporter is None else _describe_attempt(reporter)


def _describe_attempt(reporter: AttemptReporter[Any]) -> dict[str, Any]:
    held: HeldRun | None = reporter.held or getattr(reporter.owner, "held", None)
    if held is None:
        return {}
    found: dict[str, Any] = {
        "inside": True,
        "run": held.id,
        "job": held.job_id,
        "attempt": held.attempt,
        "tenant": held.tenant,
        "task": held.task,
        "queue": held.queue,
    }
    # Include the trace id even where no spans are recorded.
    return found | {"trace": f"{ids_in(held.policy.trace)[0]:032x}"} if held.policy.trace else found


log_lines.surroundings.append(_attempt_here)
