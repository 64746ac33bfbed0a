"""Brokers behind circuit breakers: a call to an unavailable broker returns at once, and the caller uses the store."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from mainspring.core.model.base.errors import BrokerUnavailable
from mainspring.core.model.base.instant import MILLISECOND, SECOND, Micros
from mainspring.core.model.cluster.hints import Hint
from mainspring.core.model.runs.dead_letters import DeadRun
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.dispatch import Broker, DatacenterBroker, DeadLetterBroker, HintDelivery, PriorityBroker
from mainspring.core.runtime.log import get_logger

Answer = TypeVar("Answer")

_log = get_logger("mainspring.dispatch")

_FIRST_PAUSE: Micros = 250 * MILLISECOND
_LONGEST_PAUSE: Micros = 5 * SECOND
#: A broker that fails again within this time after its recovery is left alone for longer each time.
_STEADY: Micros = 30 * SECOND


class GuardedBroker:
    """A broker whose failures become return values. One failure opens the breaker: the store is the fallback.

    While the breaker is open only one probe at a time calls the broker, after growing pauses; a successful probe closes
    it. The pause is reset only after the broker has worked for a while, so that a broker with a single working queue is
    not probed constantly.
    """

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self.broker = broker
        #: How often the breaker has opened.
        self.outages = 0
        #: Hints published because of a change, and because no worker had claimed their run …
        self.published = 0
        self.republished = 0
        #: … hints received from it, and the runs that were started by them.
        self.taken = 0
        self.claimed = 0
        #: Calls that do not wait for hints, and their total duration.
        self.calls = 0
        self.busy: Micros = 0
        #: Known warnings about the broker's configuration.
        self.warned: list[str] = []
        self._clock = clock
        self._pause: Micros = 0
        self._closed = True
        self._closed_at: Micros = -_STEADY
        self._probe_at: Micros = 0

    @property
    def away(self) -> bool:
        """The breaker is open."""
        return not self._closed

    @property
    def may_ask(self) -> bool:
        """The broker is available, or a probe is due."""
        return self._closed or self._clock.monotonic() >= self._probe_at

    async def publish(self, hints: Sequence[Hint], *, again: bool = False) -> bool:
        """Publish hints; returns whether the broker has accepted them."""
        if await self._ask(lambda: self.broker.publish(hints), wait=0) is None:
            return False
        if again:
            self.republished += len(hints)
        else:
            self.published += len(hints)
        return True

    async def take(
        self, queue: str, limit: int, wait: Micros, priority: int | None = None
    ) -> list[HintDelivery] | None:
        """Take hints. None: the broker is unavailable. A probe does not wait. ``priority``: only hints of this one."""

        def ask() -> Awaitable[list[HintDelivery]]:
            patience = 0 if self.away else wait
            if priority is None:
                return self.broker.take(queue, limit, patience)
            assert isinstance(self.broker, PriorityBroker)
            return self.broker.take_priority(queue, priority, limit, patience)

        found = await self._ask(ask, wait)
        if found is None:
            return None
        self.taken += len(found[0])
        return found[0]

    async def done(self, deliveries: Sequence[HintDelivery]) -> None:
        # An unavailable broker would not report it: some clients only buffer the call.
        if not self.away:
            await self._ask(lambda: self.broker.done(deliveries), wait=0)

    async def depth(self, queue: str) -> int | None:
        found = await self._ask(lambda: self.broker.depth(queue), wait=0)
        return None if found is None else found[0]

    @property
    def by_datacenter(self) -> bool:
        """The broker can route hints by data center."""
        return isinstance(self.broker, DatacenterBroker) and self.broker.by_datacenter

    async def look(self) -> list[str]:
        """Return warnings about the broker's configuration that were not known yet."""
        found = await self._ask(self.broker.warnings, wait=0)
        if found is None:
            return []
        before, self.warned = self.warned, found[0]
        return [warning for warning in self.warned if warning not in before]

    @property
    def takes_dead_runs(self) -> bool:
        """The broker can store dead letters."""
        return isinstance(self.broker, DeadLetterBroker)

    async def publish_dead(self, dead: Sequence[DeadRun]) -> bool:
        """Send dead letters to the broker; returns whether it has accepted them."""
        broker = self.broker
        assert isinstance(broker, DeadLetterBroker)
        return await self._ask(lambda: broker.publish_dead(dead), wait=0) is not None

    async def _ask(self, call: Callable[[], Awaitable[Answer]], wait: Micros) -> tuple[Answer] | None:
        if not self.may_ask:
            return None
        if probe := self.away:
            # No other caller probes until this one has failed.
            self._probe_at = self._clock.monotonic() + _LONGEST_PAUSE + wait
        asked = self._clock.monotonic()
        try:
            answer = await call()
        except BrokerUnavailable as error:
            self._failed(error)
            return None
        # Only a probe closes the breaker: calls made before the failure prove nothing.
        if probe:
            self._worked()
        if wait == 0:
            self.calls += 1
            self.busy += self._clock.monotonic() - asked
        return (answer,)

    def _failed(self, error: BrokerUnavailable) -> None:
        if self._closed:
            self._closed = False
            self.outages += 1
            if self._clock.monotonic() - self._closed_at >= _STEADY:
                self._pause = 0
            _log.warning("broker unavailable, claiming from the store", broker=self.broker.kind, error=str(error))
        self._pause = min(max(2 * self._pause, _FIRST_PAUSE), _LONGEST_PAUSE)
        self._probe_at = self._clock.monotonic() + self._pause

    def _worked(self) -> None:
        if not self._closed:
            self._closed = True
            self._closed_at = self._clock.monotonic()
            _log.info("broker available again", broker=self.broker.kind)


