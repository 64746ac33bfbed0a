"""Compares this node's clock with the store's, reports the difference, and decides whether the node may schedule."""

from collections.abc import Callable, Collection

from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import MILLISECOND, SECOND, Micros
from mainspring.core.model.cluster.clock_guard import ClockReading, ClockRules, ClockState, judge, read_clock
from mainspring.core.model.schedules.cron import find_zone_database
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.storage.clocks import Clocks
from mainspring.core.ports.wakeups import Wakeups
from mainspring.core.runtime.service import TickingService
from mainspring.core.scheduler.store_time import StoreTime

#: How often the store is asked. A clock that is set is noticed at once by comparison with the monotonic clock.
_ASK_EVERY: Micros = 5 * SECOND
#: A smaller change is not worth a write.
_WORTH_RECORDING: Micros = 50 * MILLISECOND


class ClockGuard(TickingService):
    def __init__(
        self,
        store: Clocks,
        wakeups: Wakeups,
        clock: Clock,
        rules: ClockRules,
        sessions: Callable[[], Collection[SessionId]] = tuple,
        *,
        schedules: bool = True,
    ) -> None:
        """``sessions``: returns the current sessions of this process. ``schedules``: one of them is a scheduler."""
        super().__init__("clock", clock, wakeups.listen([]))
        self._store = store
        self._rules = rules
        self._sessions = sessions
        self._schedules = schedules
        self._time = StoreTime(clock)
        self._state = ClockState.RIGHT
        self._recorded: tuple[tuple[SessionId, ...], ClockReading] | None = None

    async def start(self) -> None:
        """Check once before anything else starts. A store that does not answer is handled by other services."""
        await self.step()
        await super().start()

    async def tick(self) -> Micros:
        sent = self.clock.monotonic()
        self._time.learn(sent, await self._store.now())
        self.fit()
        await self._record()
        return _ASK_EVERY

    def reading(self) -> ClockReading | None:
        """Return the current reading without asking the store. None before the store has answered once."""
        if not self._time.known:
            return None
        return read_clock(self.clock.now(), self.clock.monotonic(), self._time.ahead())

    def fit(self) -> bool:
        """Return whether this node may schedule.

        Called before every renewal of a lease, so a set clock is noticed there.
        """
        reading = self.reading()
        if reading is None:
            return True
        state = judge(reading, self._rules, self._state)
        if state is not self._state:
            self._say(state, reading)
            self._state = state
        return state is not ClockState.FENCED

    def _say(self, state: ClockState, reading: ClockReading) -> None:
        metrics = {"offset_ms": reading.offset // MILLISECOND, "error_ms": reading.error // MILLISECOND}
        match state:
            case ClockState.RIGHT:
                self.log.info("clock synchronized again", **metrics)
            case ClockState.OFF:
                self.log.warning("clock differs from the store's: check time synchronization", **metrics)
            case ClockState.FENCED:
                if self._schedules:
                    self.log.error(
                        "clock is far from the store's: the scheduler here stops until it is right", **metrics
                    )
                else:
                    self.log.error("clock is far from the store's: check time synchronization", **metrics)

    async def _record(self) -> None:
        reading, sessions = self.reading(), tuple(sorted(self._sessions()))
        if reading is None or not sessions:
            return
        if self._recorded is not None and self._recorded[0] == sessions:
            before = self._recorded[1]
            if (
                abs(before.offset - reading.offset) < _WORTH_RECORDING
                and reading.error < before.error + _WORTH_RECORDING
            ):
                return
        await self._store.record_clock(sessions, reading, find_zone_database().version)
        self._recorded = (sessions, reading)
