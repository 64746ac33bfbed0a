"""How much a run may print."""

from mainspring.ports.catalog import LOG_CUT, MOST_LOG_BYTES, MOST_LOG_PIECES


class LogRoom:
    """What a log still takes. ``pieces`` and ``size`` are what it has; whether it is ``cut`` already."""

    def __init__(self, pieces: int, size: int, *, cut: bool) -> None:
        self._pieces = pieces
        self._size = size
        self._cut = cut

    def fit(self, text: str) -> str | None:
        """What is kept of a piece: all of it, the last line instead, or after that nothing."""
        if self._cut:
            return None
        size = len(text.encode())
        # One place is left for the last line.
        if self._pieces + 1 >= MOST_LOG_PIECES or self._size + size > MOST_LOG_BYTES:
            self._cut = True
            return LOG_CUT
        self._pieces += 1
        self._size += size
        return text
