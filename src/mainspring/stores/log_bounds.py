"""Limits on log output, per run and per tenant and day."""

from mainspring.core.ports.storage.catalog import LOG_CUT, LOG_DAY_CUT, MOST_LOG_BYTES, MOST_LOG_PIECES


class DayRoom:
    """Bytes that a tenant may still log today. ``most``: its quota; ``used``: what it has logged today."""

    def __init__(self, most: int, used: int) -> None:
        self._left = most - used
        #: Bytes taken through this object.
        self.taken = 0

    def take(self, size: int) -> bool:
        if size > self._left:
            return False
        self._left -= size
        self.taken += size
        return True


class LogRoom:
    """Space left in a log.

    ``pieces`` and ``size`` are its current length. ``cut``: it is truncated already. ``today`` is the room of its
    tenant; None without a quota.
    """

    def __init__(self, pieces: int, size: int, *, cut: bool, today: DayRoom | None = None) -> None:
        self._pieces = pieces
        self._size = size
        self._cut = cut
        self._today = today

    def fit(self, text: str) -> str | None:
        """Return what to store of a piece: all of it, a last line that says the log is cut, or None after that."""
        if self._cut:
            return None
        size = len(text.encode())
        # One piece is reserved for the last line.
        if self._pieces + 1 >= MOST_LOG_PIECES or self._size + size > MOST_LOG_BYTES:
            self._cut = True
            return LOG_CUT
        if self._today is not None and not self._today.take(size):
            self._cut = True
            return LOG_DAY_CUT
        self._pieces += 1
        self._size += size
        return text
