"""Who is signed in: the credentials they gave, or who a provider says they are, sealed into a cookie. Nothing is kept
here.

Each request opens the cookie and lets the API's own authenticator judge what is in it, so a key that was revoked, or a
token that has expired, ends the session as soon as it ends everything else. A sign-out is recorded in the store until
the session would have ended: a copy of the cookie is of no use.
"""

import base64
import hashlib
import hmac
import secrets
from typing import TypeVar

import msgspec
from joserfc import jwe
from joserfc.errors import JoseError
from joserfc.jwk import OctKey

from mainspring.core.model.access.access import Principal
from mainspring.core.model.base.instant import HOUR, Instant, Micros

COOKIE = "mainspring_session"
#: While somebody is at their provider.
ATTEMPT_COOKIE = "mainspring_sign_in"
#: A browser keeps no cookie that is larger.
LARGEST_COOKIE = 4_000
#: Then one signs in again.
LONGEST: Micros = 12 * HOUR
#: Of somebody a provider has vouched for: only it knows whether they are still who they were. Then it is asked anew.
VOUCHED: Micros = HOUR
T = TypeVar("T", bound=msgspec.Struct)
_HEADER = {"alg": "dir", "enc": "A256GCM"}


class Session(msgspec.Struct, frozen=True):
    #: An API key or a token; empty: a provider said who it is.
    credentials: str
    ends_at: Instant
    csrf: str
    principal: Principal | None = None

    @property
    def id(self) -> str:
        """The id under which a sign-out is recorded. It reveals nothing about the session itself."""
        return hashlib.sha256(self.csrf.encode()).hexdigest()[:32]

    @property
    def headers(self) -> dict[str, str]:
        """As a request to the API would bring them."""
        return {"authorization": f"Bearer {self.credentials}"}


def new_session(credentials: str, now: Instant, principal: Principal | None = None) -> Session:
    longest = LONGEST if principal is None else VOUCHED
    return Session(credentials, now + longest, secrets.token_hex(16), principal)


class Sealer:
    """Whoever has the same secret opens what another process sealed. Without one it is drawn: then sessions end with
    the process."""

    def __init__(self, secret: str) -> None:
        drawn = hashlib.sha256(b"mainspring dashboard " + secret.encode()).digest() if secret else secrets.token_bytes()
        self._key = OctKey.import_key(drawn[:32])
        #: Where nobody signs in.
        self.local_csrf = hmac.new(drawn, b"local", hashlib.sha256).hexdigest()[:32]

    def seal(self, what: msgspec.Struct) -> str:
        return jwe.encrypt_compact(_HEADER, msgspec.json.encode(what), self._key)

    def open(self, cookie: str, now: Instant) -> Session | None:
        """None for whatever is not ours, or is over."""
        session = self.unseal(cookie, Session)
        return session if session is not None and now < session.ends_at else None

    def was_vouched_for(self, cookie: str) -> bool:
        """Whether it is a session that a provider began, over or not."""
        session = self.unseal(cookie, Session)
        return session is not None and session.principal is not None

    def unseal(self, cookie: str, kind: type[T]) -> T | None:
        """None for whatever is not ours, or is something else."""
        try:
            return msgspec.json.decode(jwe.decrypt_compact(cookie, self._key).plaintext or b"", type=kind)
        except (JoseError, msgspec.MsgspecError, ValueError):
            return None


def mask(token: str) -> str:
    """A token that looks different each time: in a page that is compressed its length tells nothing about it."""
    secret = bytes.fromhex(token)
    noise = secrets.token_bytes(len(secret))
    return base64.urlsafe_b64encode(noise + bytes(a ^ b for a, b in zip(noise, secret, strict=True))).decode()


def is_masked(token: str, masked: str) -> bool:
    """Whether this is the token, masked."""
    secret = bytes.fromhex(token)
    try:
        raw = base64.urlsafe_b64decode(masked)
    except ValueError:
        return False
    if len(raw) != 2 * len(secret):
        return False
    noise, rest = raw[: len(secret)], raw[len(secret) :]
    return hmac.compare_digest(bytes(a ^ b for a, b in zip(noise, rest, strict=True)), secret)


def cookie_header(value: str, path: str, *, secure: bool, ends: bool = False, name: str = COOKIE) -> str:
    # Lax: a link in a chat leads to the page and not to the sign-in. What changes things needs a token besides.
    parts = [f"{name}={value}", f"Path={path}", "HttpOnly", "SameSite=Lax"]
    if secure:
        parts.append("Secure")
    if ends:
        parts.append("Max-Age=0")
    return "; ".join(parts)


def read_cookie(header: str, wanted: str = COOKIE) -> str:
    for part in header.split(";"):
        name, _, value = part.strip().partition("=")
        if name == wanted:
            return value
    return ""
