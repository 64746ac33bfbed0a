"""Positions in the event stream of a sharded store: one offset per server, as text ``0=…|2=…``.

The stream of a single server has a plain offset instead. The position of an event has only the offset of its own
server.
"""

from collections.abc import Mapping

_BETWEEN, _IS = "|", "="


def split_position(position: str) -> dict[int, str] | None:
    """Return the offsets by server number; None: this is not a position in a sharded store."""
    parts = {}
    for part in position.split(_BETWEEN):
        number, is_part, offset = part.partition(_IS)
        if not is_part or not number.isascii() or not number.isdigit():
            return None
        parts[int(number)] = offset
    return parts


def join_position(parts: Mapping[int, str]) -> str:
    return _BETWEEN.join(f"{number}{_IS}{offset}" for number, offset in sorted(parts.items()))


def is_reached(position: str, by: str) -> bool:
    """Return whether a reader at position ``by`` has read the event at ``position``."""
    parts, others = split_position(position), split_position(by)
    if parts is None or others is None:
        return position <= by
    return all(offset <= others.get(number, "") for number, offset in parts.items())


def further(one: str, other: str) -> str:
    """Return the position of a reader that has read up to both positions."""
    parts, others = split_position(one), split_position(other)
    if parts is None or others is None:
        return max(one, other)
    numbers = parts.keys() | others.keys()
    return join_position({number: max(parts.get(number, ""), others.get(number, "")) for number in numbers})
