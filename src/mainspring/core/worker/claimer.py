"""Claims runs as slots get free."""

import asyncio
from collections.abc import Callable, Mapping

from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.core.model.base.instant import SECOND, Micros
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.ports.wakeups import Wakeup
from mainspring.core.runtime.brokers import GuardedBroker
from mainspring.core.runtime.service import TickingService
from mainspring.core.runtime.tasks import cancel_and_wait
from mainspring.core.store import Demand
from mainspring.core.worker.attempt import Holding
from mainspring.core.worker.hints import HintFeed
from mainspring.core.worker.runtime import WorkerRuntime
from mainspring.core.worker.slots import Slots


class Claimer(TickingService):
    """Sends one claim at a time, for all queues, and never for more runs than can be started at once.

    While answers fill the demand, the next claim is sent before the runs of the last one have ended. The database then
    works on one batch while this process executes the other.
    """

    def __init__(
        self,
        runtime: WorkerRuntime,
        wakeup: Wakeup,
        slots: Slots,
        accept: Callable[[Holding, list[HeldRun]], None],
        overloaded: Callable[[], bool],
        brokers: Mapping[str, GuardedBroker] | None = None,
    ) -> None:
        """``brokers``: the brokers that hint at runs, by queue."""
        super().__init__("claimer", runtime.clock, wakeup)
        #: The session to claim for; None while there is none.
        self.holding: Holding | None = None
        #: A claim is in progress.
        self.claiming = False
        #: Set permanently when the worker leaves.
        self.halted = False
        self._store = runtime.store
        self._jitter = runtime.jitter
        self._slots = slots
        self._accept = accept
        self._overloaded = overloaded
        self._metrics = runtime.metrics
        settings = runtime.settings
        self._timeout = settings.claim_timeout
        self._poll_interval = settings.poll_interval
        self._largest = settings.largest_claim
        # Sooner than the end of the idle wait, so that each idle wait is followed by a query of the store.
        look_every = settings.poll_interval // 2
        #: Keyed by queue and priority, like the slots.
        self._feeds = {
            (group.queue, group.priority): HintFeed(
                group.queue, broker, self.clock, look_every, self._fed, group.priority
            )
            for group in slots.groups.values()
            if (broker := (brokers or {}).get(group.queue)) is not None
        }

    async def tick(self) -> Micros:
        """Claim until there is no more work or no more room."""
        self._slots.look_again()
        while True:
            holding = self.holding
            if holding is None or self.halted or self._overloaded():
                return self._idle_wait()
            pause = self._slots.pause()
            if pause is None:
                return self._idle_wait()
            if pause > 0:
                # A claimer that waits for slots needs no notification: check again as if a slot had become free.
                self._slots.woken = True
                return pause
            demands = self._slots.demands(self._largest)
            if self._feeds:
                demands = self._feed_demands(demands)
            if not demands:
                self._slots.notify_when_one_is_free()
                return self._idle_wait()
            await self._claim(holding, demands)

    async def abort(self) -> None:
        """Stop waiting for an answer; the last heartbeat returns the runs that it may have started."""
        task, self._task = self._task, None
        if task is not None:
            await cancel_and_wait(task)
        for feed in self._feeds.values():
            await feed.close()

    async def _claim(self, holding: Holding, demands: list[Demand]) -> None:
        number = holding.next_claim()
        sent = self.clock.monotonic()
        self.claiming = True
        try:
            async with asyncio.timeout(self._timeout / SECOND):
                runs = await self._store.claim(holding.session, number, demands)
            took = self.clock.monotonic() - sent
            if self._metrics is not None:
                self._metrics.called("claim", took, len(runs))
            if took > self._timeout or holding.lost:
                self.log.warning("claim answered too late", number=number, runs=len(runs))
                return
            self._accept(holding, runs)
            if self._metrics is not None and runs:
                self._metrics.claimed(runs)
            self._slots.answered(demands, runs)
            if self._feeds:
                self._answer_feeds(demands, runs)
        except (StoreUnavailable, TimeoutError) as error:
            if self._metrics is not None:
                self._metrics.failed("claim")
            if isinstance(error, StoreUnavailable):
                raise
            raise StoreUnavailable(f"claim {number} was not answered in {self._timeout / SECOND:g} s") from None
        finally:
            # Only now, when its runs are held: a heartbeat must find each of them either pending or held. If there was
            # no answer, nothing is held, and the next heartbeat returns the runs that the claim may have started.
            holding.pending.discard(number)
            self.claiming = False
            for feed in self._feeds.values():
                feed.ended()

    def _feed_demands(self, demands: list[Demand]) -> list[Demand]:
        """Return the demands, with those of queues that have a broker replaced by its hints."""
        found, waiting = [], set()
        for demand in demands:
            feed = self._feeds.get((demand.queue, demand.priority))
            turned = demand if feed is None else feed.turn(demand)
            if turned is not None:
                found.append(turned)
            else:
                waiting.add((demand.queue, demand.priority))
        # Hints notify these groups, not every slot that becomes free.
        self._slots.expect_more(waiting, more=False)
        return found

    def _answer_feeds(self, demands: list[Demand], runs: list[HeldRun]) -> None:
        started = {run.id for run in runs}
        for feed in self._feeds.values():
            feed.answered(started)
        # The answer for some hints says nothing about the next ones.
        groups = {(demand.queue, demand.priority) for demand in demands}
        self._slots.expect_more(
            {group for group in groups & self._feeds.keys() if self._feeds[group].brings}, more=True
        )

    def _fed(self) -> None:
        # A claimer that was woken by a freed slot would not check for hints.
        self._slots.woken = False
        self.wakeup.notify()

    def _idle_wait(self) -> Micros:
        return round(self._poll_interval * (0.75 + self._jitter.random() / 2))
