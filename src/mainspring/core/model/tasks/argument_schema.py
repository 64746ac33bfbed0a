"""The arguments of a task as JSON Schema, and checks of payloads against such a schema.

A check decodes the payload with msgspec, as the worker does, so that both agree. Keywords that msgspec cannot express
are not checked: the worker still refuses payloads that it cannot decode.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import GenericAlias
from typing import Annotated, Any, Literal, Union

import msgspec
from msgspec import UNSET, Meta, UnsetType

from mainspring.core.model.base.decode_errors import explain_decode_error
from mainspring.core.model.base.errors import Invalid

Schema = Mapping[str, object]
#: A larger schema is replaced by the names of the arguments.
MAX_SCHEMA = 64 * 1024
#: The defaults of arguments with such names are omitted: they may come from the environment.
_is_private = re.compile(r"passw|secret|token|credential|api_?key|private", re.IGNORECASE).search
_REFERENCE = "#/$defs/"
_STRINGS = (("minLength", "min_length"), ("maxLength", "max_length"), ("pattern", "pattern"))
_NUMBERS = (
    ("minimum", "ge"),
    ("exclusiveMinimum", "gt"),
    ("maximum", "le"),
    ("exclusiveMaximum", "lt"),
    ("multipleOf", "multiple_of"),
)
#: Raised for types and bounds that msgspec does not support.
_INEXPRESSIBLE = (TypeError, ValueError, OverflowError, RecursionError, re.error)
_ITEMS = (("minItems", "min_length"), ("maxItems", "max_length"))


def describe_arguments(shape: type[msgspec.Struct]) -> dict[str, object]:
    """Return the JSON Schema of a struct whose fields are the arguments of a task."""
    names = shape.__struct_encode_fields__
    if not names:
        # The function ignores its payload.
        return {"properties": {}}
    defined: dict[str, object] = {}
    properties: dict[str, dict[str, object]] = {}
    for field in msgspec.structs.fields(shape):
        properties[field.encode_name] = _describe(field.type, defined)
        if _is_private(field.encode_name):
            continue
        default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        with suppress(TypeError, ValueError, OverflowError):
            if default not in (msgspec.NODEFAULT, UNSET):
                # In its JSON form.
                default = msgspec.json.decode(msgspec.json.encode(default))
                properties[field.encode_name] = {**properties[field.encode_name], "default": default}
    found: dict[str, object] = {"type": "object", "properties": properties, "additionalProperties": False}
    required = [field.encode_name for field in msgspec.structs.fields(shape) if field.required]
    if required:
        found["required"] = required
    if defined:
        found["$defs"] = defined
    if len(msgspec.json.encode(found)) <= MAX_SCHEMA:
        return found
    return {"type": "object", "properties": {name: {} for name in names}}


def _describe(kind: Any, defined: dict[str, object]) -> dict[str, object]:
    """Return the schema of one type; a type that cannot be expressed allows any value."""
    models: dict[str, object] = {}
    try:
        (schema,), components = msgspec.json.schema_components(
            (kind,), schema_hook=lambda custom: _describe_custom(custom, models), ref_template=_REFERENCE + "{name}"
        )
    except _INEXPRESSIBLE:
        return {}
    defined.update(components)
    defined.update(models)
    return schema


def _describe_custom(kind: Any, defined: dict[str, object]) -> dict[str, object]:
    """Return the schema of a Pydantic model; other types allow any value."""
    describe = getattr(kind, "model_json_schema", None)
    if describe is None:
        return {"title": getattr(kind, "__name__", str(kind))}
    schema: dict[str, Any] = describe()
    by_name: dict[str, Any] = describe(by_alias=False)
    inner = schema.pop("$defs", {})
    for name, model in inner.items():
        _allow_names(model, by_name["$defs"][name])
    _allow_names(schema, by_name)
    defined.update(inner)
    return schema


def _allow_names(schema: dict[str, Any], by_name: Mapping[str, Any]) -> None:
    """Let a field with an alias be given under its own name, too: workers read both, and calls may be written so."""
    aliases = schema.get("properties", {}).keys() - by_name.get("properties", {}).keys()
    if aliases:
        schema["required"] = [name for name in schema.get("required", ()) if name not in aliases]
        schema.pop("additionalProperties", None)


Check = Callable[[bytes], None]


def compile_check(task: str, schema: Schema) -> Check | None:
    """Return a function that raises ``Invalid`` for a payload that does not match; None if every payload matches."""
    kind = _Kinds(schema).read(schema)
    if kind is Any:
        return None
    decode = msgspec.json.Decoder(kind).decode
    properties = schema.get("properties")
    names = ", ".join(properties) if isinstance(properties, Mapping) else ""

    def check(payload: bytes) -> None:
        payload = b"{}" if payload == b"null" else payload
        try:
            decode(payload)
        except RecursionError:
            raise Invalid("payload", "is nested too deeply") from None
        except msgspec.MsgspecError as error:
            found = explain_decode_error(error, kind, payload)
            field = f"payload.{found.field}".rstrip(".")
            reason = found.reason
            if found.reason == "is no field of this":
                reason = f"is no argument of task {task!r}" if "." not in found.field else found.reason
            raise Invalid(field, reason, found.hint if found.hint[:5] != "check" else f"it takes {names}") from None

    return check


class _Kinds:
    """Converts schemas into types that msgspec decodes. ``Any`` stands for schemas that it cannot express."""

    def __init__(self, root: Schema) -> None:
        defined = root.get("$defs")
        self._defined: Mapping[str, object] = defined if isinstance(defined, Mapping) else {}
        self._known: dict[str, Any] = {}

    def read(self, schema: object) -> Any:
        if not isinstance(schema, Mapping):
            return Any
        try:
            kind = self._read(schema)
            msgspec.json.Decoder(kind)
        except _INEXPRESSIBLE:
            return Any
        return kind

    def _read(self, schema: Schema) -> Any:
        reference = schema.get("$ref")
        if isinstance(reference, str):
            return self._referred(reference.removeprefix(_REFERENCE))
        for keyword in ("anyOf", "oneOf", "allOf"):
            choices = schema.get(keyword)
            if isinstance(choices, Sequence) and choices:
                return self._build_union(choices) if keyword != "allOf" or len(choices) == 1 else Any
        if "const" in schema:
            return _literal([schema["const"]])
        values = schema.get("enum")
        if isinstance(values, Sequence):
            return _literal(values)
        kind = schema.get("type")
        if isinstance(kind, Sequence) and not isinstance(kind, str):
            return self._build_union([{**schema, "type": one} for one in kind])
        return self._of_type(kind, schema)

    def _referred(self, name: str) -> Any:
        if name not in self._known:
            # Stops the recursion for a type that contains itself: the inner reference accepts any value.
            self._known[name] = Any
            self._known[name] = self.read(self._defined.get(name))
        return self._known[name]

    def _build_union(self, choices: Sequence[object]) -> Any:
        kinds = [self.read(choice) for choice in choices]
        return Any if Any in kinds else Union[tuple(kinds)]  # noqa: UP007

    def _of_type(self, kind: object, schema: Schema) -> Any:
        match kind:
            case "string":
                # msgspec reads decimals from numbers, too.
                plain: Any = str | int | float if schema.get("format") == "decimal" else str
                return plain if plain is not str else _bounded(str, schema, _STRINGS)
            case "integer":
                return _bounded(int, schema, _NUMBERS)
            case "number":
                return _bounded(float, schema, _NUMBERS)
            case "boolean":
                return bool
            case "null":
                return None
            case "array":
                return self._array(schema)
            case "object":
                return self._object(schema)
            case _:
                return Any

    def _array(self, schema: Schema) -> Any:
        places, items = schema.get("prefixItems"), schema.get("items")
        if isinstance(places, Sequence):
            whole = items is False and schema.get("minItems") == len(places)
            return GenericAlias(tuple, tuple(self.read(place) for place in places)) if whole else list[Any]
        return _bounded(GenericAlias(list, self.read(items)), schema, _ITEMS)

    def _object(self, schema: Schema) -> Any:
        properties, others = schema.get("properties"), schema.get("additionalProperties")
        if not isinstance(properties, Mapping):
            return GenericAlias(dict, (str, self.read(others)))
        required = schema.get("required")
        needed = set(required) if isinstance(required, Sequence) else set()
        fields: list[Any] = []
        renamed: dict[str, str] = {}
        for number, (name, inner) in enumerate(properties.items()):
            kind = self.read(inner)
            # A JSON name need not be a valid Python name.
            renamed[f"f{number}"] = name
            fields.append((f"f{number}", kind) if name in needed else (f"f{number}", kind | UnsetType, UNSET))
        return msgspec.defstruct("Payload", fields, kw_only=True, rename=renamed, forbid_unknown_fields=others is False)


def _literal(values: Sequence[object]) -> Any:
    plain = all(value is None or (isinstance(value, str | int) and not isinstance(value, bool)) for value in values)
    return Literal[tuple(values)] if values and plain else Any


def _bounded(kind: Any, schema: Schema, keywords: Sequence[tuple[str, str]]) -> Any:
    bounds: dict[str, Any] = {name: schema[keyword] for keyword, name in keywords if keyword in schema}
    if not bounds:
        return kind
    try:
        bounded = Annotated[kind, Meta(**bounds)]
        msgspec.json.Decoder(bounded)
    except _INEXPRESSIBLE:
        return kind
    return bounded
