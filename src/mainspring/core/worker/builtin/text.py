"""Output of others as text that can be kept."""

import msgspec

_encode = msgspec.json.Encoder().encode


def readable(data: bytes) -> str:
    """As UTF-8; what is not, and zeros, which databases refuse, become a replacement character."""
    return data.decode("utf-8", "replace").replace("\x00", "�")


def head(text: str, room: int) -> str:
    """The start of a text, such that it fits as JSON into so many bytes."""
    while (size := len(_encode(text))) > room:
        text = text[: min(len(text) * room // size, len(text) - 1)]
    return text


def tail(text: str, room: int) -> str:
    """The end of a text, such that it fits as JSON into so many bytes."""
    return head(text[::-1], room)[::-1]
