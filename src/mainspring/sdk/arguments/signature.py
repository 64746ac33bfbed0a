"""A function's arguments as JSON: named, typed, checked before they are stored and after they are read."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Never, NoReturn, get_type_hints

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.misread import misread
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.model.runs.verdicts import InvalidPayload
from mainspring.core.model.tasks.argument_schema import describe_arguments
from mainspring.sdk.arguments.values import encode, from_json, leaves, not_a_number, readable_type
from mainspring.sdk.context import Context, context_for

#: JSON has strings and arrays for them; without an annotation nobody makes them again of these.
_TYPED_ONLY = (bytes, bytearray, memoryview, set, frozenset)
_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Marker:
    """The default of a parameter that the worker fills: it is no argument of the call."""


class Arguments:
    """Turns a call into a payload and a payload into a call. The payload is a JSON object of the parameters."""

    def __init__(
        self,
        task: str,
        function: Callable[..., object],
        upgrade: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    ) -> None:
        """``upgrade`` turns the payload of an older version of the function into one that fits."""
        self._task = task
        self._upgrade = upgrade
        self._signature = inspect.signature(function)
        try:
            hints = get_type_hints(function, include_extras=True)
        except (NameError, TypeError) as error:
            raise Invalid(task, f"its annotations cannot be read: {error}") from error
        #: The function wants a context, before its other arguments.
        self.wants_context = False
        #: Whose tasks these are, for the context; and what gives marked parameters their values.
        self.app: Any = None
        self.provide: Callable[[], Mapping[str, object]] | None = None
        #: What the worker fills, by the names of the parameters.
        self.markers: dict[str, Marker] = {}
        #: What their annotations say.
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
            kind = readable_type(task, f"the argument {name!r}", hints.get(name, Any))
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
        self._result: Any = readable_type(task, "its result", returned)
        #: The names of the arguments of a call.
        self.names = tuple(field[0] for field in fields)
        #: What is read back as whatever JSON made of it.
        self._untyped = {field[0] for field in fields if field[1] in (Any, object)}
        try:
            shape = msgspec.defstruct("Payload", fields, kw_only=True, forbid_unknown_fields=True)
            self._shape = shape
            self._decode = msgspec.json.Decoder(shape, dec_hook=from_json).decode
        except (TypeError, ValueError) as error:
            raise Invalid(task, f"its parameters cannot be read from JSON: {error}") from error

    def encode(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> bytes:
        """The payload of a call, checked as the worker will check it."""
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
        """Whether payloads that do not fit are upgraded by the worker."""
        return self._upgrade is not None

    def schema(self) -> dict[str, object]:
        """The arguments as JSON Schema."""
        return describe_arguments(self._shape)

    @property
    def first(self) -> str:
        """The name of the first argument; nothing: there is none."""
        return self.names[0] if self.names else ""

    def encode_item(self, item: object) -> bytes:
        """The payload of a call with one argument."""
        return self.encode((item,), {})

    def in_full(self, payload: bytes) -> bytes:
        """The same with what a call leaves to defaults."""
        return encode(msgspec.structs.asdict(self._decode(payload)))

    def _check_said(self, name: str, value: object) -> None:
        """Refuse an argument that JSON would quietly make something else of. A tuple may become a list."""
        odd = not_a_number(value)
        if odd is not None:
            raise Invalid("arguments", f"`{name}` holds {odd}, which JSON cannot say")
        for leaf in leaves(value) if name in self._untyped else ():
            if isinstance(leaf, _TYPED_ONLY):
                kind = type(leaf).__name__
                raise Invalid("arguments", f"`{name}` holds {kind}, which JSON cannot say", "annotate the parameter")

    def decode(self, held: HeldRun) -> tuple[tuple[Context, ...], dict[str, object]]:
        """The call that a run stands for: the context, if the function wants one, and the named arguments."""
        first = (context_for(held, self.app),) if self.wants_context else ()
        named: dict[str, object] = {} if self.provide is None else dict(self.provide())
        if self.names:
            values = self._read(b"{}" if held.payload == b"null" else held.payload)
            for name in self.names:
                named[name] = getattr(values, name)
        return first, named

    def check_direct(self, task: str, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        """Refuse a direct call that leaves to a worker what no worker will see to."""
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
        # Submitted before the parameters changed.
        try:
            upgraded = encode(self._upgrade(msgspec.json.decode(payload, type=dict[str, Any])))
        except Exception as error:
            raise InvalidPayload("payload", f"does not fit and cannot be upgraded: {error!r}") from error
        try:
            return self._decode(upgraded)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise self._misfit(error, upgraded, "does not fit, upgraded or not: ") from None

    def _misfit(self, error: Exception, payload: bytes, beginning: str = "") -> InvalidPayload:
        """Name the argument that does not fit."""
        if not isinstance(error, msgspec.MsgspecError):
            reason = "is nested too deeply" if isinstance(error, RecursionError) else str(error)
            return InvalidPayload("payload", beginning + reason)
        found = misread(error, self._shape, payload)
        return InvalidPayload(f"payload.{found.field}".rstrip("."), beginning + found.reason, found.hint)

    def read_result(self, result: bytes | None) -> Any:
        """What the function returned, as its annotation says."""
        if result is None:
            return None
        if self._result is Any:
            return msgspec.json.decode(result)
        try:
            return msgspec.json.decode(result, type=self._result, dec_hook=from_json)
        except (msgspec.ValidationError, ValueError) as error:
            raise Invalid("result", f"is not what {self._task!r} declares to return: {error}") from None
