"""Names of JSON fields as clients spell them: camelCase or snake_case, and aliases."""

import difflib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.repeated_keys import find_repeated_key

#: The maximum number of unknown fields named in an error.
MOST_NAMED = 20
_Fields = dict[str, msgspec.Raw]


class Unknown(NamedTuple):
    """A field that does not exist: its path as written, and the name that was probably meant, if any."""

    path: str
    meant: str


class Repeated(NamedTuple):
    """A field that is given under two names: both paths as written."""

    path: str
    first: str


class Translation(NamedTuple):
    """JSON with every known field under its canonical name."""

    data: bytes
    #: Paths that were written differently: canonical path to path as written.
    written: dict[str, str]
    unknown: list[Unknown]
    repeated: list[Repeated]
    #: The path of a key that is given twice, or nothing.
    twice: str


def translate(data: bytes, kind: Any) -> Translation:
    """Rename the fields of ``data`` to the names that ``kind`` decodes. Raw values, such as payloads, are not changed.

    If a field is given under two names, the first is kept. A struct lists aliases for its fields in ``OTHER_NAMES``: by
    attribute, in snake_case.
    """
    walk = _Walk()
    renamed = walk.value(data, _flattened(_type_info(kind)), "", "")
    return Translation(bytes(renamed), walk.written, walk.unknown, walk.repeated, walk.twice)


def path_as_written(path: str, written: Mapping[str, str]) -> str:
    """Return ``path`` with the names that the client used."""
    ends = [place for place, letter in enumerate(path) if letter in ".["] if written else []
    for end in [len(path), *reversed(ends)]:
        if path[:end] in written:
            return written[path[:end]] + path[end:]
    return path


def suggest(name: str, known: Sequence[str]) -> str:
    """Return the known name that ``name`` was probably meant to be, or nothing."""
    plain = {_plain(one): one for one in known}
    wanted = _plain(name[:100])
    if wanted in plain:
        return plain[wanted]
    if close := difflib.get_close_matches(wanted, plain, 1, cutoff=0.75):
        return plain[close[0]]
    # "cron" was meant to be cronExpression, "timeoutSeconds" to be timeout.
    begun = [one for one in plain if len(wanted) > 3 and (one.startswith(wanted) or wanted.startswith(one))]
    return plain[max(begun, key=len)] if begun else ""


def explain_unknown(unknown: Sequence[Unknown]) -> Invalid:
    """Return one error for all unknown fields."""
    first, *others = unknown[:MOST_NAMED]
    reason = "is no field of this"
    if others:
        names = " and ".join(filter(None, (", ".join(one.path for one in others[:-1]), others[-1].path)))
        more = f", and {len(unknown) - MOST_NAMED} more" if len(unknown) > MOST_NAMED else ""
        reason += f", nor {'is' if len(others) == 1 else 'are'} {names}{more}"
    meant = [one for one in unknown[:MOST_NAMED] if one.meant]
    if not meant:
        return Invalid(first.path, reason, "check their spelling" if others else "check its spelling")
    if not others:
        return Invalid(first.path, reason, f"did you mean `{first.meant}`?")
    hint = ", ".join(f"`{one.meant}` for {one.path}" for one in meant)
    return Invalid(first.path, reason, f"did you mean {hint}?")


def explain_names(repeated: Sequence[Repeated], unknown: Sequence[Unknown]) -> Invalid:
    """Return one error for all repeated and all unknown fields."""
    if not repeated:
        return explain_unknown(unknown)
    first, *others = repeated[:MOST_NAMED]
    reasons = [f"is another name of {first.first}, which is given as well"]
    reasons += [f"{one.path} is another name of {one.first}" for one in others]
    hint = "keep one of them"
    if unknown:
        found = explain_unknown(unknown)
        reasons.append(f"{found.field} {found.reason}")
        hint = f"{hint}; {found.hint}"
    return Invalid(first.path, "; ".join(reasons), hint)


