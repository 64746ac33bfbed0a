"""A function's arguments as JSON: named, typed, checked before they are stored and after they are read."""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_type_hints

import msgspec

from mainspring.domain.errors import Invalid
from mainspring.domain.run import HeldRun
from mainspring.sdk.context import Context, context_of

_encode = msgspec.json.Encoder().encode
#: JSON has strings and arrays for them; without an annotation nobody makes them again of these.
_TYPED_ONLY = (bytes, bytearray, memoryview, set, frozenset)
_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Arguments:
    """Turns a call into a payload and a payload into a call. The payload is a JSON object of the parameters."""

    def __init__(self, task: str, function: Callable[..., object]) -> None:
        self._signature = inspect.signature(function)
        try:
            hints = get_type_hints(function)
        except (NameError, TypeError) as error:
            raise Invalid(task, f"its annotations cannot be read: {error}") from error
        #: The function wants a context, before its other arguments.
        self.wants_context = False
        fields: list[tuple[str, type] | tuple[str, type, object]] = []
        for name, parameter in self._signature.parameters.items():
            if hints.get(name) is Context:
                if name != next(iter(self._signature.parameters)):
                    raise Invalid(task, f"{name} must be the first parameter", "the context comes first")
                self.wants_context = True
                continue
            if parameter.kind not in _KINDS:
                raise Invalid(task, f"parameter {parameter} has no name of its own", "payloads are JSON objects")
            kind = hints.get(name, Any)
            fields.append((name, kind) if parameter.default is parameter.empty else (name, kind, parameter.default))
        if self.wants_context:
            self._signature = self._signature.replace(parameters=list(self._signature.parameters.values())[1:])
        self._names = tuple(field[0] for field in fields)
        #: What is read back as whatever JSON made of it.
        self._untyped = {field[0] for field in fields if field[1] in (Any, object)}
        try:
            shape = msgspec.defstruct("Payload", fields, kw_only=True, forbid_unknown_fields=True)
            self._decode = msgspec.json.Decoder(shape).decode
        except (TypeError, ValueError) as error:
            raise Invalid(task, f"its parameters cannot be read from JSON: {error}") from error

    def encode(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> bytes:
        """The payload of a call, checked as the worker will check it."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise Invalid("arguments", str(error)) from None
        if not self._names:
            return b"{}"
        try:
            payload = _encode(bound.arguments)
            values = self._decode(payload)
            if self._untyped or payload.find(b"null") >= 0:
                for name, value in bound.arguments.items():
                    if getattr(values, name) != value:
                        self._check_said(name, value)
        except (msgspec.ValidationError, TypeError, ValueError, OverflowError) as error:
            raise Invalid("arguments", str(error)) from None
        return payload

    def _check_said(self, name: str, value: object) -> None:
        """Refuse an argument that JSON would quietly make something else of. A tuple may become a list."""
        odd = _not_a_number(value)
        if odd is not None:
            raise Invalid("arguments", f"`{name}` holds {odd}, which JSON cannot say")
        for leaf in _leaves(value) if name in self._untyped else ():
            if isinstance(leaf, _TYPED_ONLY):
                kind = type(leaf).__name__
                raise Invalid("arguments", f"`{name}` holds {kind}, which JSON cannot say", "annotate the parameter")

    def decode(self, held: HeldRun) -> tuple[tuple[Context, ...], dict[str, object]]:
        """The call that a run stands for: the context, if the function wants one, and the named arguments."""
        first = (context_of(held),) if self.wants_context else ()
        if not self._names:
            return first, {}
        try:
            values = self._decode(b"{}" if held.payload == b"null" else held.payload)
        except msgspec.MsgspecError as error:
            raise Invalid("payload", str(error)) from None
        return first, {name: getattr(values, name) for name in self._names}


def encode_result(result: object) -> bytes | None:
    """A handler's result as JSON; nothing for nothing."""
    if result is None:
        return None
    try:
        encoded = _encode(result)
    except (TypeError, ValueError, OverflowError) as error:
        raise Invalid("result", f"cannot be written as JSON: {error}") from None
    if encoded.find(b"null") >= 0 and (odd := _not_a_number(result)) is not None:
        raise Invalid("result", f"holds {odd}, which JSON cannot say")
    return encoded


def _not_a_number(value: object) -> str | None:
    """A float in it that would be written as null."""
    leaves = _leaves(msgspec.to_builtins(value))
    return next((str(leaf) for leaf in leaves if isinstance(leaf, float) and not math.isfinite(leaf)), None)


def _leaves(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    else:
        yield value
