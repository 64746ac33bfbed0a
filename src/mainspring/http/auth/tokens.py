"""Bearer tokens (JWT) that an identity provider signed.

The algorithm belongs to the configured key. A token that names another algorithm is refused, so a token can never
choose how it is checked.
"""

import asyncio
import base64
import re
import ssl
import warnings
from collections.abc import Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

import httpx2
import msgspec
from joserfc import jws
from joserfc.errors import JoseError, SecurityWarning, UnsupportedAlgorithmError
from joserfc.jwk import Key, OctKey, OKPKey, RSAKey

from mainspring.core.model.access.access import Principal, Role
from mainspring.core.model.access.token_rules import Algorithm, check_jwks_url, check_secret
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import MINUTE, SECOND, Micros
from mainspring.core.model.runs.names import ALL_TENANTS, MAX_NAME, check_name
from mainspring.core.ports.clock import Clock
from mainspring.core.runtime.log import get_logger
from mainspring.http.auth.weak_keys import find_weakness

LARGEST_TOKEN = 8 * 1024
#: The largest accepted difference between the clocks of two machines, in seconds.
LEEWAY = 30

LARGEST_SET = 1024 * 1024
MOST_KEYS = 100
SET_CACHED: Micros = 10 * MINUTE
#: Clients can invent key ids; each unknown id must not cause a request to the provider.
SET_AGAIN: Micros = 30 * SECOND
_FIRST_SET_AGAIN: Micros = 5 * SECOND
_FETCH_TIMEOUT = 5.0

_BASE64URL = re.compile("[A-Za-z0-9_-]*")

_log = get_logger("mainspring.http.auth.tokens")


class KeySource(Protocol):
    """A source of keys that are all for the configured algorithm."""

    async def key(self, kid: str | None) -> Key | None: ...


class SingleKey:
    """A single key. The key id of a token does not matter."""

    def __init__(self, key: Key) -> None:
        self._key = key

    async def key(self, kid: str | None) -> Key | None:
        return self._key


class KeyRing:
    def __init__(self, keys: Sequence[tuple[str | None, Key]]) -> None:
        self._keys = keys

    def find(self, kid: str | None) -> Key | None:
        """Return the key with this id. A token without an id is checked only if there is a single key."""
        if kid is None:
            return self._keys[0][1] if len(self._keys) == 1 else None
        return next((key for known, key in self._keys if known == kid), None)

    async def key(self, kid: str | None) -> Key | None:
        return self.find(kid)


class JwksUrl:
    """Keys that the provider publishes and rotates. They are fetched when the first token arrives."""

    def __init__(
        self, url: str, algorithm: Algorithm, clock: Clock, transport: httpx2.AsyncBaseTransport | None = None
    ) -> None:
        self._url = check_jwks_url("auth.jwks_url", url)
        self._algorithm = algorithm
        self._clock = clock
        self._transport = transport
        self._ring: KeyRing | None = None
        self._fetched_at: Micros = 0
        self._tried_at: Micros | None = None
        self._lock = asyncio.Lock()

    async def key(self, kid: str | None) -> Key | None:
        known = self._find(kid)
        # Only one request asks the provider. Others wait for it only if the key that they need is unknown.
        if self._due(known) or (known is None and self._lock.locked()):
            async with self._lock:
                if self._due(self._find(kid)):
                    await self._refresh()
            return self._find(kid)
        return known

    def _find(self, kid: str | None) -> Key | None:
        return None if self._ring is None else self._ring.find(kid)

    def _due(self, known: Key | None) -> bool:
        now = self._clock.monotonic()
        pause = _FIRST_SET_AGAIN if self._ring is None else SET_AGAIN
        if self._tried_at is not None and now - self._tried_at < pause:
            return False
        return known is None or now - self._fetched_at >= SET_CACHED

    async def _refresh(self) -> None:
        """Fetch the keys.

        If this fails, the old keys stay valid, because an unavailable provider must not lock out every user.
        """
        self._tried_at = self._clock.monotonic()
        try:
            async with asyncio.timeout(_FETCH_TIMEOUT):
                self._ring = read_jwks("auth.jwks_url", await self._fetch(), self._algorithm)
            self._fetched_at = self._tried_at
        except Exception as error:
            _log.warning(
                "the keys of the identity provider could not be fetched",
                host=urlsplit(self._url).hostname,
                why=error.reason if isinstance(error, Invalid) else type(error).__name__,
                old_keys_kept=self._ring is not None,
            )

    async def _fetch(self) -> bytes:
        async with (
            # No proxy and no credentials from the environment; TLS trusts the certificates of this machine.
            httpx2.AsyncClient(
                verify=ssl.create_default_context(),
                trust_env=False,
                follow_redirects=False,
                timeout=_FETCH_TIMEOUT,
                transport=self._transport,
            ) as client,
            client.stream("GET", self._url, headers={"accept-encoding": "identity"}) as response,
        ):
            if response.status_code != 200:
                raise Invalid("auth.jwks_url", f"answers {response.status_code}")
            if response.headers.get("content-encoding", "identity") != "identity":
                raise Invalid("auth.jwks_url", "answers with something compressed")
            data = bytearray()
            async for part in response.aiter_raw():
                data += part
                if len(data) > LARGEST_SET:
                    raise Invalid("auth.jwks_url", f"answers with more than {LARGEST_SET} bytes")
            return bytes(data)


