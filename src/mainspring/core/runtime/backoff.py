"""Back-off: growing pauses between retries. Every loop of this program that retries or polls uses it."""

from random import Random

from mainspring.core.model.base.instant import Micros


class Backoff:
    """The pauses between retries: each is twice as long as the one before, up to a limit."""

    __slots__ = ("_first", "_longest", "_pause")

    def __init__(self, first: Micros, longest: Micros) -> None:
        self._first = first
        self._longest = longest
        self._pause: Micros = 0

    def next(self) -> Micros:
        """Return the pause before the next retry."""
        self._pause = min(max(self._pause * 2, self._first), self._longest)
        return self._pause

    def reset(self) -> None:
        """Start again with the first pause, after a success."""
        self._pause = 0


def jitter(pause: Micros, random: Random) -> Micros:
    """Shorten a pause to between half and all of it, so that processes that failed together do not retry together."""
    return round(pause * (0.5 + random.random() / 2))
