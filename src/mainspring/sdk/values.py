"""Python values as JSON, and back; refuses what JSON would quietly make something else of."""

import math
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, get_args

import msgspec

from mainspring.domain.errors import Invalid
from mainspring.domain.verdicts import InvalidResult


def to_json(value: object) -> object:
    """Encode a model of Pydantic with the names that it reads: its aliases, or those of its fields."""
    model: Any = type(value)
    if not hasattr(model, "model_dump"):
        raise TypeError(f"{model.__name__} cannot be written as JSON")
    by_name = model.model_dump(value, mode="json", by_alias=False)
    by_alias = model.model_dump(value, mode="json", by_alias=True)
    if by_alias != by_name:
        with suppress(ValueError):
            model.model_validate(by_alias)
            return by_alias
    return by_name


def from_json(kind: Any, value: object) -> object:
    if kind is object:
        return value
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
        raise InvalidResult(field, f"cannot be written as JSON: {error}") from None
    if encoded.find(b"null") >= 0 and (odd := not_a_number(result)) is not None:
        raise InvalidResult(field, f"holds {odd}, which JSON cannot say")
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


class _AcceptsAll(type):
    """msgspec checks that the value of a custom type is an instance of it."""

    def __instancecheck__(cls, value: object) -> bool:
        return True


def with_constraints(task: str, kind: Any) -> Any:
    """The type itself, or one that Pydantic reads if the annotation has constraints of Pydantic or annotated-types.

    msgspec reads its own constraints (``msgspec.Meta``) and ignores all others.
    """
    if not _has_foreign_constraints(kind):
        return kind
    try:
        import pydantic

        adapter: Any = pydantic.TypeAdapter(kind)
    except ImportError:
        raise Invalid(
            task, f"the constraints of {kind!r} need Pydantic", "msgspec.Meta needs no other package"
        ) from None
    except pydantic.PydanticUserError as error:
        raise Invalid(task, f"its annotation {kind!r} cannot be read: {error.message.splitlines()[0]}") from None
    methods = {"model_validate": staticmethod(adapter.validate_python), "model_json_schema": adapter.json_schema}
    return _AcceptsAll(str(kind), (), methods)


def _has_foreign_constraints(kind: Any) -> bool:
    constraints = getattr(kind, "__metadata__", ())
    modules = {type(one).__module__.partition(".")[0] for one in constraints}
    return bool(modules & {"pydantic", "annotated_types"}) or any(map(_has_foreign_constraints, get_args(kind)))
