"""Places in a stream of events that comes from several servers: one place of each server, as text.

``0=…|2=…``: a stream of one server has no parts. An event's own position has the part of its server alone.
"""

from collections.abc import Mapping

_BETWEEN, _IS = "|", "="


def split_position(position: str) -> dict[int, str] | None:
    """The parts by the number of their server; None: it is none of several servers."""
    parts = {}
    for part in position.split(_BETWEEN):
        number, is_part, place = part.partition(_IS)
        if not is_part or not number.isascii() or not number.isdigit():
            return None
        parts[int(number)] = place
    return parts


def join_position(parts: Mapping[int, str]) -> str:
    return _BETWEEN.join(f"{number}{_IS}{place}" for number, place in sorted(parts.items()))


def is_reached(position: str, by: str) -> bool:
    """Whether somebody who stands at ``by`` has seen what is at a position."""
    parts, others = split_position(position), split_position(by)
    if parts is None or others is None:
        return position <= by
    return all(place <= others.get(number, "") for number, place in parts.items())


def further(one: str, other: str) -> str:
    """Where somebody stands who has seen both."""
    parts, others = split_position(one), split_position(other)
    if parts is None or others is None:
        return max(one, other)
    numbers = parts.keys() | others.keys()
    return join_position({number: max(parts.get(number, ""), others.get(number, "")) for number in numbers})
