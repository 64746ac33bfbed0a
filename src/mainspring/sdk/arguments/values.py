"""Converts Python values to JSON and back, and refuses values that JSON would silently change."""

import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import is_dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.runs.handler_errors import InvalidResult


def to_json(value: object) -> object:
    """Encode a model of Pydantic with the names that it reads: its aliases, or those of its fields."""
    model: Any = type(value)
    if not hasattr(model, "model_dump"):
        raise TypeError(f"{model.__name__} cannot be written as JSON")
    try:
        by_name = model.model_dump(value, mode="json", by_alias=False)
    except ValueError as error:
        hint = 'for bytes set model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")'
        raise ValueError(f"{model.__name__} cannot be written as JSON: {error} ({hint})") from None
    by_alias = model.model_dump(value, mode="json", by_alias=True)
    if by_alias != by_name:
        with suppress(ValueError):
            model.model_validate_json(msgspec.json.encode(by_alias))
            return by_alias
    return by_name


def from_json(kind: Any, value: object) -> object:
    """Read a model of Pydantic. In JSON mode: strict models then accept the text of a date, and bytes in Base64."""
    if kind is object:
        return value
    read = getattr(kind, "model_validate_json", None)
    if read is None:
        raise TypeError(f"{kind!r} cannot be read from JSON")
    text = msgspec.json.encode(value)
    try:
        return read(text)
    except ValueError:
        # ``to_json`` writes the names of fields if no alias is both written and read. TypeError: an old Pydantic.
        with suppress(ValueError, TypeError):
            return read(text, by_alias=True, by_name=True)
        raise


encode = msgspec.json.Encoder(enc_hook=to_json).encode


def encode_result(result: object, field: str = "result") -> bytes | None:
    """Encode the result of a handler as JSON. None stays None."""
    if result is None:
        return None
    try:
        encoded = encode(result)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidResult(field, f"cannot be written as JSON: {error}") from None
    if encoded.find(b"null") >= 0 and (odd := find_not_a_number(result)) is not None:
        raise InvalidResult(field, f"holds {odd}, which JSON cannot say")
    return encoded


def find_not_a_number(value: object) -> str | None:
    """Return the first non-finite float in a value, which JSON would write as null."""
    found = list_leaves(msgspec.to_builtins(value, enc_hook=to_json))
    return next((str(leaf) for leaf in found if isinstance(leaf, float) and not math.isfinite(leaf)), None)