class _Walk:
    def __init__(self) -> None:
        self.written: dict[str, str] = {}
        self.unknown: list[Unknown] = []
        self.repeated: list[Repeated] = []
        self.twice = ""

    def value(self, data: bytes | msgspec.Raw, kinds: Sequence[inspect.Type], path: str, written: str) -> msgspec.Raw:
        """Rename within a value. ``path``: its path with canonical names; ``written``: its path as written."""
        text = bytes(data)
        begins = text.lstrip()[:1]
        for one in kinds:
            if isinstance(one, inspect.StructType) and begins == b"{":
                return self._struct(text, one, path, written)
            if isinstance(one, inspect.DictType) and begins == b"{":
                pairs = self._pairs(text, written)
                return _encode(
                    {
                        name: self.value(value, _flattened(one.value_type), *_joined(path, written, name, name))
                        for name, value in pairs.items()
                    }
                )
            if isinstance(one, inspect.ListType | inspect.VarTupleType) and begins == b"[":
                items = msgspec.json.decode(text, type=list[msgspec.Raw])
                return _encode(
                    [
                        self.value(item, _flattened(one.item_type), f"{path}[{number}]", f"{written}[{number}]")
                        for number, item in enumerate(items)
                    ]
                )
        return msgspec.Raw(text)

    def _pairs(self, text: bytes, written: str) -> _Fields:
        pairs = msgspec.json.decode(text, type=_Fields)
        if not self.twice and (key := find_repeated_key(text, pairs)):
            _, self.twice = _joined("", written, key, key)
        return pairs

    def _struct(self, text: bytes, kind: inspect.StructType, path: str, written: str) -> msgspec.Raw:
        names = _names(kind.cls)
        given: dict[str, str] = {}
        renamed: dict[str, msgspec.Raw] = {}
        for name, value in self._pairs(text, written).items():
            known = names.get(name)
            shown = name if name.isprintable() and len(name) <= 80 else f"{name[:80]!r}"
            if known is None:
                if kind.cls.__struct_config__.forbid_unknown_fields:
                    _, place = _joined(path, written, name, shown)
                    # Names of this API come last: ``suggest`` prefers the later of two that differ in spelling alone.
                    own = [field.encode_name for field in kind.fields]
                    self.unknown.append(Unknown(place, suggest(name, [*names, *own])))
                continue
            own_name, kinds = known
            inner, place = _joined(path, written, own_name, shown)
            if own_name in given:
                self.repeated.append(Repeated(place, given[own_name]))
                continue
            given[own_name] = place
            if inner != place:
                self.written[inner] = place
            renamed[own_name] = self.value(value, kinds, inner, place)
        return _encode(renamed)


def _encode(value: _Fields | list[msgspec.Raw]) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


@cache
def _type_info(kind: Any) -> inspect.Type:
    """Return the type information of a type; cached, as it takes milliseconds."""
    return inspect.type_info(kind)


@cache
def _names(kind: type[msgspec.Struct]) -> dict[str, tuple[str, list[inspect.Type]]]:
    """Return every name of every field, each with its canonical name and its types."""
    others: Mapping[str, Sequence[str]] = getattr(kind, "OTHER_NAMES", {})
    found = _type_info(kind)
    assert isinstance(found, inspect.StructType)
    names: dict[str, tuple[str, list[inspect.Type]]] = {}
    for field in found.fields:
        known = (field.encode_name, _flattened(field.type))
        for name in (field.encode_name, field.name, *others.get(field.name, ())):
            names[name] = names[_camel(name)] = known
    return names


def _flattened(kind: inspect.Type) -> list[inspect.Type]:
    if isinstance(kind, inspect.Metadata):
        return _flattened(kind.type)
    if isinstance(kind, inspect.UnionType):
        return [one for part in kind.types for one in _flattened(part)]
    return [kind]


def _joined(path: str, written: str, name: str, shown: str) -> tuple[str, str]:
    return (f"{path}.{name}" if path else name), (f"{written}.{shown}" if written else shown)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest) if "_" in name else name


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()
