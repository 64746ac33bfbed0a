"""Staleness of a replica's data."""

from collections.abc import Sequence

from mainspring.core.model.base.instant import Micros


def staleness(samples: Sequence[tuple[Micros, int]], replayed: int, now: Micros) -> Micros | None:
    """Return how old the state of a replica is at most; None: it may be older than all samples.

    ``samples``: times, each with the position of the primary's log after it. ``replayed``: the position of the replica.
    A transaction committed before such a time lies before its position, so a replica at that position includes it.
    """
    shown = [at for at, position in samples if position <= replayed]
    return None if not shown else max(now - max(shown), 0)