def list_leaves(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from list_leaves(item)
    else:
        yield value


class _AcceptsAll(type):
    """msgspec checks that the value of a custom type is an instance of it."""

    def __instancecheck__(cls, value: object) -> bool:
        return True


def choose_type(task: str, what: str, kind: Any) -> Any:
    """Return the type itself, or a type that Pydantic reads if msgspec does not read it in full.

    msgspec reads its own constraints (``msgspec.Meta``). It ignores those of Pydantic and annotated-types, also on
    the fields of a dataclass, TypedDict or NamedTuple, and it reads no unions with Pydantic models. Raises
    ``Invalid`` for a type that cannot be read from JSON. ``what`` names the argument or the result in that error.
    """
    by_pydantic = _has_foreign_constraints(kind) or any(map(_unites_models, _nested(kind)))
    chosen = _read_by_pydantic(task, what, kind) if by_pydantic else kind
    try:
        for one in _nested(kind) if by_pydantic else ():
            if _unites_models(one):
                # Two dates, or a string and a UUID, are ambiguous even in a union with a model.
                msgspec.json.Decoder(Union[tuple(part for part in get_args(one) if not _is_model(part)) or None])  # noqa: UP007
        msgspec.json.Decoder(chosen, dec_hook=from_json)
        odd = _without_json(msgspec.inspect.type_info(chosen), set())
    except (TypeError, ValueError) as error:
        raise Invalid(task, f"{what} cannot be read from JSON: {error}") from error
    if odd is not None:
        hint = "a plain type, dataclass, TypedDict, msgspec.Struct or model of Pydantic"
        raise Invalid(task, f"{what} cannot be read from JSON: there is no form for {odd}", hint)
    return chosen


def _without_json(info: object, seen: set[int]) -> str | None:
    """Return the first type without a JSON form in a type description by msgspec."""
    if id(info) in seen:
        return None
    seen.add(id(info))
    if isinstance(info, msgspec.inspect.CustomType):
        known = info.cls is object or hasattr(info.cls, "model_validate_json")
        return None if known else getattr(info.cls, "__qualname__", str(info.cls))
    if isinstance(info, msgspec.inspect.DictType) and isinstance(info.key_type, _NO_KEYS):
        return "a key of a dict that is not a plain type"
    if isinstance(info, msgspec.inspect.Type | msgspec.inspect.Field):
        parts = [getattr(info, name) for name in info.__struct_fields__]
    else:
        parts = list(info) if isinstance(info, tuple) else []
    return next((odd for part in parts if (odd := _without_json(part, seen)) is not None), None)


#: Types that cannot be keys of a JSON object.
_NO_KEYS = (
    msgspec.inspect.CollectionType,
    msgspec.inspect.CustomType,
    msgspec.inspect.DataclassType,
    msgspec.inspect.DictType,
    msgspec.inspect.NamedTupleType,
    msgspec.inspect.NoneType,
    msgspec.inspect.StructType,
    msgspec.inspect.TupleType,
    msgspec.inspect.TypedDictType,
)


def _read_by_pydantic(task: str, what: str, kind: Any) -> Any:
    try:
        import pydantic
    except ImportError:
        raise Invalid(
            task, f"{what}: the constraints of {kind!r} need Pydantic", "msgspec.Meta needs no other package"
        ) from None
    try:
        try:
            # The same encoding of bytes as msgspec.
            adapter = pydantic.TypeAdapter(kind, config=pydantic.ConfigDict(val_json_bytes="base64"))
        except pydantic.PydanticUserError as error:
            if error.code != "type-adapter-config-unused":
                raise
            adapter = pydantic.TypeAdapter(kind)
    except pydantic.PydanticUserError as error:
        raise Invalid(task, f"{what}: {kind!r} cannot be read: {error.message.splitlines()[0]}") from None
    methods = {"model_validate_json": staticmethod(adapter.validate_json), "model_json_schema": adapter.json_schema}
    return _AcceptsAll(str(kind), (), methods)


def _nested(kind: Any) -> Iterator[Any]:
    """Yield an annotation and all types inside its brackets."""
    yield kind
    for part in get_args(kind):
        yield from _nested(part)


def _has_foreign_constraints(kind: Any, seen: set[Any] | None = None) -> bool:
    seen = set() if seen is None else seen
    for part in _nested(kind):
        if hasattr(part, "__pydantic_core_schema__") and not _is_model(part):
            # A Pydantic dataclass has checks beyond its annotations.
            return True
        constraints = getattr(part, "__metadata__", ())
        if any(type(one).__module__.partition(".")[0] in ("pydantic", "annotated_types") for one in constraints):
            return True
        if isinstance(part, type) and not _is_model(part) and part not in seen:
            seen.add(part)
            if any(_has_foreign_constraints(field, seen) for field in _fields(part)):
                return True
    return False


#: Attributes that identify a NamedTuple, a Struct, and a TypedDict of any module.
_HAS_FIELDS = ("_fields", "__struct_fields__", "__required_keys__")


def _fields(kind: type) -> Iterable[Any]:
    """Return the annotations of a dataclass, TypedDict, NamedTuple or Struct."""
    if not (is_dataclass(kind) or any(hasattr(kind, mark) for mark in _HAS_FIELDS)):
        return ()
    try:
        return get_type_hints(kind, include_extras=True).values()
    except (NameError, TypeError):
        # msgspec refuses it later with the reason.
        return ()


def _unites_models(kind: Any) -> bool:
    """Return whether a type is a union of a Pydantic model and anything but None."""
    parts = [part for part in get_args(kind) if part is not NoneType] if get_origin(kind) in (Union, UnionType) else []
    return len(parts) > 1 and any(map(_is_model, parts))


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "model_validate_json")
