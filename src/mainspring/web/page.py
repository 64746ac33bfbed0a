"""Declares a page once: its path, permission and query, and the visit and replies that its handler works with."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import msgspec

from mainspring.core.model.access.access import Permission, Principal
from mainspring.core.model.base.instant import Instant
from mainspring.http.calls import call_operation
from mainspring.http.context import Api
from mainspring.http.operation import Handler, find_operation
from mainspring.http.problems import RequestError, RequestFieldError, explain_decoding_error
from mainspring.web.oidc import Oidc, SignInAttempt
from mainspring.web.redaction import MASK, Redactor
from mainspring.web.session import Session

Query = TypeVar("Query")
_encode = msgspec.json.Encoder().encode


class NoQuery(msgspec.Struct, frozen=True):
    """The query of a page without parameters. Unknown parameters are ignored."""


class PageReply(msgspec.Struct, frozen=True):
    """A reply that renders a template with values."""

    template: str
    values: Mapping[str, Any]
    status: int = 200


class ActionReply(msgspec.Struct, frozen=True, kw_only=True):
    """A reply after an action: the message to show, and the page to go to without scripts."""

    words: str
    to: str
    #: Go to that page with scripts as well, because the current page no longer shows the object.
    leave: bool = False
    #: The action that reverts this one: its address, and the label of its button.
    undo: str = ""
    undo_words: str = "Undo"


class StreamReply(msgspec.Struct, frozen=True):
    """A reply of server-sent events."""

    source: Any


class SessionReply(msgspec.Struct, frozen=True):
    """A reply after a sign-in, or a sign-out (no session), with the page to go to."""

    session: Session | None
    to: str


class RedirectReply(msgspec.Struct, frozen=True):
    """A redirect to a page of another site, which returns the browser here."""

    address: str
    attempt: SignInAttempt


class DownloadReply(msgspec.Struct, frozen=True):
    """A reply that the browser saves as a text file."""

    name: str
    text: str


Reply: TypeAlias = PageReply | ActionReply | StreamReply | SessionReply | RedirectReply | DownloadReply


class Visit(Generic[Query]):
    """An authenticated request with a decoded query and form."""

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
        attempt: SignInAttempt | None = None,
    ) -> None:
        self.api = api
        self.principal = principal
        #: The path where the dashboard is mounted. It ends with a slash.
        self.base = base
        #: The address of this page relative to ``base``, with its query.
        self.url = url
        self.path = path
        self.query = query
        self.form = form
        self.headers = headers
        #: The address that the request came from.
        self.peer = peer
        self.session = session
        self.read_only = read_only
        #: Hides the values that no page may show.
        self.redact = redact
        #: The provider for sign-ins, and the sign-in that this browser has in progress there.
        self.oidc = oidc
        self.attempt = attempt
        self.now: Instant = api.clock.now()

    def may(self, permission: str) -> bool:
        """Return whether to offer an action. The operation that performs it checks the permission again."""
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

        ``named`` is the handler, or the name of an operation of another feature.
        """
        operation = find_operation(named)
        given = [(name, str(value)) for name, value in (query or {}).items() if value not in (None, "")]
        data = b"" if body is None else _encode(body)
        async with asyncio.timeout(operation.within):
            answer = await call_operation(
                self.api, operation, self.principal, path=path, query=given, body=data, headers=headers or {}
            )
        return answer.body if self.redact is None else self.redact(answer.body)

    def show(self, template: str, /, **values: Any) -> PageReply:
        return PageReply(template, values)


PageHandler: TypeAlias = Callable[[Visit[Any]], Awaitable[Reply]]


class Page:
    """A handler for one method on one path."""

    def __init__(
        self, method: str, path: str, handler: PageHandler, permission: Permission | None, query: type[Any]
    ) -> None:
        self.method = method
        self.path = path
        self.handler = handler
        #: ``None``: the page is open to everyone, signed in or not.
        self.permission = permission
        self.query = query
        self._names = {field.encode_name for field in msgspec.structs.fields(query)}

    def read_query(self, pairs: list[tuple[str, str]]) -> Any:
        """Decode the query. Blank values count as absent, as forms send them; repeated ones are joined by commas."""
        given: dict[str, str] = {}
        for name, value in pairs:
            if name in self._names and value.strip():
                given[name] = f"{given[name]},{value.strip()}" if name in given else value.strip()
        try:
            return msgspec.convert(given, self.query, strict=False)
        except msgspec.ValidationError as error:
            raise explain_decoding_error(error, "query", self.query) from None


class Pages:
    """The pages of one module."""

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


def read_json_field(form: Mapping[str, str], name: str) -> msgspec.Raw | None:
    """Return the JSON that a person typed, or ``None`` if the field is blank."""
    text = form.get(name, "").strip()
    if not text:
        return None
    if MASK in text:
        hint = "replace the hidden values, or leave the field empty to keep the current value"
        raise RequestFieldError(name, f"holds {MASK}, which stands for a hidden value", hint)
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise RequestFieldError(name, f"is not JSON: {error}", 'for example {"user_id": 42}') from None
    return msgspec.Raw(text.encode())


def build_read_only_error() -> RequestError:
    return RequestError(403, "Read-only", "this dashboard is read-only", hint="ui.read_only")
