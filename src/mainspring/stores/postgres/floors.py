"""Where claims begin to look, while dead rows that cannot be removed yet make it slow to begin at the front.

What was claimed leaves a dead row at the front of its queue. As long as somebody has a transaction open from before,
no vacuum may remove it, and every claim would step over all of them. So when a claim was slow it is looked, beside the
claims, where the first run of each queue is; if there are many dead rows and that was slow, too, claims begin there.
From then on each claim says where the next may begin: where its own first run was, less a little, for a submit that
began before and commits after it. It is looked again when ten times as long has passed. Until then a run with a lower
rank waits: a more urgent one that has just come.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

#: A claim, or a look from the front, that takes this many seconds is slow.
_SLOW = 0.003
#: Fewer dead rows than these are not what makes it slow.
_MANY_DEAD = 20_000
#: So many times longer than it took, it is not looked again; nor for this many seconds.
_SPARING = 10
_PAUSE = 0.1
#: Of ranks, which are microseconds: a submit has so long to commit.
_SLACK = 100_000


class Floors:
    """For one process. ``clock``: seconds, of any origin."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:  # noqa: TID251
        self._clock = clock
        #: Whether the front is slow.
        self._slow = False
        #: By queue. What is not in it begins at the front.
        self._lowest: dict[int, int] = {}
        self._look_at = 0.0

    def of(self, queues: Sequence[int]) -> list[int]:
        """The rank to begin at in each; 0 is the front."""
        return [self._lowest.get(queue, 0) for queue in queues]

    def took(self, runs: Iterable[tuple[int, int]]) -> None:
        """``runs``: queue and rank of what a claim has found from the floors on. They are its best."""
        if not self._slow:
            return
        best: dict[int, int] = {}
        for queue, rank in runs:
            best[queue] = min(rank, best.get(queue, rank))
        for queue, rank in best.items():
            self._lowest[queue] = max(self._lowest.get(queue, 0), rank - _SLACK)

    def begin(self) -> float:
        return self._clock()

    def wants_look(self, began: float) -> bool:
        """Whether to look from the front, after a claim that began then."""
        now = self._clock()
        return now >= self._look_at and (self._slow or now - began >= _SLOW)

    def looked(self, began: float, dead: int, lowest: Mapping[int, int]) -> None:
        """``dead``: rows that are; ``lowest``: what is first, in queues that have something."""
        now = self._clock()
        self._look_at = now + max(_SPARING * (now - began), _PAUSE)
        self._slow = dead >= _MANY_DEAD and now - began >= _SLOW
        # Where nothing was found, what was known still holds.
        self._lowest = {**self._lowest, **lowest} if self._slow else {}
