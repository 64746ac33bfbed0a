"""How old the state is that a replica shows."""

from collections.abc import Sequence

from mainspring.core.model.base.instant import Micros


def staleness(samples: Sequence[tuple[Micros, int]], replayed: int, now: Micros) -> Micros | None:
    """``samples``: moments, each with where the primary's log was after it. ``replayed``: how far the replica has come.

    What was committed before a moment lies before its position, so a replica that has come this far shows it. None: it
    has not come as far as any of them, and may be older than all.
    """
    shown = [at for at, position in samples if position <= replayed]
    return None if not shown else max(now - max(shown), 0)
