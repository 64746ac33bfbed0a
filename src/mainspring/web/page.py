"""A page, declared once: its path, its permission, its query; and what its handler works with."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import msgspec

from mainspring.core.model.access.access import Permission, Principal
from mainspring.core.model.base.instant import Instant
from mainspring.http.calling import call_operation
from mainspring.http.context import Api
from mainspring.http.operation import Handler, find_operation
from mainspring.http.problems import AsWritten, Refused, decoding_problem
from mainspring.web.oidc import Attempt, Oidc
from mainspring.web.redaction import MASK, Redactor
from mainspring.web.session import Session

Query = TypeVar("Query")
_encode = msgspec.json.Encoder().encode


class NoQuery(msgspec.Struct, frozen=True):
    """Whatever else is in the address is passed over."""


class Show(msgspec.Struct, frozen=True):
    """A template and what is in it."""

    template: str
    values: Mapping[str, Any]
    status: int = 200


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """An action was done: what to say, and where to look at it without a script."""

    words: str
    to: str
    #: Go there with a script, too: what was acted on is not on the page any more.
    leave: bool = False
    #: What takes it back: the address of another action, and what its button says.
    undo: str = ""
    undo_words: str = "Undo"


class Stream(msgspec.Struct, frozen=True):
    """Server-sent events."""

    source: Any


class Enter(msgspec.Struct, frozen=True):
    """Signed in, or out (no session): where to go."""

    session: Session | None
    to: str


class Away(msgspec.Struct, frozen=True):
    """To somebody else's page, to come back from there."""

    address: str
    attempt: Attempt


class Download(msgspec.Struct, frozen=True):
    """A text to keep."""

    name: str
    text: str


Reply: TypeAlias = Show | Done | Stream | Enter | Away | Download


class Visit(Generic[Query]):
    """A request that has been let in and understood."""

    __slots__ = (
        "api",
        "attempt",
        "base",
        "form",
        "headers",
        "now",
        "oidc",
        "path",
        "peer",
        "principal",
        "query",
        "read_only",
        "redact",
        "session",
        "url",
    )

    def __init__(
        self,
        api: Api,
        principal: Principal,
        *,
        base: str,
        url: str,
        path: Mapping[str, str],
        query: Query,
        form: Mapping[str, str],
        headers: Mapping[str, str],
        peer: str,
        session: Session | None,
        read_only: bool,
        redact: Redactor | None = None,
        oidc: Oidc | None = None,
        attempt: Attempt | None = None,
    ) -> None:
        self.api = api
        self.principal = principal
        #: Where the dashboard is mounted; ends with a slash.
        self.base = base
        #: This very page, below the base, with its query.
        self.url = url
        self.path = path
        self.query = query
        self.form = form
        self.headers = headers
        #: The address that the request came from.
        self.peer = peer
        self.session = session
        self.read_only = read_only
        #: Takes out what no page shows.
        self.redact = redact
        #: The provider where people sign in, and whether this browser was sent there.
        self.oidc = oidc
        self.attempt = attempt
        self.now: Instant = api.clock.now()

    def may(self, permission: str) -> bool:
        """For what is offered. What is done is checked by the operation that does it."""
        wanted = Permission(permission)
        return self.principal.may(wanted) and (wanted is Permission.READ or not self.read_only)

    async def ask(
        self,
        named: "Handler[Any, Any] | str",
        *,
        path: Mapping[str, str] | None = None,
        query: Mapping[str, object] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Call an operation of the API as this visitor and return its answer. Empty parameters are left out.

        ``named``: the handler, or the name of an operation of another feature.
        """
        operation = find_operation(named)
        given = [(name, str(value)) for name, value in (query or {}).items() if value not in (None, "")]
        data = b"" if body is None else _encode(body)
        async with asyncio.timeout(operation.within):
            answer = await call_operation(
                self.api, operation, self.principal, path=path, query=given, body=data, headers=headers or {}
            )
        return answer.body if self.redact is None else self.redact(answer.body)

    def show(self, template: str, /, **values: Any) -> Show:
        return Show(template, values)


PageHandler: TypeAlias = Callable[[Visit[Any]], Awaitable[Reply]]


class Page:
    """One method on one path."""

    def __init__(
        self, method: str, path: str, handler: PageHandler, permission: Permission | None, query: type[Any]
    ) -> None:
        self.method = method
        self.path = path
        self.handler = handler
        #: None: anybody, signed in or not.
        self.permission = permission
        self.query = query
        self._names = {field.encode_name for field in msgspec.structs.fields(query)}

    def read_query(self, pairs: list[tuple[str, str]]) -> Any:
        """Blank ones count as absent, as forms send them; of several the values are joined."""
        given: dict[str, str] = {}
        for name, value in pairs:
            if name in self._names and value.strip():
                given[name] = f"{given[name]},{value.strip()}" if name in given else value.strip()
        try:
            return msgspec.convert(given, self.query, strict=False)
        except msgspec.ValidationError as error:
            raise decoding_problem(error, "query", self.query) from None


class Pages:
    """Those of one file under ``pages``."""

    def __init__(self) -> None:
        self.pages: list[Page] = []

    def page(
        self,
        method: Literal["GET", "POST"],
        path: str,
        *,
        permission: Permission | None,
        query: type[Any] = NoQuery,
    ) -> Callable[[PageHandler], PageHandler]:
        def register(handler: PageHandler) -> PageHandler:
            self.pages.append(Page(method, path, handler, permission, query))
            return handler

        return register


def json_field(form: Mapping[str, str], name: str) -> msgspec.Raw | None:
    """JSON that somebody typed; none if the field is blank."""
    text = form.get(name, "").strip()
    if not text:
        return None
    if MASK in text:
        hint = "write what it is to be, or leave the field empty: then it stays as it was"
        raise AsWritten(name, f"holds {MASK}, which stands for what is not shown here", hint)
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise AsWritten(name, f"is not JSON: {error}", 'for example {"user_id": 42}') from None
    return msgspec.Raw(text.encode())


def refuse_read_only() -> Refused:
    return Refused(403, "Read-only", "this dashboard shows things and changes nothing", hint="ui.read_only")
