"""Where claims begin to look, while dead rows that cannot be removed yet make it slow to begin at the front.

What was claimed leaves a dead row at the front of its queue. As long as somebody has a transaction open from before,
no vacuum may remove it, and every claim would step over all of them. So when a claim was slow it is looked, beside the
claims, where the first run of each queue is; if there are many dead rows and that was slow, too, claims begin there.
It is looked again when ten times as long has passed. Until then a run with a lower rank waits: a more urgent one that
has just come.
"""

import time
from collections.abc import Callable, Mapping, Sequence

#: A claim, or a look from the front, that takes this many seconds is slow.
_SLOW = 0.01
#: Fewer dead rows than these are not what makes it slow.
_MANY_DEAD = 20_000
#: So many times longer than it took, it is not looked again.
_SPARING = 10


class Floors:
    """For one process. ``clock``: seconds, of any origin."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:  # noqa: TID251
        self._clock = clock
        #: By queue; empty: claims begin at the front.
        self._lowest: dict[int, int] = {}
        self._look_at = 0.0

    def of(self, queues: Sequence[int]) -> list[int]:
        """The rank to begin at in each; 0 is the front."""
        return [self._lowest.get(queue, 0) for queue in queues]

    def begin(self) -> float:
        return self._clock()

    def wants_look(self, began: float) -> bool:
        """Whether to look from the front, after a claim that began then."""
        now = self._clock()
        return now >= self._look_at and (bool(self._lowest) or now - began >= _SLOW)

    def looked(self, began: float, dead: int, lowest: Mapping[int, int]) -> None:
        """``dead``: rows that are; ``lowest``: what is first, in queues that have something."""
        now = self._clock()
        self._look_at = now + _SPARING * max(now - began, _SLOW)
        if dead >= _MANY_DEAD and now - began >= _SLOW:
            # Where nothing was found, what was known still holds.
            self._lowest |= lowest
        else:
            self._lowest = {}
