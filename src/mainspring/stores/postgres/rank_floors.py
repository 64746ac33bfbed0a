"""Where claims start to search a queue while dead rows make searching from the front slow.

A claimed run leaves a dead row at the front of its queue. While a transaction from before is open, vacuum cannot remove
the row, and every claim would step over all of them. So:

1. After a slow claim, a task beside the claims looks up the first run of each queue.
2. If there are many dead rows and that lookup was slow, too, claims start at the ranks it found.
3. From then on each claim sets where the next one starts: at its own first run, minus some slack for a submit that
   began before it and commits after it.
4. The lookup is repeated after ten times its duration. Until then a run with a lower rank waits, such as a more urgent
   one that has just arrived.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

#: A claim, or a lookup from the front, that takes this many seconds is slow.
_SLOW = 0.003
#: Fewer dead rows than this are not the reason that it is slow.
_MANY_DEAD = 20_000
#: The lookup is repeated after this many times its duration, and after at least ``_PAUSE`` seconds.
_SPARING = 10
_PAUSE = 0.1
#: How long a submit may take to commit, in ranks, which are microseconds.
_SLACK = 100_000


class RankFloors:
    """The starting ranks of one process. ``clock`` returns seconds from any origin."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:  # noqa: TID251
        self._clock = clock
        #: Whether searching from the front is slow.
        self._slow = False
        #: The starting rank by queue. A queue that is missing starts at the front.
        self._lowest: dict[int, int] = {}
        self._look_at = 0.0

    def get_start_ranks(self, queues: Sequence[int]) -> list[int]:
        """Return the rank to start at in each queue; 0 is the front."""
        return [self._lowest.get(queue, 0) for queue in queues]

    def record_claim(self, runs: Iterable[tuple[int, int]]) -> None:
        """Raise the starting ranks after a claim.

        ``runs``: queue and rank of the runs that the claim took. They are the best from the old ranks on.
        """
        if not self._slow:
            return
        best: dict[int, int] = {}
        for queue, rank in runs:
            best[queue] = min(rank, best.get(queue, rank))
        for queue, rank in best.items():
            self._lowest[queue] = max(self._lowest.get(queue, 0), rank - _SLACK)

    def read_clock(self) -> float:
        return self._clock()

    def needs_lookup(self, began: float) -> bool:
        """Whether to look up the first runs, after a claim that began at ``began``."""
        now = self._clock()
        return now >= self._look_at and (self._slow or now - began >= _SLOW)

    def record_lookup(self, began: float, dead: int, lowest: Mapping[int, int]) -> None:
        """Record a lookup. ``dead``: number of dead rows; ``lowest``: the first rank of each queue that has runs."""
        now = self._clock()
        self._look_at = now + max(_SPARING * (now - began), _PAUSE)
        self._slow = dead >= _MANY_DEAD and now - began >= _SLOW
        # For a queue where nothing was found, the known rank still holds.
        self._lowest = {**self._lowest, **lowest} if self._slow else {}
