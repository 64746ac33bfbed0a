"""Ingest service: creates jobs from requests of a log, and acknowledges each when its job is committed or refused."""

import heapq
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import msgspec

from mainspring.core.model.base.errors import BrokerUnavailable
from mainspring.core.model.base.instant import MINUTE, SECOND, Micros
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.ingest import Ask, Refusal, RequestLog
from mainspring.core.ports.wakeups import Wakeup
from mainspring.core.runtime.service import TickingService

#: Returns for each request None, or why it was not made. The mapping has the quotas with waiting requests: later
#: requests against them are not made. ``StoreUnavailable`` means that the call is to be repeated.
Make = Callable[[Sequence[Ask], Mapping[str, Refusal]], Awaitable[list[Refusal | None]]]

#: How long a request beyond a quota waits. Later requests of its partition are read again after a restart, so this must
#: be far less than the time for which keys are remembered.
PATIENCE: Micros = 10 * MINUTE
_BATCH = 1_000
_WAIT: Micros = SECOND // 2
#: Requests beyond a quota that wait in memory, and the interval of their retries.
_MOST_WAITING = 10_000
_AGAIN_EVERY: Micros = SECOND
_AWAY_FOR: Micros = SECOND


class _Request(msgspec.Struct, frozen=True):
    ask: Ask
    #: Why and since when the request waits; None if it has not been tried yet.
    why: Refusal | None = None
    since: Micros = 0

    @property
    def lane(self) -> str:
        return "" if self.why is None else self.why.lane


class Ingest(TickingService):
    """Creates jobs from requests. Runs in every scheduler; the log assigns its records to them.

    1. A crash between the commit and ``done`` delivers a request again. Its key makes that harmless.
    2. A waiting request is retried in order of arrival. Later requests against the same quota (a tenant's runs, or its
       recurring jobs) wait behind it.
    3. A request that still has to wait after ``PATIENCE`` is refused. When too many wait, the newest are refused of the
       quota with the most waiting requests.
    4. Requests behind a refused one are judged by themselves.
    """

    def __init__(self, log: RequestLog, make: Make, clock: Clock, wakeup: Wakeup) -> None:
        super().__init__("ingest", clock, wakeup)
        #: Jobs created, and requests refused.
        self.made = 0
        self.refused = 0
        self.away = False
        self._requests = log
        self._make = make
        self._waiting: list[_Request] = []
        #: Waiting requests to retry in this round. No new requests are taken until it is empty.
        self._again: list[_Request] = []
        #: Requests taken whose outcome is unknown, because the store did not answer.
        self._open: list[_Request] = []
        self._again_at: Micros = 0

    @property
    def waiting(self) -> int:
        return len(self._waiting) + len(self._again)

    async def stop(self) -> None:
        await super().stop()
        await self._requests.close()

    async def tick(self) -> Micros:
        try:
            wait = await self._step()
        except BrokerUnavailable as error:
            if not self.away:
                self.log.warning("the log of requests is away", error=str(error))
            self.away = True
            return _AWAY_FOR
        self.away = False
        return wait

    async def _step(self) -> Micros:
        if not self._open:
            self._open = await self._next()
        if not self._open:
            return 0
        lanes = {one.lane: one.why for one in self._waiting if one.why is not None}
        # A quota with waiting requests is full: hold its other retries without trying them.
        held = [one for one in self._open if one.why is not None and one.lane in lanes]
        asked = [one for one in self._open if one.why is None or one.lane not in lanes]
        answers = list(zip(asked, await self._make([one.ask for one in asked], lanes) if asked else (), strict=True))
        now = self.clock.monotonic()
        later = held + [
            _Request(one.ask, why, now if one.why is None else one.since)
            for one, why in answers
            if why is not None and why.later
        ]
        patient = [one for one in later if now - one.since < PATIENCE]
        waiting, crowded = _room(self._waiting + patient, _MOST_WAITING - len(self._again))
        refused = [(one.ask, why) for one, why in answers if why is not None and not why.later]
        refused += _given_up((one for one in later if now - one.since >= PATIENCE), "it has waited for too long")
        refused += _given_up(crowded, "too many wait already")
        if refused:
            await self._requests.refuse(refused)
        made = [one.ask for one, why in answers if why is None]
        await self._requests.done(made)
        self._open = []
        if patient and not self._waiting:
            self._again_at = now + _AGAIN_EVERY
        self._waiting = waiting
        self.made += len(made)
        self.refused += len(refused)
        if refused:
            self.log.warning("requests refused", requests=len(refused), first=refused[0][1].detail)
        return 0

    async def _next(self) -> list[_Request]:
        if self._waiting and not self._again and self.clock.monotonic() >= self._again_at:
            self._again, self._waiting = self._waiting, []
        if self._again:
            asked, self._again = self._again[:_BATCH], self._again[_BATCH:]
            return asked
        return [_Request(ask) for ask in await self._requests.take(_BATCH, _WAIT)]

    def health(self) -> dict[str, object]:
        return {
            "state": "away" if self.away else "ok",
            "made": self.made,
            "refused": self.refused,
            "waiting": self.waiting,
        }


def _room(waiting: list[_Request], most: int) -> tuple[list[_Request], list[_Request]]:
    """Split the waiting requests into those that stay and those beyond ``most``: the newest of the fullest quotas."""
    if len(waiting) <= most:
        return waiting, []
    lanes = Counter(one.lane for one in waiting)
    longest = [(-number, lane) for lane, number in lanes.items()]
    heapq.heapify(longest)
    for _ in range(len(waiting) - most):
        number, lane = longest[0]
        heapq.heapreplace(longest, (number + 1, lane))
    room = {lane: -number for number, lane in longest}
    stay, crowded = list[_Request](), list[_Request]()
    for one in waiting:
        room[one.lane] -= 1
        (crowded if room[one.lane] < 0 else stay).append(one)
    return stay, crowded


def _given_up(requests: Iterable[_Request], reason: str) -> list[tuple[Ask, Refusal]]:
    """Build the final refusals from the reason why each request waited."""
    return [
        (
            one.ask,
            msgspec.structs.replace(
                one.why, detail=f"{one.why.detail}: {reason}", hint="send it again when there is room", later=False
            ),
        )
        for one in requests
        if one.why is not None
    ]
