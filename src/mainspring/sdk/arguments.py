"""A function's arguments as JSON: named, typed, checked before they are stored and after they are read."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

import msgspec

from mainspring.domain.errors import Invalid
from mainspring.domain.run import HeldRun
from mainspring.sdk.context import Context, context_of

_encode = msgspec.json.Encoder().encode
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
            self._decode(payload)
        except (msgspec.ValidationError, TypeError, ValueError, OverflowError) as error:
            raise Invalid("arguments", str(error)) from None
        return payload

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
        return _encode(result)
    except (TypeError, ValueError, OverflowError) as error:
        raise Invalid("result", f"cannot be written as JSON: {error}") from None