class Brokers:
    """A service: the brokers of one process, connected while it runs."""

    def __init__(
        self, brokers: Sequence[GuardedBroker], of: Mapping[str, GuardedBroker | None], namespace: str
    ) -> None:
        """``of``: by queue, None for the store; ``*`` for every queue that is not named."""
        self.all = tuple(brokers)
        self._of = of
        self._namespace = namespace

    def of(self, queue: str) -> GuardedBroker | None:
        """Return the broker that serves this queue. None: the store does."""
        return self._of[queue] if queue in self._of else self._of.get("*")

    @property
    def queues(self) -> list[str] | None:
        """The queues served by a broker. None: every queue except the named ones."""
        return None if self._of.get("*") is not None else [queue for queue, broker in self._of.items() if broker]

    async def depths(self, queues: Iterable[str]) -> dict[str, int]:
        """Return the number of waiting hints per queue, where a broker serves the queue and answers."""
        asked = [(queue, guarded) for queue in queues if (guarded := self.of(queue)) is not None]
        found = await asyncio.gather(*(guarded.depth(queue) for queue, guarded in asked))
        return {queue: depth for (queue, _), depth in zip(asked, found, strict=True) if depth is not None}

    async def start(self) -> None:
        for guarded in self.all:
            await guarded.broker.open(self._namespace)

    async def stop(self) -> None:
        for guarded in self.all:
            with suppress(BrokerUnavailable):
                await guarded.broker.close()

    def named(self) -> dict[str, GuardedBroker]:
        """Return the brokers by kind. Not by address, which callers may not be allowed to see."""
        alone = len(self.all) == 1
        return {one.broker.kind if alone else f"{one.broker.kind}-{n}": one for n, one in enumerate(self.all)}

    def health(self) -> dict[str, object]:
        """Return for each broker its state and its configuration warnings."""
        return {
            name: {"state": "away" if one.away else "ok", "outages": one.outages, "refused": one.broker.refused}
            | ({"warnings": one.warned} if one.warned else {})
            for name, one in self.named().items()
        }
