"""The dashboard as an ASGI application that wraps the HTTP API."""

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import msgspec

from mainspring.core.model.access.access import Permission, Principal
from mainspring.core.model.base.errors import MainspringError
from mainspring.core.runtime.log import get_logger
from mainspring.http.app import refuse_other_sites, send_stream
from mainspring.http.asgi_types import ASGIApp, Receive, Send
from mainspring.http.context import Api
from mainspring.http.problems import MEDIA_TYPE, Problem, RequestError, UnknownPath, build_problem
from mainspring.http.requests import Request
from mainspring.http.routing import Routes
from mainspring.web.oidc import Oidc, OidcSettings, SignInAttempt
from mainspring.web.page import (
    ActionReply,
    DownloadReply,
    NoQuery,
    Page,
    PageReply,
    RedirectReply,
    Reply,
    SessionReply,
    StreamReply,
    Visit,
    build_read_only_error,
)
from mainspring.web.redaction import Redactor
from mainspring.web.rendering import environment, render
from mainspring.web.sending import HEADERS, raw_headers, reply_static, reply_with
from mainspring.web.session import (
    ATTEMPT_COOKIE,
    COOKIE,
    MAX_COOKIE,
    CookieCipher,
    Session,
    build_cookie_header,
    is_masked,
    read_cookie,
)
from mainspring.web.static_files import static_files

_log = get_logger("mainspring.ui")

#: Paths that the API answers. Every other path is a page, or not found.
_API_PREFIXES = ("v1/", "api/", "docs", "openapi.json", "healthz", "readyz", "metrics")
_API_ROOTS = ("v1", "api")
_MAX_FORM = 512 * 1024
_encode = msgspec.json.Encoder().encode
_FORM_SECONDS = 10


class DashboardSettings(NamedTuple):
    #: Encrypts session cookies; must be the same in every process. If empty, each process generates its own.
    secret: str = ""
    #: Pages offer no actions, and requests that change anything are refused.
    read_only: bool = False
    #: Names of fields whose values are hidden on every page.
    redact: Sequence[str] = ()
    #: An additional sign-in by an OpenID provider.
    oidc: OidcSettings | None = None


_DEFAULTS = DashboardSettings()


def build_dashboard(
    api: Api, api_application: ASGIApp, pages: Sequence[Page], settings: DashboardSettings = _DEFAULTS
) -> ASGIApp:
    """Build the dashboard application. ``api_application`` answers the requests of the API.

    The dashboard can be mounted: links start with ``root_path``.
    """
    ui = _Dashboard(api, api_application, settings, pages)
    # Load these at startup, so that the first request does not wait for them.
    static_files()
    environment()
    return ui.answer


