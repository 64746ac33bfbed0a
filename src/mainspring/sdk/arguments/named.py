"""Encoders of calls as payloads."""

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.sdk.arguments.values import encode_result


class Encoder(Protocol):
    """Encodes calls as payloads, and decodes results."""

    def encode(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> bytes: ...

    @property
    def first(self) -> str:
        """The name of the first argument; empty if there is none or it is unknown."""
        ...

    def encode_item(self, item: object) -> bytes:
        """Encode the payload of a call for one item."""
        ...

    def fill_in_defaults(self, payload: bytes) -> bytes:
        """Return the payload with default values, for keys that name arguments."""
        ...

    def read_result(self, result: bytes | None) -> Any: ...


class NamedArguments:
    """Encodes the arguments of a task that is known by name only. The worker validates them."""

    def encode(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> bytes:
        if args:
            raise Invalid("arguments", "must be named", "the function is not known here, nor the order it wants")
        return encode_result(dict(kwargs)) or b"{}"

    first = ""

    def encode_item(self, item: object) -> bytes:
        if not isinstance(item, Mapping):
            raise Invalid("items", f"{item!r:.40} does not name its arguments", 'for example [{"user_id": 1}]')
        return self.encode((), {str(name): value for name, value in item.items()})

    def fill_in_defaults(self, payload: bytes) -> bytes:
        return payload

    def read_result(self, result: bytes | None) -> Any:
        return None if result is None else msgspec.json.decode(result)
