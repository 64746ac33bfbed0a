"""Python values as JSON, and back; refuses what JSON would quietly make something else of."""

import math
from collections.abc import Iterator
from typing import Any

import msgspec

from mainspring.domain.errors import Invalid


def to_json(value: object) -> object:
    """Pydantic's models say themselves what they are in JSON."""
    dump = getattr(type(value), "model_dump", None)
    if dump is None:
        raise TypeError(f"{type(value).__name__} cannot be written as JSON")
    return dump(value, mode="json")


def from_json(kind: Any, value: object) -> object:
    read = getattr(kind, "model_validate", None)
    if read is None:
        raise TypeError(f"{kind!r} cannot be read from JSON")
    return read(value)


encode = msgspec.json.Encoder(enc_hook=to_json).encode


def encode_result(result: object, field: str = "result") -> bytes | None:
    """A handler's result as JSON; nothing for nothing."""
    if result is None:
        return None
    try:
        encoded = encode(result)
    except (TypeError, ValueError, OverflowError) as error:
        raise Invalid(field, f"cannot be written as JSON: {error}") from None
    if encoded.find(b"null") >= 0 and (odd := not_a_number(result)) is not None:
        raise Invalid(field, f"holds {odd}, which JSON cannot say")
    return encoded


def not_a_number(value: object) -> str | None:
    """A float in it that would be written as null."""
    found = leaves(msgspec.to_builtins(value, enc_hook=to_json))
    return next((str(leaf) for leaf in found if isinstance(leaf, float) and not math.isfinite(leaf)), None)


def leaves(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item)
    else:
        yield value
