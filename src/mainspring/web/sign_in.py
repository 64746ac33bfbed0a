"""Sign-in with credentials or through an OpenID provider, and sign-out."""

from typing import Any

import msgspec

from mainspring.http.problems import ObjectNotFound, RequestError
from mainspring.web.page import PageReply, Pages, RedirectReply, Reply, SessionReply, Visit
from mainspring.web.session import build_session

sign_in = Pages()


class SignInQuery(msgspec.Struct, frozen=True):
    to: str = ""


class CallbackQuery(msgspec.Struct, frozen=True):
    code: str = ""
    state: str = ""
    error: str = ""


@sign_in.page("GET", "/sign-in", permission=None, query=SignInQuery)
async def show_sign_in(visit: Visit[SignInQuery]) -> Reply:
    if not visit.api.auth.required:
        return SessionReply(None, "")
    return visit.show("sign_in.html", to=visit.query.to, error="")


@sign_in.page("POST", "/sign-in", permission=None)
async def do_sign_in(visit: Visit[Any]) -> Reply:
    session = build_session(visit.form.get("credentials", "").strip(), visit.now)
    to = _keep_local_path(visit.form.get("to", ""))
    try:
        await visit.api.auth.principal(session.headers)
    except RequestError as refused:
        visit.api.count_wrong_credentials(visit.peer, visit.headers.get("x-forwarded-for"))
        return PageReply("sign_in.html", {"to": to, "error": refused.problem.detail}, status=401)
    return SessionReply(session, to)


@sign_in.page("GET", "/sign-in/oidc", permission=None, query=SignInQuery)
async def go_to_provider(visit: Visit[SignInQuery]) -> Reply:
    if visit.oidc is None or not visit.api.auth.required:
        raise ObjectNotFound
    try:
        address, attempt = await visit.oidc.begin(_keep_local_path(visit.query.to))
    except RequestError as refused:
        return PageReply("sign_in.html", {"to": visit.query.to, "error": refused.problem.detail}, status=503)
    return RedirectReply(address, attempt)


@sign_in.page("GET", "/sign-in/oidc/callback", permission=None, query=CallbackQuery)
async def finish_at_provider(visit: Visit[CallbackQuery]) -> Reply:
    if visit.oidc is None or not visit.api.auth.required:
        raise ObjectNotFound
    attempt, query = visit.attempt, visit.query
    if attempt is None or query.error:
        error = (
            "the identity provider denied the sign-in"
            if query.error
            else "the sign-in took too long, or was started in another browser"
        )
        return PageReply("sign_in.html", {"to": "" if attempt is None else attempt.to, "error": error}, status=401)
    try:
        principal = await visit.oidc.finish(attempt, query.code, query.state)
    except RequestError as refused:
        visit.api.count_wrong_credentials(visit.peer, visit.headers.get("x-forwarded-for"))
        error = refused.problem.detail
        return PageReply("sign_in.html", {"to": attempt.to, "error": error}, status=refused.problem.status)
    return SessionReply(build_session("", visit.now, principal), attempt.to)


@sign_in.page("POST", "/sign-out", permission=None)
async def do_sign_out(visit: Visit[Any]) -> Reply:
    if visit.session is not None:
        await visit.api.sign_outs.add(visit.session.id, visit.session.ends_at)
    return SessionReply(None, "sign-in")


def _keep_local_path(to: str) -> str:
    """Return the path if it is below our base, else an empty one. Links of other sites may contain any target."""
    # Remove invisible characters first: browsers skip them and read the rest as a URL.
    seen = "".join(letter for letter in to if letter.isprintable()).strip()
    return "" if seen.startswith(("/", "\\")) or ":" in seen.partition("?")[0] else seen
