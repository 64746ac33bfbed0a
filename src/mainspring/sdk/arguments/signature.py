"""Converts the arguments of a function to JSON and back, with validation in both directions."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Never, NoReturn, get_type_hints

import msgspec

from mainspring.core.model.base.decode_errors import explain_decode_error
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.runs.handler_errors import InvalidPayload
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.model.tasks.argument_schema import describe_arguments
from mainspring.sdk.arguments.values import choose_type, encode, find_not_a_number, from_json, list_leaves
from mainspring.sdk.context import Context, build_context

#: JSON turns these into strings and arrays; without an annotation they cannot be restored.
_TYPED_ONLY = (bytes, bytearray, memoryview, set, frozenset)
_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Marker:
    """The default of a parameter that the worker fills, so it is not an argument of the call."""


class Arguments:
    """Converts a call to a payload and back. The payload is a JSON object with the parameters."""

    def __init__(
        self,
        task: str,
        function: Callable[..., object],
        upgrade: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    ) -> None:
        """``upgrade`` converts the payload of an older version of the function."""
        self._task = task
        self._upgrade = upgrade
        self._signature = inspect.signature(function)
        try:
            hints = get_type_hints(function, include_extras=True)
        except (NameError, TypeError) as error:
            raise Invalid(task, f"its annotations cannot be read: {error}") from error
        #: Whether the function takes a context as its first parameter.
        self.wants_context = False
        #: The application for the context, and the function that provides the values of marked parameters.
        self.app: Any = None
        self.provide: Callable[[], Mapping[str, object]] | None = None
        #: The parameters that the worker fills, by name.
        self.markers: dict[str, Marker] = {}
        #: The annotations of these parameters.
        self.marked: dict[str, Any] = {}
        fields: list[tuple[str, type] | tuple[str, type, object]] = []
        for name, parameter in self._signature.parameters.items():
            if hints.get(name) is Context:
                if name != next(iter(self._signature.parameters)):
                    raise Invalid(task, f"{name} must be the first parameter", "the context comes first")
                self.wants_context = True
                continue
            if isinstance(parameter.default, Marker):
                self.markers[name] = parameter.default
                self.marked[name] = hints.get(name, Any)
                continue
            if parameter.kind not in _KINDS:
                raise Invalid(task, f"parameter {parameter} has no name of its own", "payloads are JSON objects")
            kind = choose_type(task, f"the argument {name!r}", hints.get(name, Any))
            fields.append((name, kind) if parameter.default is parameter.empty else (name, kind, parameter.default))
        self._full = self._signature
        if self.wants_context or self.markers:
            parameters = list(self._signature.parameters.values())[int(self.wants_context) :]
            self._full = self._signature.replace(parameters=parameters)
            arguments = [parameter for parameter in parameters if parameter.name not in self.markers]
            self._signature = self._signature.replace(parameters=arguments)
        returned = hints.get("return", Any)
        # A function that always raises.
        returned = Any if returned in (Never, NoReturn) else returned
        self._result: Any = choose_type(task, "its result", returned)
        #: The names of the arguments of a call.
        self.names = tuple(field[0] for field in fields)
        #: The arguments without a type, which are read back as plain JSON values.
        self._untyped = {field[0] for field in fields if field[1] in (Any, object)}
        try:
            shape = msgspec.defstruct("Payload", fields, kw_only=True, forbid_unknown_fields=True)
            self._shape = shape
            self._decode = msgspec.json.Decoder(shape, dec_hook=from_json).decode
        except (TypeError, ValueError) as error:
            raise Invalid(task, f"its parameters cannot be read from JSON: {error}") from error

    def encode(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> bytes:
        """Encode the payload of a call, validated as the worker will validate it."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise Invalid("arguments", str(error)) from None
        if not self.names:
            return b"{}"
        try:
            payload = encode(bound.arguments)
            values = self._decode(payload)
            if self._untyped or payload.find(b"null") >= 0:
                for name, value in bound.arguments.items():
                    if getattr(values, name) != value:
                        self._check_said(name, value)
        except (msgspec.ValidationError, TypeError, ValueError, OverflowError) as error:
            raise Invalid("arguments", str(error)) from None
        return payload

    @property
    def upgrades(self) -> bool:
        """Whether the worker upgrades payloads that do not fit."""
        return self._upgrade is not None

    def schema(self) -> dict[str, object]:
        """Return the arguments as JSON Schema."""
        return describe_arguments(self._shape)

    @property
    def first(self) -> str:
        """The name of the first argument; empty if there is none."""
        return self.names[0] if self.names else ""

    def encode_item(self, item: object) -> bytes:
        """Encode the payload of a call with one argument."""
        return self.encode((item,), {})

    def fill_in_defaults(self, payload: bytes) -> bytes:
        """Return the payload with the default values that the call left out."""
        return encode(msgspec.structs.asdict(self._decode(payload)))

    def _check_said(self, name: str, value: object) -> None:
        """Refuse an argument that JSON would silently change. A tuple may become a list."""
        odd = find_not_a_number(value)
        if odd is not None:
            raise Invalid("arguments", f"`{name}` holds {odd}, which JSON cannot say")
        for leaf in list_leaves(value) if name in self._untyped else ():
            if isinstance(leaf, _TYPED_ONLY):
                kind = type(leaf).__name__
                raise Invalid("arguments", f"`{name}` holds {kind}, which JSON cannot say", "annotate the parameter")

    def decode(self, held: HeldRun) -> tuple[tuple[Context, ...], dict[str, object]]:
        """Decode a run into a call: the context, if the function takes one, and the named arguments."""
        first = (build_context(held, self.app),) if self.wants_context else ()
        named: dict[str, object] = {} if self.provide is None else dict(self.provide())
        if self.names:
            values = self._read(b"{}" if held.payload == b"null" else held.payload)
            for name in self.names:
                named[name] = getattr(values, name)
        return first, named

    def check_direct(self, task: str, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        """Refuse a direct call without the values that only a worker provides."""
        given = self._full.bind_partial(*args, **kwargs).arguments
        for name in self.markers:
            if name not in given:
                raise Invalid("arguments", f"`{name}` is there in a worker only", f"give one: {task}(…, {name}=…)")

    def _read(self, payload: bytes) -> Any:
        try:
            return self._decode(payload)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            if self._upgrade is None:
                raise self._misfit(error, payload) from None
        # The run was submitted before the parameters changed.
        try:
            upgraded = encode(self._upgrade(msgspec.json.decode(payload, type=dict[str, Any])))
        except Exception as error:
            raise InvalidPayload("payload", f"does not fit and cannot be upgraded: {error!r}") from error
        try:
            return self._decode(upgraded)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise self._misfit(error, upgraded, "does not fit, upgraded or not: ") from None

    def _misfit(self, error: Exception, payload: bytes, beginning: str = "") -> InvalidPayload:
        """Build an error that names the argument that does not fit."""
        if not isinstance(error, msgspec.MsgspecError):
            reason = "is nested too deeply" if isinstance(error, RecursionError) else str(error)
            return InvalidPayload("payload", beginning + reason)
        found = explain_decode_error(error, self._shape, payload)
        return InvalidPayload(f"payload.{found.field}".rstrip("."), beginning + found.reason, found.hint)

    def read_result(self, result: bytes | None) -> Any:
        """Decode the result of the function by its return annotation."""
        if result is None:
            return None
        if self._result is Any:
            return msgspec.json.decode(result)
        try:
            return msgspec.json.decode(result, type=self._result, dec_hook=from_json)
        except (msgspec.ValidationError, ValueError) as error:
            raise Invalid("result", f"is not what {self._task!r} declares to return: {error}") from None