class _Dashboard:
    def __init__(self, api: Api, api_application: ASGIApp, settings: DashboardSettings, pages: Sequence[Page]) -> None:
        self._api = api
        self._api_application = api_application
        self._read_only = settings.read_only
        self._redact = Redactor(settings.redact) if settings.redact else None
        self._cipher = CookieCipher(settings.secret)
        self._oidc = None if settings.oidc is None else Oidc(settings.oidc, api.clock)
        by_path: dict[str, dict[str, Page]] = {}
        for page in pages:
            by_path.setdefault(page.path, {})[page.method] = page
        self._routes = Routes(by_path)

    async def answer(self, scope: Any, receive: Receive, send: Send) -> None:
        root = scope.get("root_path", "").rstrip("/")
        path = scope["path"].removeprefix(root).removeprefix("/") if scope["type"] == "http" else "v1/"
        if path.startswith(_API_PREFIXES) or path in _API_ROOTS:
            await self._api_application(scope, receive, send)
        elif path.startswith("static/"):
            await reply_static(path, Request(scope, receive), send)
        else:
            # Use the raw path: a decoded path no longer shows which slashes belong to a name.
            sent = scope.get("raw_path") or quote(scope["path"]).encode()
            path = sent.decode("latin-1").removeprefix(quote(root)).removeprefix("/")
            await self._answer_page(Request(scope, receive), f"/{path}", f"{root}/", send)

    async def _answer_page(self, request: Request, path: str, base: str, send: Send) -> None:
        session = self._open_session(request)
        csrf = self._cipher.local_csrf if session is None else session.csrf
        visit = self._build_visit(request, path, base, session)
        try:
            reply = await self._handle(request, path, visit, csrf)
            rendered = render(visit, reply.template, reply.values, csrf) if isinstance(reply, PageReply) else b""
        except Exception as error:
            await self._send_problem(request, visit, error, csrf, send)
            return
        await self._send_reply(request, visit, reply, rendered, csrf, send)

    def _open_session(self, request: Request) -> Session | None:
        cookie = read_cookie(request.headers.get("cookie", ""))
        return self._cipher.open(cookie, self._api.clock.now()) if cookie and self._api.auth.required else None

    def _build_visit(self, request: Request, path: str, base: str, session: Session | None) -> Visit[Any]:
        """Build the visit of a request that is not authenticated yet."""
        query = request.scope["query_string"].decode("latin-1")
        return Visit(
            self._api,
            self._api.anonymous,
            base=base,
            url=path.removeprefix("/") + (f"?{query}" if query else ""),
            path={},
            query=NoQuery(),
            form={},
            headers=request.headers,
            peer=client[0] if (client := request.scope.get("client")) else "",
            session=session,
            read_only=self._read_only,
            redact=self._redact,
            oidc=self._oidc,
            attempt=None if self._oidc is None else self._open_attempt(request),
        )

    def _open_attempt(self, request: Request) -> SignInAttempt | None:
        cookie = read_cookie(request.headers.get("cookie", ""), ATTEMPT_COOKIE)
        found = self._cipher.decrypt(cookie, SignInAttempt) if cookie else None
        return found if found is not None and self._api.clock.now() < found.ends_at else None

    async def _handle(self, request: Request, path: str, visit: Visit[Any], csrf: str) -> Reply:
        if not self._api.auth.required:
            refuse_other_sites(request)
        method = "GET" if request.scope["method"] == "HEAD" else request.scope["method"]
        methods, values = self._routes.find(path) or ({}, {})
        page = methods.get(method)
        if page is None:
            # Authenticate first, so that unauthenticated clients do not learn which pages exist.
            visit.principal = await self._read_principal(visit)
            raise UnknownPath(path)
        visit.path = {name: unquote(value) for name, value in values.items()}
        if page.permission is not None:
            visit.principal = await self._read_principal(visit)
            if not visit.principal.may(page.permission):
                role = visit.principal.role.value
                raise RequestError(403, "Forbidden", f"{role}s may not {page.permission.value}")
            self._api.buckets.take(visit.principal.name)
        given = parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True)
        visit.query = page.read_query(given)
        if method == "POST":
            visit.form = await _read_form(request)
            _check_origin(request, visit.form, csrf)
        if self._read_only and page.permission not in (None, Permission.READ):
            raise build_read_only_error()
        return await page.handler(visit)

    async def _read_principal(self, visit: Visit[Any]) -> Principal:
        return await self._authenticate(visit.session)

    async def _authenticate(self, session: Session | None) -> Principal:
        """Return the principal of a session. Raises ``Refused`` if it is over, or missing although required."""
        if session is None:
            return await self._api.auth.principal({})
        if self._api.clock.now() >= session.ends_at or await self._api.sign_outs.includes(session.id):
            raise RequestError(401, "Unauthorized", "the session has ended", hint="sign in again")
        return session.principal or await self._api.auth.principal(session.headers)

    async def _wait_until_denied(self, session: Session | None) -> None:
        """Wait until the viewer of a stream loses access."""
        await self._api.auth.wait_for_revocation(lambda: self._authenticate(session))

    async def _send_reply(
        self, request: Request, visit: Visit[Any], reply: Reply, rendered: bytes, csrf: str, send: Send
    ) -> None:
        """Send the reply. ``rendered`` is the rendered page if the reply is a ``Show``."""
        match reply:
            case PageReply():
                await reply_with(request, send, reply.status, rendered)
            case ActionReply() if _is_script_request(request):
                toast = render(visit, "toast.html", {"done": reply, "problem": None}, csrf)
                headers = {"hx-trigger": "changed", "hx-retarget": "body", "hx-reswap": "beforeend"}
                if reply.leave:
                    headers = {"hx-redirect": _build_url(visit, reply.to)}
                await reply_with(request, send, 200, toast, headers)
            case ActionReply():
                await reply_with(request, send, 303, b"", {"location": _build_url(visit, reply.to)})
            case SessionReply():
                await self._send_session(request, visit, reply, send)
            case RedirectReply():
                cookie = build_cookie_header(
                    self._cipher.encrypt(reply.attempt), visit.base, secure=_is_secure(request), name=ATTEMPT_COOKIE
                )
                await reply_with(request, send, 303, b"", {"location": reply.address, "set-cookie": cookie})
            case DownloadReply():
                disposition = f'attachment; filename="{quote(reply.name)}"'
                headers = {"content-type": "text/plain; charset=utf-8", "content-disposition": disposition}
                await reply_with(request, send, 200, reply.text.encode(errors="replace"), headers)
            case StreamReply():
                raw = raw_headers({**HEADERS, "content-type": "text/event-stream"})
                await send_stream(send, request, raw, reply.source, self._wait_until_denied(visit.session))

    async def _send_session(self, request: Request, visit: Visit[Any], reply: SessionReply, send: Send) -> None:
        secure = _is_secure(request)
        if reply.session is None:
            cookie = build_cookie_header("", visit.base, secure=secure, ends=True)
        else:
            value = self._cipher.encrypt(reply.session)
            if len(value) + len(COOKIE) > MAX_COOKIE:
                raise RequestError(
                    400, "Bad request", "the token is too large for a session", hint="sign in with an API key"
                )
            cookie = build_cookie_header(value, visit.base, secure=secure)
        await reply_with(request, send, 303, b"", {"location": _build_url(visit, reply.to), "set-cookie": cookie})

    async def _send_problem(self, request: Request, visit: Visit[Any], error: Exception, csrf: str, send: Send) -> None:
        problem, more = build_problem(error)
        if not isinstance(error, MainspringError | TimeoutError):
            _log.exception("page failed", path=request.scope["path"], exc_info=error)
        if isinstance(error, TimeoutError):
            problem = Problem(title="Not done in time", status=503, detail="the store did not answer in time")
        headers = {"retry-after": more["retry-after"]} if "retry-after" in more else {}
        if _wants_json(request, error):
            await reply_with(request, send, problem.status, _encode(problem), {**headers, "content-type": MEDIA_TYPE})
        elif problem.status == 401:
            await self._redirect_to_sign_in(request, visit, send)
        elif not _is_script_request(request):
            page = render(visit, "error.html", {"problem": problem}, csrf)
            await reply_with(request, send, problem.status, page, headers)
        elif request.scope["method"] == "GET":
            # A part that refreshes itself shows no error: it tries again.
            await reply_with(request, send, problem.status, b"", {**headers, "hx-reswap": "none"})
        else:
            toast = render(visit, "toast.html", {"done": None, "problem": problem}, csrf)
            headers |= {"hx-retarget": "body", "hx-reswap": "beforeend"}
            await reply_with(request, send, problem.status, toast, headers)

    async def _redirect_to_sign_in(self, request: Request, visit: Visit[Any], send: Send) -> None:
        # Where to return to after signing in. A submitted form is not sent again.
        by_form = request.scope["method"] != "GET" and not _is_script_request(request)
        return_to = (
            _get_current_page(request, visit.base) if _is_script_request(request) else "" if by_form else visit.url
        )
        # A person who signed in at the provider is sent there directly: the provider knows them, or asks for
        # credentials. An answer to a form cannot do so, because browsers refuse to follow its redirect to another site.
        cookie = read_cookie(request.headers.get("cookie", ""))
        signed_in_by_provider = self._oidc is not None and not by_form and self._cipher.is_from_provider(cookie)
        page = "sign-in/oidc" if signed_in_by_provider else "sign-in"
        to = f"{visit.base}{page}" + (f"?to={quote(return_to)}" if return_to else "")
        if _is_script_request(request):
            await reply_with(request, send, 200, b"", {"hx-redirect": to})
        else:
            await reply_with(request, send, 303, b"", {"location": to})


