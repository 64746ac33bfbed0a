"""Converts output of other programs into text that can be stored."""

import msgspec

_encode = msgspec.json.Encoder().encode


def readable(data: bytes) -> str:
    """Decode as UTF-8. Invalid bytes, and zeros, which databases reject, become replacement characters."""
    return data.decode("utf-8", "replace").replace("\x00", "�")


def head(text: str, room: int) -> str:
    """Return the start of a text that fits as JSON into ``room`` bytes."""
    while (size := len(_encode(text))) > room:
        text = text[: min(len(text) * room // size, len(text) - 1)]
    return text


def tail(text: str, room: int) -> str:
    """Return the end of a text that fits as JSON into ``room`` bytes."""
    return head(text[::-1], room)[::-1]