def build_secret_key(where: str, secret: bytes) -> SingleKey:
    """Return the shared secret of HS256 as a key."""
    return SingleKey(OctKey.import_key(check_secret(where, secret)))


def read_pem(where: str, data: bytes, algorithm: Algorithm) -> SingleKey:
    """Read the public key or the certificate for RS256 or EdDSA."""
    hint = f"the public key for {algorithm} in PEM"
    if b"-----BEGIN" not in data:
        raise Invalid(where, "is not PEM", hint)
    if b"PRIVATE KEY" in data:
        raise Invalid(where, "holds a private key, which is for the issuer alone", hint)
    key = _import(data, algorithm)
    if key is None:
        raise Invalid(where, "holds no usable key", hint)
    return SingleKey(key)


class _Set(msgspec.Struct):
    keys: list[dict[str, Any]]


def read_jwks(where: str, data: bytes, algorithm: Algorithm) -> KeyRing:
    """Return the keys of a set that fit the algorithm. Keys for other purposes are skipped."""
    try:
        listed = msgspec.json.decode(data, type=_Set).keys
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Invalid(where, "is not a JSON Web Key Set", '{"keys": […]}') from None
    keys: list[tuple[str | None, Key]] = []
    for item in listed[:MOST_KEYS]:
        kid = item.get("kid")
        key = _import_jwk(item, algorithm)
        if key is not None and (kid is None or isinstance(kid, str)):
            keys.append((kid, key))
    if not keys:
        raise Invalid(where, f"holds no usable key for {algorithm}")
    return KeyRing(keys)


_PUBLIC_PARTS: dict[Algorithm, tuple[str, ...]] = {"RS256": ("kty", "n", "e"), "EdDSA": ("kty", "crv", "x")}


def _import_jwk(item: dict[str, Any], algorithm: Algorithm) -> Key | None:
    """Import a key from its public parts only, because a secret in a published set is not secret."""
    if item.get("use", "sig") != "sig" or item.get("alg", algorithm) != algorithm:
        return None
    if "key_ops" in item and "verify" not in (item["key_ops"] or ()):
        return None
    parts = _PUBLIC_PARTS.get(algorithm, ())
    if not parts or not all(isinstance(item.get(part), str) for part in parts):
        return None
    if item["kty"] != ("RSA" if algorithm == "RS256" else "OKP"):
        return None
    return _import({part: item[part] for part in parts}, algorithm)


def _import(data: "bytes | dict[str, Any]", algorithm: Algorithm) -> Key | None:
    """Import a key. Return None if it is broken, weak, or for another algorithm."""
    try:
        with warnings.catch_warnings():
            # joserfc only warns about an RSA key that is too short.
            warnings.simplefilter("error", SecurityWarning)
            if algorithm == "RS256":
                rsa = RSAKey.import_key(data)
                numbers = rsa.public_key.public_numbers()
                if weakness := find_weakness(numbers.n, numbers.e):
                    _log.warning("weak RSA key ignored", why=weakness)
                    return None
                return rsa
            key = OKPKey.import_key(data)
            return key if key.curve_name in ("Ed25519", "Ed448") else None
    except (JoseError, SecurityWarning, ValueError, TypeError, KeyError):
        return None


class _Registry(jws.JWSRegistry):
    """Accepts one algorithm and ignores the name in the token."""

    max_header_length = 2 * 1024

    def __init__(self, algorithm: Algorithm) -> None:
        # Other header fields are defined by the provider.
        super().__init__(algorithms=[algorithm], strict_check_header=False)
        self._algorithm = algorithm

    def get_alg(self, name: str) -> Any:
        if name != self._algorithm:
            raise UnsupportedAlgorithmError("not the algorithm of the key")
        return self.algorithms[self._algorithm]


class _Claims(msgspec.Struct):
    sub: str
    iss: str
    aud: str | list[str]
    exp: float
    nbf: float = 0
    iat: float = 0