def _build_url(visit: Visit[Any], to: str) -> str:
    """Return the URL of a page as a header value: ASCII, with other characters percent-encoded."""
    return visit.base + quote(to, safe="!#$%&'()*+,/:;=?@[]~")


def _is_secure(request: Request) -> bool:
    return request.scope.get("scheme") == "https" or request.headers.get("x-forwarded-proto") == "https"


def _get_current_page(request: Request, base: str) -> str:
    """Return the page that a script request comes from, relative to ``base``. Empty if unknown or foreign."""
    address = urlsplit(request.headers.get("hx-current-url", ""))
    if not address.path.startswith(base) or address.netloc != request.headers.get("host", ""):
        return ""
    return address.path.removeprefix(base) + (f"?{address.query}" if address.query else "")


def _wants_json(request: Request, error: Exception) -> bool:
    """Return whether the client is a program. Browsers always accept HTML."""
    accepted = request.headers.get("accept", "")
    if "text/html" in accepted or _is_script_request(request):
        return False
    return "json" in accepted or isinstance(error, UnknownPath)


def _is_script_request(request: Request) -> bool:
    return request.headers.get("hx-request") == "true"


def _check_origin(request: Request, form: dict[str, str], csrf: str) -> None:
    """Refuse a form that another site submitted.

    Such a page can send a form here, but can neither read the CSRF token nor forge the origin headers.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        is_same_site = site in ("same-origin", "none")
    else:
        is_same_site = origin is None or urlsplit(origin).netloc == request.headers.get("host", "")
    if not is_same_site:
        raise RequestError(403, "Forbidden", "the form was sent by another site")
    if not is_masked(csrf, form.get("csrf", "") or request.headers.get("x-csrf-token", "")):
        raise RequestError(403, "This page is too old", "nothing was done", hint="reload the page and try again")


async def _read_form(request: Request) -> dict[str, str]:
    data = bytearray()
    async with asyncio.timeout(_FORM_SECONDS):
        async for chunk in request.chunks():
            data += chunk
            if len(data) > _MAX_FORM:
                raise RequestError(413, "Content too large", f"at most {_MAX_FORM} bytes")
    return dict(parse_qsl(data.decode("utf-8", errors="replace"), keep_blank_values=True))
