"""The declaration of an API operation: its route, permission, decoding and documentation."""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import msgspec

from mainspring.core.model.access.access import Permission, Principal
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.field_names import suggest
from mainspring.http.problems import RequestError, RequestFieldError, decode, explain_decoding_error

Body = TypeVar("Body")
Query = TypeVar("Query")
Method: TypeAlias = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]

#: An operation without its own time limit fails after this many seconds, because the store did not answer.
DEFAULT_TIMEOUT = 10.0
#: The largest body of an operation without its own limit.
DEFAULT_LARGEST_BODY = 512 * 1024


class Empty(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No body, or no query parameters."""


class Answer(msgspec.Struct, frozen=True):
    """The result of a handler: a value of the type that is declared for the status."""

    status: int
    body: Any = None
    headers: Mapping[str, str] = {}
    #: The body, if it is encoded already.
    raw: bytes | None = None


class Call(Generic[Body, Query]):
    """A request that is authenticated, authorized and decoded."""

    __slots__ = ("body", "headers", "left", "path", "permission", "principal", "query")

    def __init__(
        self,
        permission: Permission | None,
        principal: Principal,
        path: Mapping[str, str],
        query: Query,
        body: Body,
        headers: Mapping[str, str],
        left: Callable[[], Awaitable[None]],
    ) -> None:
        #: The permission that the operation requires.
        self.permission = permission
        self.principal = principal
        self.path = path
        self.query = query
        self.body = body
        self.headers = headers
        #: Returns when the client has hung up.
        self.left = left


Handler: TypeAlias = Callable[[Any, Call[Body, Query]], Awaitable[Answer]]


class Operation:
    """One method on one path."""

    def __init__(
        self,
        method: Method,
        path: str,
        handler: "Handler[Any, Any]",
        *,
        tag: str,
        permission: Permission | None,
        body: Any,
        query: Any,
        answers: Mapping[int, Any],
        media_type: str,
        largest_body: int,
        body_optional: bool,
        streams: bool,
        within: float | None,
        traced: bool,
        example: Mapping[str, Any] | None,
    ) -> None:
        self.method: Method = method
        self.path = path
        self.handler = handler
        self.tag = tag
        self.permission = permission
        self.body = body
        self.query = query
        self.answers = answers
        self.media_type = media_type
        self.largest_body = largest_body
        self.body_optional = body_optional
        #: The answer is a stream that the handler writes itself.
        self.streams = streams
        #: The time limit in seconds. None: the operation does several things, each with its own limit.
        self.within = within
        #: Whether a request is recorded as a span.
        self.traced = traced and permission is not None and not streams
        #: An example body for the OpenAPI document.
        self.example = example
        self.name = handler.__name__
        words = " ".join((handler.__doc__ or "").split())
        #: The first sentence is the summary, the rest the description.
        self.summary, *rest = re.split(r"(?<=[.?]) ", words, maxsplit=1)
        self.description = "".join(rest)
        self._decoder = None if body is Empty else msgspec.json.Decoder(body)
        self._fields = {field.encode_name: field for field in msgspec.structs.fields(query)}

    def check_permission(self, principal: Principal) -> None:
        if self.permission is not None and not principal.may(self.permission):
            raise RequestError(403, "Forbidden", f"{principal.role.value}s may not {self.permission.value}")

    def read_body(self, data: bytes, written: dict[str, str]) -> Any:
        """Decode a body. ``written`` receives the fields that the body has under other names."""
        if self._decoder is None:
            if data.strip() not in (b"", b"{}", b"null"):
                raise Invalid("body", "is not expected here")
            return Empty()
        if self.body_optional and not data:
            return self.body()
        return decode(data, self.body, self._decoder, written)

    def read_query(self, pairs: list[tuple[str, str]]) -> Any:
        """Decode query parameters.

        Duplicates and unknown names are errors, because a misspelled filter must not list everything.
        """
        given: dict[str, str] = {}
        for name, value in pairs:
            if name not in self._fields:
                known = ", ".join(sorted(self._fields)) or "none"
                meant = suggest(name, list(self._fields))
                hint = f"did you mean `{meant}`? " if meant else ""
                raise RequestFieldError(name, "is no parameter of this", f"{hint}known: {known}")
            if name in given:
                raise RequestFieldError(name, "is given twice")
            given[name] = value
        try:
            read = msgspec.convert(given, self.query, strict=False)
        except msgspec.ValidationError as error:
            raise explain_decoding_error(error, "query", self.query) from None
        for name, value in given.items():
            # msgspec reads the word null as None; here it is a word.
            if getattr(read, self._fields[name].name) is None:
                raise RequestFieldError(name, f"{value!r} is not a value", "leave it out")
        return read


#: Every declared operation by the name of its handler.
_declared: dict[str, Operation] = {}


def find_operation(named: "Handler[Any, Any] | str") -> Operation:
    """Return the operation of a handler, or the operation with this name."""
    return _declared[named if isinstance(named, str) else named.__name__]


class Resource:
    """A group of operations. Each file of operations has one; ``parts`` joins several in their order."""

    def __init__(self, tag: str, about: str = "", parts: "Sequence[Resource]" = ()) -> None:
        self.tag = tag
        self.about = about
        self.operations: list[Operation] = [operation for part in parts for operation in part.operations]

    def operation(
        self,
        method: Method,
        path: str,
        *,
        permission: Permission | None,
        answers: Mapping[int, Any],
        body: type[Body] = Empty,  # type: ignore[assignment]
        query: type[Query] = Empty,  # type: ignore[assignment]
        media_type: str = "application/json",
        largest_body: int = DEFAULT_LARGEST_BODY,
        body_optional: bool = False,
        streams: bool = False,
        within: float | None = DEFAULT_TIMEOUT,
        traced: bool = True,
        example: Mapping[str, Any] | None = None,
    ) -> "Callable[[Handler[Body, Query]], Handler[Body, Query]]":
        """Declare a handler. A permission of None makes it public and must be given explicitly."""

        def register(handler: "Handler[Body, Query]") -> "Handler[Body, Query]":
            operation = Operation(
                method,
                path,
                handler,
                tag=self.tag,
                permission=permission,
                body=body,
                query=query,
                answers=answers,
                media_type=media_type,
                largest_body=largest_body,
                body_optional=body_optional,
                streams=streams,
                within=within,
                traced=traced,
                example=example,
            )
            self.operations.append(operation)
            _declared[operation.name] = operation
            return handler

        return register
