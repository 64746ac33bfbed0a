"""What an attempt tells while it runs: how far it is, that it lives, what it prints, what the next attempt should know.

User code calls this from whatever thread it runs on, as often as it likes. Nothing here waits, takes a lock (an
interrupted thread might keep it for ever) or grows without bound.
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
from mainspring.core.model.runs.usage import MOST_UNITS, Spent
from mainspring.core.ports.storage.catalog import MOST_LOG_BYTES
from mainspring.core.runtime import log_lines
from mainspring.core.runtime.log import get_logger
from mainspring.core.runtime.masking import masks

#: So much waits to be taken, of one attempt. What comes faster is dropped and counted.
_MOST_WAITING = 256 * 1024
_MOST_LINES = 2_000
#: More than the store keeps, so that it has said so; whatever follows goes nowhere.
_MOST_EVER = MOST_LOG_BYTES + _MOST_WAITING
_LONGEST_LINE = 64 * 1024
#: The longest piece of a log.
_PIECE = 16 * 1024

_output = get_logger("mainspring.output")

Owner = TypeVar("Owner")
Listened = TypeVar("Listened")


class Told(msgspec.Struct, frozen=True, tag="told"):
    """What an attempt has told since somebody last asked."""

    progress: tuple[float, float | None, str] | None = None
    #: Pieces of the log.
    log: list[str] = []
    #: JSON.
    state: bytes | None = None


class _Boxes:
    """Where it lies until it is taken: only the newest progress and state, of lines so many."""

    def __init__(self) -> None:
        self.progress: deque[tuple[float, float | None, str]] = deque(maxlen=1)
        self.state: deque[bytes] = deque(maxlen=1)
        self.lines: deque[str] = deque()
        #: The line that ``print`` has begun.
        self.begun = ""
        self.size = 0
        self.total = 0
        self.dropped = 0


class Ear(Protocol[Listened]):
    """Who takes what attempts tell."""

    #: What handlers print and log is for it, too.
    captures: bool

    def wake(self, telling: "Telling[Listened]") -> None:
        """Something lies there. Called on the attempt's thread."""
        ...

    async def heard(self, telling: "Telling[Listened]") -> None:
        """Returns when all of it has arrived."""
        ...


class Telling(Generic[Owner]):
    """One attempt's. Most attempts never tell anything: making one must cost next to nothing."""

    #: Why it was told to stop.
    stop: str | None = None
    #: The attempt, where the owner does not know it.
    held: HeldRun | None = None
    #: It has shown life since somebody last looked.
    alive = False
    #: Something lies here, and who takes it knows.
    waiting = False
    #: Something that was taken has not reached the store yet.
    unheard = False
    #: It has told something.
    ever = False
    #: It has cost something that somebody can tell.
    costs = False
    _over = False
    #: What it has spent, by thread: two that add to one sum would lose some of it.
    _spent: dict[int, dict[str, float]] | None = None
    _cpu: Micros | None = None

    def __init__(self, owner: Owner, ear: "Ear[Owner]", *, shows_life: bool = False, tenant: str = "") -> None:
        """If it ``shows_life``, the ear is woken for a sign of life, too. Secrets of the ``tenant`` are not told."""
        self.owner = owner
        self.ear = ear
        self.tenant = tenant
        self._shows_life = shows_life

    def spend(self, unit: str, amount: float) -> None:
        """Told when the attempt ends."""
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

    def was_spent(self, spent: Spent) -> None:
        """In another process."""
        if spent.cpu is not None:
            self.used_cpu(spent.cpu)
        for unit, amount in spent.units.items():
            self.spend(unit, amount)

    def spent(self) -> Spent:
        """What it cost beyond its time."""
        units: dict[str, float] = {}
        for mine in list((self._spent or {}).values()):
            for unit, amount in mine.items():
                units[unit] = units.get(unit, 0.0) + amount
        return Spent(cpu=self._cpu, units=dict(sorted(units.items())[:MOST_UNITS]))

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
        """A line, or several."""
        boxes = self._boxes()
        if masks.any:
            # Before it is cut: half a secret is not found.
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
        """As a file is written to: a line ends where it ends."""
        boxes = self._boxes()
        *lines, begun = (boxes.begun + text).split("\n")
        if masks.any and len(begun) > _LONGEST_LINE:
            begun = masks.text(self.tenant, begun)
        boxes.begun = begun[:_LONGEST_LINE]
        if lines:
            self.print("\n".join(lines))

    def print(self, text: str) -> None:
        """Lines that the task has printed: for the run's log, and for the log of the process if it shows output."""
        if self.ear.captures:
            self.log(text)
        if log_lines.shows_output():
            found = _describe_attempt(self)
            for line in text.split("\n"):
                _output.info(line, **found)

    def tell(self, told: Told) -> None:
        """What was told elsewhere."""
        self.alive = True
        if told.progress is not None:
            self.progress(*told.progress)
        if told.state is not None:
            self.checkpoint(told.state)
        for piece in told.log:
            self.log(piece)

    def take(self) -> Told:
        self.waiting = False
        if not self.ever:
            return Told()
        boxes = self._boxes()
        lines = []
        while boxes.lines:
            lines.append(boxes.lines.popleft())
        boxes.size = 0
        if boxes.dropped:
            dropped, boxes.dropped = boxes.dropped, 0
            lines.append(f"… {dropped} lines dropped here: they came faster than they could be kept")
        return Told(
            boxes.progress.popleft() if boxes.progress else None,
            _pieces(lines),
            boxes.state.popleft() if boxes.state else None,
        )

    def close(self) -> bool:
        """Nothing that comes later counts; whether anything is still on its way to the store."""
        if self.ever:
            self._end_line()
        self._over = True
        return self.waiting or self.unheard

    async def heard(self) -> None:
        """Returns when everything that was told has arrived: for who settles the run by other means."""
        if self.ever:
            self._end_line()
            if self.waiting or self.unheard:
                await self.ear.heard(self)

    def _end_line(self) -> None:
        boxes = self._boxes()
        if boxes.begun:
            self.print(boxes.begun)
            boxes.begun = ""

    def _boxes(self) -> _Boxes:
        found: _Boxes | None = self.__dict__.get("_made")
        if found is None:
            # One step, so that two threads get the same.
            found = self.__dict__.setdefault("_made", _Boxes())
            self.ever = True
        return found

    def _lies_here(self) -> None:
        if not self.waiting and not self._over:
            self.waiting = True
            self.ear.wake(self)


def _pieces(lines: list[str]) -> list[str]:
    """Lines put together, as few pieces as can be."""
    pieces = []
    text = "\n".join(lines).encode("utf-8", "replace").decode().replace("\x00", "�")
    while len(text) > _PIECE:
        end = text.rfind("\n", 0, _PIECE) + 1 or _PIECE
        pieces.append(text[:end].removesuffix("\n"))
        text = text[end:]
    return [*pieces, text] if lines else pieces


#: The attempt whose code this is.
current: ContextVar["Telling[Any] | None"] = ContextVar("mainspring attempt", default=None)


def _attempt_here() -> dict[str, Any]:
    """What a line of the log that is written here belongs to."""
    telling = current.get()
    return {} if telling is None else _describe_attempt(telling)


def _describe_attempt(telling: Telling[Any]) -> dict[str, Any]:
    held: HeldRun | None = telling.held or getattr(telling.owner, "held", None)
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
    # Also where nobody records spans here.
    return found | {"trace": f"{ids_in(held.policy.trace)[0]:032x}"} if held.policy.trace else found


log_lines.surroundings.append(_attempt_here)
