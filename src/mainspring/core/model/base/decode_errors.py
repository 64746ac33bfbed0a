"""Decode errors of JSON, with the field, the problem and a hint in the client's terms."""

import re
from typing import Any

import msgspec
from msgspec import inspect

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.field_names import Unknown, explain_unknown, suggest

_STEPS = re.compile(r"\.([^.\[]+)|\[([0-9]+|\.\.\.)\]")
_AT, _IN = " - at `", "key` in `"
_ENUM, _UNKNOWN, _MISSING = "Invalid enum value ", "Object contains unknown field ", "Object missing required field "
_BYTE = re.compile(r"\(byte (\d+)\)$")
_BOUND = re.compile(r"Expected '(\w+)' (of length )?(<=|>=|<|>) ([-\d.]+)")
_BOUNDS = {"<=": "at most", ">=": "at least", "<": "less than", ">": "more than"}
#: The meaning of the regular expressions of fields: the problem, and a hint.
PATTERNS: dict[str, tuple[str, str]] = {}


class DecodeError(msgspec.Struct, frozen=True):
    """A decode error: the field (empty: the whole document), the problem, and a hint."""

    field: str
    reason: str
    hint: str = ""


def explain_decode_error(error: msgspec.MsgspecError, kind: Any = None, data: bytes = b"") -> DecodeError:
    """Parse an error of msgspec such as ``Expected `int`, got `str` - at `$.priority```.

    The error omits the keys of tables, which are looked up in ``data``, and the words of a choice, which are looked up
    in ``kind``.
    """
    reason, _, path = str(error).partition(_AT)
    is_key = path.startswith(_IN)
    steps = [name or place for name, place in _STEPS.findall(path.removeprefix(_IN).rstrip("`"))]
    wanted = [*steps, "..."] if is_key else steps
    known = _with_keys(wanted, str(error), kind, data) if "..." in wanted else wanted
    field = _written(known[: len(steps)])
    reason = reason.replace("`", "'")
    hint = ""
    if reason.startswith(_ENUM):
        reason = f"{reason.removeprefix(_ENUM)} is not one of its words"
        hint = "" if is_key or kind is None else ", ".join(_words(inspect.type_info(kind), steps))
    if reason.startswith(_MISSING):
        name = reason.removeprefix(_MISSING).strip("'")
        return DecodeError(f"{field}.{name}" if field else name, "is missing")
    if reason.startswith(_UNKNOWN):
        name = reason.removeprefix(_UNKNOWN).strip("'")
        meant = "" if kind is None else suggest(name, _fields(inspect.type_info(kind), steps))
        found = explain_unknown([Unknown(f"{field}.{name}" if field else name, meant)])
        return DecodeError(found.field, found.reason, found.hint)
    _, has_pattern, pattern = reason.partition(" matching regex ")
    if has_pattern:
        reason, hint = PATTERNS.get(pattern, ("does not have the right form", ""))
    if (bound := _BOUND.fullmatch(reason)) is not None:
        reason = _bounded(*bound.groups())
    if (byte := _BYTE.search(reason)) is not None and data[int(byte[1]) :][:2] in (b"//", b"/*"):
        hint = "JSON has no comments: remove this one"
    if not reason.startswith("JSON"):
        reason = reason[:1].lower() + reason[1:]
    if is_key:
        reason = f"a name in it{'' if known[-1] == '...' else f' ({known[-1]!r:.60})'}: {reason}"
    return DecodeError(field, reason, hint)


def explain_payload_error(
    error: msgspec.MsgspecError | RecursionError, kind: Any, payload: bytes, example: str
) -> Invalid:
    """Return the decode error of a job's payload."""
    if isinstance(error, RecursionError):
        return Invalid("payload", "is nested too deeply")
    found = explain_decode_error(error, kind, payload)
    return Invalid(f"payload.{found.field}".rstrip("."), found.reason, found.hint or example)


def _bounded(kind: str, of_length: str | None, sign: str, most: str) -> str:
    """Describe a violated bound, as in ``must be at most 10`` or ``must have at least 1 character``."""
    number = most.removesuffix(".0")
    if of_length is None:
        return f"must be {_BOUNDS[sign]} {number}"
    one, many = ("character", "characters") if kind == "str" else ("entry", "entries")
    return f"must have {_BOUNDS[sign]} {number} {one if number == '1' else many}"


def _written(steps: list[str]) -> str:
    """Format a path, as in ``nodes.load.after[0]``."""
    return "".join(f"[{step}]" if step.isdigit() or step == "..." else f".{step}" for step in steps).lstrip(".")


def _with_keys(steps: list[str], text: str, kind: Any, data: bytes) -> list[str]:
    """Replace the dots in a path by the keys that they stand for, as far as they can be found."""
    try:
        return _found(steps, text, kind, msgspec.json.decode(data))
    except (msgspec.MsgspecError, RecursionError, LookupError, TypeError, OverflowError):
        return steps


def _found(steps: list[str], text: str, kind: Any, whole: Any) -> list[str]:
    """Find the keys by bisection: half of a table gives the same error if the invalid value is in that half."""
    here = whole
    known: list[str] = []
    for number, step in enumerate(steps):
        if step == "...":
            left = dict(here)
            while len(left) > 1:
                names = list(left)
                here.clear()
                here.update({name: left[name] for name in names[: len(names) // 2]})
                if not _fails(kind, whole, text):
                    here.clear()
                    here.update({name: left[name] for name in names[len(names) // 2 :]})
                left = dict(here)
            (step,) = left
            if number == len(steps) - 1:
                return [*known, step]
        known.append(step)
        here = here[int(step)] if isinstance(here, list) else here[step]
    return known


def _fails(kind: Any, whole: Any, text: str) -> bool:
    try:
        msgspec.json.decode(msgspec.json.encode(whole), type=kind)
    except msgspec.MsgspecError as error:
        return str(error) == text
    return False


def _fields(kind: inspect.Type, steps: list[str]) -> list[str]:
    """Return the field names of the struct at a path."""
    if isinstance(kind, inspect.Metadata):
        return _fields(kind.type, steps)
    if isinstance(kind, inspect.UnionType):
        return [name for part in kind.types for name in _fields(part, steps)]
    if isinstance(kind, inspect.StructType):
        if not steps:
            return [part.encode_name for part in kind.fields]
        return [name for part in kind.fields if part.encode_name == steps[0] for name in _fields(part.type, steps[1:])]
    if isinstance(kind, inspect.DictType) and steps:
        return _fields(kind.value_type, steps[1:])
    if isinstance(kind, inspect.ListType | inspect.VarTupleType | inspect.SetType) and steps:
        return _fields(kind.item_type, steps[1:])
    return []


def _words(kind: inspect.Type, steps: list[str]) -> list[str]:
    """Return the allowed words at a path."""
    if isinstance(kind, inspect.Metadata):
        return _words(kind.type, steps)
    if isinstance(kind, inspect.UnionType):
        return [word for part in kind.types for word in _words(part, steps)]
    if isinstance(kind, inspect.LiteralType) and not steps:
        return [str(word) for word in kind.values]
    if isinstance(kind, inspect.EnumType) and not steps:
        return [str(member.value) for member in kind.cls]
    if isinstance(kind, inspect.StructType) and steps:
        return [word for part in kind.fields if part.encode_name == steps[0] for word in _words(part.type, steps[1:])]
    if isinstance(kind, inspect.DictType) and steps:
        return _words(kind.value_type, steps[1:])
    if isinstance(kind, inspect.ListType | inspect.VarTupleType | inspect.SetType) and steps:
        return _words(kind.item_type, steps[1:])
    return []
