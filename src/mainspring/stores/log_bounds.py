"""How much a run may print, and a tenant in a day."""

from mainspring.core.ports.storage.catalog import LOG_CUT, LOG_DAY_CUT, MOST_LOG_BYTES, MOST_LOG_PIECES


class DayRoom:
    """What the logs of a tenant still take today. ``most``: by its quota; ``used``: what it has printed today."""

    def __init__(self, most: int, used: int) -> None:
        self._left = most - used
        #: What was taken here.
        self.taken = 0

    def take(self, size: int) -> bool:
        if size > self._left:
            return False
        self._left -= size
        self.taken += size
        return True


class LogRoom:
    """What a log still takes. ``pieces`` and ``size`` are what it has; whether it is ``cut`` already; ``today`` is its
    tenant's, None without a quota."""

    def __init__(self, pieces: int, size: int, *, cut: bool, today: DayRoom | None = None) -> None:
        self._pieces = pieces
        self._size = size
        self._cut = cut
        self._today = today

    def fit(self, text: str) -> str | None:
        """What is kept of a piece: all of it, the last line instead, or after that nothing."""
        if self._cut:
            return None
        size = len(text.encode())
        # One place is left for the last line.
        if self._pieces + 1 >= MOST_LOG_PIECES or self._size + size > MOST_LOG_BYTES:
            self._cut = True
            return LOG_CUT
        if self._today is not None and not self._today.take(size):
            self._cut = True
            return LOG_DAY_CUT
        self._pieces += 1
        self._size += size
        return text
