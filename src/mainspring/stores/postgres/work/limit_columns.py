"""Encodes the limits of a run as a column of its row."""

from collections.abc import Sequence
from functools import lru_cache

from mainspring.core.model.limits.limits import BREAKER, Limiter


def pack_limits(limiters: Sequence[Limiter]) -> str | None:
    """Encode the limits of a run as text that PostgreSQL casts to an array. A breaker comes first."""
    if not limiters:
        return None
    ordered = sorted(limiters, key=lambda limiter: (limiter.kind != BREAKER, limiter.number))
    numbers = (
        n for limiter in ordered for n in (limiter.kind, limiter.number, limiter.most, limiter.per, limiter.pause)
    )
    return "{" + ",".join(map(str, numbers)) + "}"


def unpack_limits(limits: Sequence[int]) -> tuple[Limiter, ...]:
    """Decode the limits of a run from its row, in the order of their numbers."""
    return _unpack_limits(tuple(limits))


@lru_cache(maxsize=10_000)
def _unpack_limits(limits: tuple[int, ...]) -> tuple[Limiter, ...]:
    limiters = [
        Limiter(kind=limits[at], number=limits[at + 1], most=limits[at + 2], per=limits[at + 3], pause=limits[at + 4])
        for at in range(0, len(limits), 5)
    ]
    return tuple(sorted(limiters, key=lambda limiter: limiter.number))
