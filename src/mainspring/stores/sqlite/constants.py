"""Constants that SQL files name, as in ``:BREAKER``. They become literals when a file is loaded."""

from mainspring.core.model.base.instant import DAY, MINUTE
from mainspring.core.model.limits.limits import AT_A_TIME, BREAKER, PER_PERIOD
from mainspring.core.model.runs.rank import HEAD_START, LATE_PENALTY
from mainspring.core.ports.storage.catalog import TIMINGS_STEP

CONSTANTS: dict[str, int | str] = {
    # Kinds of limiters.
    "AT_A_TIME": AT_A_TIME,
    "PER_PERIOD": PER_PERIOD,
    "BREAKER": BREAKER,
    # Ranks: how far a priority puts a run ahead, and how far a late run queues behind.
    "HEAD_START": HEAD_START,
    "LATE_PENALTY": LATE_PENALTY,
    # The low bits of a fence number the claims of a store epoch.
    "FENCE_BITS": 40,
    # Durations.
    "DAY": DAY,
    "MINUTE": MINUTE,
    "TIMINGS_STEP": TIMINGS_STEP,
    "FOREVER": 9_000_000_000_000_000_000,
}
