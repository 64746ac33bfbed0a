"""Converts the JSON Schema of a task's arguments to the fields of a form, and the fields to a payload."""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from mainspring.http.problems import RequestFieldError
from mainspring.web.page import read_json_field

Kind: TypeAlias = Literal["text", "number", "boolean", "choice", "json"]
#: Field names are ``arg:<kind>:<argument>``.
_PREFIX = "arg"


class ArgumentField(msgspec.Struct, frozen=True, kw_only=True):
    """The form field of one argument."""

    name: str
    kind: Kind
    required: bool
    #: The JSON value that an empty field stands for. Empty if there is none.
    default: str = ""
    #: For a choice: the JSON of each value, and its label.
    options: tuple[tuple[str, str], ...] = ()
    description: str = ""

    @property
    def field(self) -> str:
        return f"{_PREFIX}:{self.kind}:{self.name}"


def read_arguments(schema: Mapping[str, Any]) -> list[ArgumentField]:
    """Return a field for each argument, in the order of the function."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return []
    required = schema.get("required", ())
    return [_build_field(name, inner, schema, name in required) for name, inner in properties.items()]


def _build_field(name: str, given: Mapping[str, Any], root: Mapping[str, Any], required: bool) -> ArgumentField:
    inner = _resolve(given, root)
    kind: Kind
    options: tuple[tuple[str, str], ...] = ()
    match inner:
        case {"enum": list(values)}:
            kind, options = "choice", tuple((_json(value), str(value)) for value in values)
        case {"type": "string"}:
            kind = "text"
        case {"type": "integer" | "number"}:
            kind = "number"
        case {"type": "boolean"}:
            kind = "boolean"
        case _:
            kind = "json"
    return ArgumentField(
        name=name,
        kind=kind,
        required=required,
        default=_json(given["default"]) if "default" in given else "",
        options=options,
        description=str(given.get("description", "")),
    )


def _resolve(inner: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow a reference. An argument that may be null gets the field of its other type, where empty means null."""
    if "$ref" in inner:
        found = root.get("$defs", {}).get(str(inner["$ref"]).rpartition("/")[2])
        return found if isinstance(found, Mapping) else {}
    choices = inner.get("anyOf")
    if isinstance(choices, list) and inner.get("default", ...) is None:
        others = [choice for choice in choices if choice != {"type": "null"}]
        return _resolve(others[0], root) if len(others) == 1 else {}
    return inner


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def build_payload(form: Mapping[str, str]) -> msgspec.Raw | None:
    """Return the payload of the argument fields, or ``None`` if the form has none."""
    found: dict[str, Any] = {}
    there = False
    for field in form:
        prefix, _, rest = field.partition(":")
        kind, _, name = rest.partition(":")
        if prefix != _PREFIX or not name:
            continue
        there = True
        text = form[field].replace("\r\n", "\n")
        if text.strip():
            found[name] = _value(form, field, kind, text)
    return msgspec.Raw(msgspec.json.encode(found)) if there else None


def _value(form: Mapping[str, str], field: str, kind: str, text: str) -> Any:
    if kind == "text":
        return text
    if kind == "number":
        try:
            return msgspec.json.decode(text.strip(), type=int | float)
        except msgspec.MsgspecError:
            raise RequestFieldError(field, "is not a number", "for example 3") from None
    return read_json_field(form, field)


def get_form_field(form: Mapping[str, str], wrong: str) -> str:
    """Return the form field for a field of the payload, such as ``payload.user_id``, or else the name itself."""
    name = wrong.partition(".")[2].partition(".")[0].partition("[")[0]
    if wrong.startswith("payload."):
        for field in form:
            if field.startswith(f"{_PREFIX}:") and field.split(":", 2)[2] == name:
                return field
    return wrong
