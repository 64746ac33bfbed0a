"""Finds keys that a JSON object has twice. Decoders keep the last value and drop the first without a word."""

import json
from functools import cache
from typing import Any

import msgspec

_raw_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_raw_array = msgspec.json.Decoder(list[msgspec.Raw]).decode


def find_repeated_key(data: bytes, value: object) -> str:
    """Return the path of a key that ``data`` has twice, or nothing. ``value`` is what was decoded from ``data``.

    Raw values, such as payloads, are not examined. Each key has a colon, so most objects are only counted.
    """
    if isinstance(value, msgspec.Struct | dict):
        excess = data.count(b":")
        if excess:
            parts = _raw_object(data)
            excess -= len(parts)
            if excess and (payload := parts.get("payload")) is not None:
                # Most colons of a job are in its payload.
                excess -= bytes(payload).count(b":")
            if excess:
                return _find_in_object(data, value, parts)
    elif isinstance(value, list | tuple) and value and not isinstance(value[0], msgspec.Raw):
        for number, (part, item) in enumerate(zip(_raw_array(data), value, strict=False)):
            if repeated := find_repeated_key(bytes(part), item):
                return _joined(f"[{number}]", repeated)
    return ""


def _find_in_object(data: bytes, value: msgspec.Struct | dict[str, Any], parts: dict[str, msgspec.Raw]) -> str:
    excess = data.count(b":") - len(parts)
    nested: list[tuple[str, bytes]] = []
    for name, part in parts.items():
        text = bytes(part)
        if found := text.count(b":"):
            excess -= found
            if b"{" in text:
                nested.append((name, text))
    if excess and (repeated := _find_outermost(data)):
        return repeated
    for name, text in nested:
        if repeated := find_repeated_key(text, value.get(name) if isinstance(value, dict) else _get_value(value, name)):
            return _joined(name, repeated)
    return ""


def _find_outermost(data: bytes) -> str:
    objects: list[list[tuple[str, object]]] = []
    try:
        # The outermost object is complete last. Numbers are not read: they may have too many digits.
        json.loads(data, object_pairs_hook=objects.append, parse_int=str)
    except RecursionError:
        return "body"
    names = [name for name, _ in objects[-1]]
    return next((name for name in names if names.count(name) > 1), "")


def _get_value(struct: msgspec.Struct, name: str) -> object:
    attribute = _attributes(type(struct)).get(name)
    return None if attribute is None else getattr(struct, attribute)


@cache
def _attributes(kind: type[Any]) -> dict[str, str]:
    """Return the attribute of each field of a struct, by the name that the field has in JSON."""
    return {field.encode_name: field.name for field in msgspec.structs.fields(kind)}


def _joined(path: str, rest: str) -> str:
    return path + rest if rest.startswith("[") else f"{path}.{rest}"
