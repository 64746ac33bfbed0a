"""Dashboard sessions, sealed into a cookie: the credentials of a person, or the principal that a provider vouched for.

1. No session is stored on the server.
2. Each request opens the cookie, and the API's authenticator checks the credentials in it. A revoked key or an expired
   token thus ends the session at once.
3. A sign-out is recorded in the store until the session would have expired, so a copy of the cookie is useless.
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
#: Present while a person is at the sign-in page of the provider.
ATTEMPT_COOKIE = "mainspring_sign_in"
#: Browsers reject larger cookies.
MAX_COOKIE = 4_000
#: The lifetime of a session with credentials. After it, people sign in again.
MAX_SESSION_TIME: Micros = 12 * HOUR
#: The lifetime of a session from a provider. Only the provider knows whether the account still exists.
MAX_PROVIDER_SESSION_TIME: Micros = HOUR
T = TypeVar("T", bound=msgspec.Struct)
_HEADER = {"alg": "dir", "enc": "A256GCM"}


class Session(msgspec.Struct, frozen=True):
    #: An API key or a token. Empty if a provider vouched for the principal.
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
        """Return the headers with which an API request sends the same credentials."""
        return {"authorization": f"Bearer {self.credentials}"}


def build_session(credentials: str, now: Instant, principal: Principal | None = None) -> Session:
    max_time = MAX_SESSION_TIME if principal is None else MAX_PROVIDER_SESSION_TIME
    return Session(credentials, now + max_time, secrets.token_hex(16), principal)


class CookieCipher:
    """Encrypts and decrypts cookies.

    Processes with the same secret can open each other's cookies. Without a secret, a random key is used, and sessions
    end with the process.
    """

    def __init__(self, secret: str) -> None:
        secret_bytes = (
            hashlib.sha256(b"mainspring dashboard " + secret.encode()).digest() if secret else secrets.token_bytes()
        )
        self._key = OctKey.import_key(secret_bytes[:32])
        #: The CSRF token of requests without a session.
        self.local_csrf = hmac.new(secret_bytes, b"local", hashlib.sha256).hexdigest()[:32]

    def encrypt(self, what: msgspec.Struct) -> str:
        return jwe.encrypt_compact(_HEADER, msgspec.json.encode(what), self._key)

    def open(self, cookie: str, now: Instant) -> Session | None:
        """Return the session in a cookie. ``None`` if the cookie is not ours, or the session has expired."""
        session = self.decrypt(cookie, Session)
        return session if session is not None and now < session.ends_at else None

    def is_from_provider(self, cookie: str) -> bool:
        """Return whether a provider began the session, which may have expired."""
        session = self.decrypt(cookie, Session)
        return session is not None and session.principal is not None

    def decrypt(self, cookie: str, kind: type[T]) -> T | None:
        """Decrypt a cookie. ``None`` if it is not ours, or holds another kind of value."""
        try:
            return msgspec.json.decode(jwe.decrypt_compact(cookie, self._key).plaintext or b"", type=kind)
        except (JoseError, msgspec.MsgspecError, ValueError):
            return None


def mask(token: str) -> str:
    """Mask a token differently each time, so that the length of a compressed page does not reveal it."""
    secret = bytes.fromhex(token)
    noise = secrets.token_bytes(len(secret))
    return base64.urlsafe_b64encode(noise + bytes(a ^ b for a, b in zip(noise, secret, strict=True))).decode()


def is_masked(token: str, masked: str) -> bool:
    """Return whether ``masked`` is the masked form of the token."""
    secret = bytes.fromhex(token)
    try:
        raw = base64.urlsafe_b64decode(masked)
    except ValueError:
        return False
    if len(raw) != 2 * len(secret):
        return False
    noise, rest = raw[: len(secret)], raw[len(secret) :]
    return hmac.compare_digest(bytes(a ^ b for a, b in zip(noise, rest, strict=True)), secret)


def build_cookie_header(value: str, path: str, *, secure: bool, ends: bool = False, name: str = COOKIE) -> str:
    # Lax: a link from a chat opens the page instead of the sign-in. Changes need a CSRF token as well.
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
