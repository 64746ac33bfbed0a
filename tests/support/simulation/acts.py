"""The behavior of handlers in a world, given by their payload, and the record of their calls."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, NoReturn

import msgspec

from mainspring.core.model.base.instant import SECOND, Micros
from mainspring.core.model.runs.run import HeldRun
from tests.support.simulation.history import HandlerCall, History
from tests.support.simulation.loop import Process, current_process
from tests.support.simulation.store import RecordedStore


class Act(msgspec.Struct, frozen=True, omit_defaults=True):
    """A payload."""

    #: work returns; fail raises; flaky raises at first; hang runs until it is stopped; stubborn ignores a stop;
    #: kill ends its process.
    kind: Literal["work", "fail", "flaky", "hang", "stubborn", "kill"] = "work"
    takes: Micros = 0
    #: flaky: the number of attempts that fail.
    times: int = 0

    def payload(self) -> bytes:
        return msgspec.json.encode(self)


def act_of(payload: bytes) -> Act:
    return msgspec.json.decode(payload, type=Act)


class Stage:
    """Runs the acts of handlers, and records when they begin and end."""

    def __init__(self, store: RecordedStore, history: History) -> None:
        self._store = store
        self.history = history

    async def perform(self, held: HeldRun) -> bytes | None:
        with self.writing_down(held):
            await _act(act_of(held.payload), held)
        return b'"done"'

    @contextmanager
    def writing_down(self, held: HeldRun) -> Iterator[None]:
        process = current_process.get()
        assert process is not None
        assert process.alive, "the dead do not act"
        call = self._begin(process, held)
        try:
            yield
        except asyncio.CancelledError:
            self._end(process, call, "stopped")
            raise
        except Exception:
            self._end(process, call, "raised")
            raise
        self._end(process, call, "returned")

    def _begin(self, process: Process, held: HeldRun) -> HandlerCall:
        call = HandlerCall(
            run=held.id,
            fence=held.fence,
            attempt=held.attempt,
            process=process.name if process.parent is None else process.parent.name,
            queue=held.queue,
            started=self._now(),
            order=self._store.next_order(),
        )
        self.history.calls.append(call)
        if not process.calls:
            process.when_it_dies.append(lambda: self._all_die(process))
        process.calls.append(call)
        return call

    def _end(self, process: Process, call: HandlerCall, how: Literal["returned", "raised", "stopped", "died"]) -> None:
        if call.ended is None:
            call.ended = self._now()
            call.ended_order = self._store.next_order()
            call.how = how

    def _all_die(self, process: Process) -> None:
        for call in process.calls:
            self._end(process, call, "died")

    def _now(self) -> int:
        return max(self._store.tables.now, self._store.clock.now())


async def _act(act: Act, held: HeldRun) -> None:
    match act.kind:
        case "work":
            await asyncio.sleep(act.takes / SECOND)
        case "fail":
            await asyncio.sleep(act.takes / SECOND)
            raise RuntimeError("it fails")
        case "flaky":
            await asyncio.sleep(act.takes / SECOND)
            if held.attempt - held.lost <= act.times:
                raise RuntimeError("not this time")
        case "hang":
            await _for_ever()
        case "stubborn":
            await _whatever_anybody_says(act.takes)
        case "kill":
            await asyncio.sleep(act.takes / SECOND)
            process = current_process.get()
            assert process is not None
            process.kill()
            await _for_ever()


async def _whatever_anybody_says(takes: Micros) -> None:
    loop = asyncio.get_running_loop()
    process = current_process.get()
    assert process is not None
    until = loop.time() + takes / SECOND
    while (left := until - loop.time()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            if process.dead:
                raise


async def _for_ever() -> NoReturn:
    await asyncio.get_running_loop().create_future()
    raise AssertionError("for ever is over")
