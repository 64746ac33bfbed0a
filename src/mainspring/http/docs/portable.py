"""Rewrite schemas into a form that client generators turn into code that compiles and keeps every value.

Generators for Go and Java have no working union of a string, a number and a list. They read a number without a
format as 32 bits.
"""

from typing import Any

#: Marks a shorthand form of a value, such as a number of seconds for a duration. Put it into ``extra_json_schema``.
SHORTHAND = {"x-shorthand": True}
_NULL = {"type": "null"}
_INT32 = 2**31


def make_portable(value: Any, *, unions: bool) -> Any:
    """Rewrite every schema inside ``value``.

    ``unions`` keeps unions with all their forms. Without it a union loses its short forms, and becomes any JSON if
    several forms are left.
    """
    if isinstance(value, list):
        return [make_portable(item, unions=unions) for item in value]
    if not isinstance(value, dict):
        return value
    schema = {key: make_portable(item, unions=unions) for key, item in value.items() if key != "x-shorthand"}
    if isinstance(choices := value.get("anyOf"), list):
        kept = [make_portable(choice, unions=unions) for choice in choices if unions or "x-shorthand" not in choice]
        schema = _join(schema, kept, unions=unions)
    kind = schema.get("type")
    if kind is None and _is_words(schema.get("enum")):
        return {"type": "string", **schema}
    if kind in ("integer", ["integer", "null"]):
        schema["format"] = _integer_format(schema)
    elif kind in ("number", ["number", "null"]):
        schema["format"] = "double"
    return schema


def _join(schema: dict[str, Any], choices: list[Any], *, unions: bool) -> dict[str, Any]:
    """Replace ``anyOf`` by its choices, without an ``anyOf`` where that is possible."""
    rest = {key: item for key, item in schema.items() if key != "anyOf"}
    forms = [choice for choice in choices if choice != _NULL]
    if len(forms) > 1:
        return {**rest, "anyOf": choices} if unions else rest
    [form] = forms
    if len(choices) > 1 and "$ref" in form:
        return {**rest, "anyOf": choices}
    if len(choices) > 1:
        form = {**form, "type": [form["type"], "null"]} if "type" in form else form
        form = {**form, "enum": [*form["enum"], None]} if "enum" in form else form
    words = " ".join(each["description"] for each in (rest, form) if "description" in each)
    return {**form, **rest, **({"description": words} if words else {})}


def _integer_format(schema: dict[str, Any]) -> str:
    lowest, highest = schema.get("minimum", -_INT32 - 1), schema.get("maximum", _INT32)
    return "int32" if lowest >= -_INT32 and highest < _INT32 else "int64"


def _is_words(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)