class _No(Exception):
    """The reason why a token is refused, for the log. It never contains a part of the token."""


class JwtTokens:
    """Validates tokens of one issuer for one audience."""

    def __init__(
        self,
        keys: KeySource,
        clock: Clock,
        *,
        algorithm: Algorithm,
        issuer: str,
        audience: str,
        role_claim: str = "role",
        tenant_claim: str = "tenant",
    ) -> None:
        self._keys = keys
        self._clock = clock
        self._registry = _Registry(algorithm)
        self._issuer = issuer
        self._audience = audience
        self._role_claim = role_claim
        self._tenant_claim = tenant_claim

    async def principal(self, token: str) -> Principal | None:
        """Return the principal of a token, or None if the token is invalid. The caller does not learn the reason."""
        try:
            claims = await self._checked(token)
            role = _read_role(claims.get(self._role_claim))
            tenant = _read_tenant(claims.get(self._tenant_claim), role)
            return Principal(name=format_name(claims["sub"]), role=role, tenant=tenant)
        except Exception as error:
            _reject(error)
            return None

    async def claims(self, token: str) -> dict[str, Any] | None:
        """Return the claims of a valid token whatever its role and tenant, or None if it is invalid."""
        try:
            return await self._checked(token)
        except Exception as error:
            _reject(error)
            return None

    async def _checked(self, token: str) -> dict[str, Any]:
        return self._read(await self._verify(token))

    async def _verify(self, token: str) -> bytes:
        """Return the payload if the signature is valid."""
        if len(token) > LARGEST_TOKEN:
            raise _No("too large")
        if not _is_strict(token):
            raise _No("not base64url without padding")
        signed = jws.extract_compact(token.encode("ascii"), None, self._registry)
        header = signed.headers()
        self._registry.get_alg(header["alg"])
        if "crit" in header or "b64" in header:
            raise _No("extensions that are not known here")
        kid = header.get("kid")
        if kid is not None and not isinstance(kid, str):
            raise _No("no key id")
        key = await self._keys.key(kid)
        if key is None:
            raise _No("no such key")
        if not jws.validate_compact(signed, key, registry=self._registry):
            raise _No("wrong signature")
        return signed.payload

    def _read(self, payload: bytes) -> dict[str, Any]:
        claims = msgspec.json.decode(payload, type=_Claims)
        now = self._clock.now() / SECOND
        if now >= claims.exp + LEEWAY:
            raise _No("expired")
        if max(claims.nbf, claims.iat) > now + LEEWAY:
            raise _No("not valid yet")
        if claims.iss != self._issuer:
            raise _No("another issuer")
        if self._audience not in ([claims.aud] if isinstance(claims.aud, str) else claims.aud):
            raise _No("another audience")
        return msgspec.json.decode(payload, type=dict[str, Any])


def _is_strict(token: str) -> bool:
    """Return whether a token has three parts in strict base64url: no padding, no other characters, no unused bits
    set.

    Otherwise one token has several spellings, and two programs may read different content in it (RFC 7515, section
    2).
    """
    parts = token.split(".")
    return len(parts) == 3 and all(_BASE64URL.fullmatch(part) and _is_canonical(part) for part in parts)


def _is_canonical(part: str) -> bool:
    if len(part) % 4 == 1:
        return False
    decoded = base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
    return base64.urlsafe_b64encode(decoded).rstrip(b"=") == part.encode()


def _reject(error: Exception) -> None:
    # Three parsers have read untrusted bytes, so any exception means that the token is invalid.
    _log.debug("token rejected", why=str(error) if isinstance(error, _No) else type(error).__name__)


def _read_role(claim: object) -> Role:
    """Return the role of a claim: a string, or a list with exactly one, because some providers only write lists."""
    if isinstance(claim, list) and len(claim) == 1:
        claim = claim[0]
    if not isinstance(claim, str) or claim not in set(Role):
        raise _No("no role")
    return Role(claim)


def _read_tenant(claim: object, role: Role) -> str | None:
    """Return the tenant of a claim. It is required, because a missing claim must not grant access to every tenant."""
    if not isinstance(claim, str):
        raise _No("no tenant")
    if claim == ALL_TENANTS:
        if role is not Role.ADMIN:
            raise _No("all tenants without being an administrator")
        return None
    return check_name("tenant", claim)


def format_name(subject: str) -> str:
    """Return the name that the audit log uses for the subject of a token."""
    name = f"user:{check_name('sub', subject)}"
    if len(name) > MAX_NAME:
        raise _No("the subject is too long")
    return name
