"""Makes jobs of requests that come by a log. Each is done when its job is committed, or kept apart with the reason."""

from collections.abc import Awaitable, Callable, Collection, Sequence

import msgspec

from mainspring.domain.errors import EngineUnavailable
from mainspring.domain.instant import SECOND, Micros
from mainspring.ports.clock import Clock
from mainspring.ports.ingest import Ask, Refusal, RequestLog
from mainspring.ports.wakeups import Bell
from mainspring.runtime.service import TickingService

#: Of each request None, or why it was not made; none of those whose lanes are named is, since others wait before it.
#: May raise ``StoreUnavailable``: then it is asked again.
Make = Callable[[Sequence[Ask], Collection[str]], Awaitable[list[Refusal | None]]]

_BATCH = 1_000
_WAIT: Micros = SECOND // 2
#: Requests beyond a quota wait here, and are asked again this often; beyond so many nothing more is taken.
_MOST_WAITING = 10_000
_AGAIN_EVERY: Micros = SECOND
_AWAY_FOR: Micros = SECOND


class _Waiting(msgspec.Struct, frozen=True):
    ask: Ask
    lane: str


class Ingest(TickingService):
    """In every scheduler; the log shares its records out among them.

    A crash between the commit and ``done`` brings a request again. Its key makes that harmless. What waits is asked
    again in the order in which it came, and nothing of its lane is made before it.
    """

    def __init__(self, log: RequestLog, make: Make, clock: Clock, bell: Bell) -> None:
        super().__init__("ingest", clock, bell)
        #: How many jobs were made, and how many requests were kept apart.
        self.made = 0
        self.refused = 0
        self.away = False
        self._requests = log
        self._make = make
        self._waiting: list[_Waiting] = []
        #: Those of them that are to be asked in this round. Nothing is taken meanwhile.
        self._again: list[_Waiting] = []
        #: Taken, and not known to be made: the store did not answer.
        self._open: list[Ask] = []
        self._again_at: Micros = 0

    async def stop(self) -> None:
        await super().stop()
        await self._requests.close()

    async def tick(self) -> Micros:
        try:
            wait = await self._step()
        except EngineUnavailable as error:
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
            idle = self._waiting and not self._again
            return min(_WAIT, max(self._again_at - self.clock.monotonic(), 1)) if idle else 0
        asks = self._open
        answers = list(zip(asks, await self._make(asks, self._lanes()), strict=True))
        refused = [(ask, why) for ask, why in answers if why is not None and not why.later]
        if refused:
            await self._requests.refuse(refused)
        made = [ask for ask, why in answers if why is None]
        await self._requests.done(made)
        later = [_Waiting(ask, why.lane) for ask, why in answers if why is not None and why.later]
        self._open = []
        if later and not self._waiting:
            self._again_at = self.clock.monotonic() + _AGAIN_EVERY
        self._waiting += later
        self.made += len(made)
        self.refused += len(refused)
        if refused:
            self.log.warning("requests refused", requests=len(refused), first=refused[0][1].detail)
        return 0

    async def _next(self) -> list[Ask]:
        if self._waiting and not self._again and self.clock.monotonic() >= self._again_at:
            self._again, self._waiting = self._waiting, []
        if self._again:
            asked, self._again = self._again[:_BATCH], self._again[_BATCH:]
            # One of a lane is enough to know that it waits.
            lanes = self._lanes()
            self._waiting += [one for one in asked if one.lane in lanes]
            return [one.ask for one in asked if one.lane not in lanes]
        if len(self._waiting) < _MOST_WAITING:
            return await self._requests.take(_BATCH, _WAIT)
        return []

    def _lanes(self) -> set[str]:
        """Those in which somebody waits."""
        return {one.lane for one in self._waiting}

    def health(self) -> dict[str, object]:
        return {
            "state": "away" if self.away else "ok",
            "made": self.made,
            "refused": self.refused,
            "waiting": len(self._waiting) + len(self._again),
        }
