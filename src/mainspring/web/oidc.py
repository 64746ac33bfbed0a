"""Sign-in at an OpenID provider: the authorization code flow, with PKCE.

1. The claims of the provider are evaluated once, here.
2. The principal is sealed into the session cookie for an hour.
3. The provider is then asked again, which is invisible to people who are still signed in there. Changed groups and
   closed accounts take effect at that time.
"""

import asyncio
import base64
import hashlib
import secrets
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import httpx2
import msgspec

from mainspring.core.model.access.access import Principal, Role
from mainspring.core.model.access.token_rules import Algorithm, check_jwks_url
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import MINUTE, Instant, Micros
from mainspring.core.ports.clock import Clock
from mainspring.core.runtime.log import get_logger
from mainspring.http.auth.tokens import JwksUrl, JwtTokens, format_name
from mainspring.http.problems import RequestError

#: How long a person may take at the provider before they have to start again.
MAX_ATTEMPT_TIME: Micros = 10 * MINUTE
_DISCOVERY_TTL: Micros = 10 * MINUTE
_TIMEOUT = 5.0
_MAX_ANSWER = 256 * 1024

_log = get_logger("mainspring.web.oidc")


class OidcSettings(msgspec.Struct, frozen=True, kw_only=True):
    issuer: str
    client_id: str
    client_secret: str
    #: The address under which browsers reach the dashboard.
    url: str
    algorithm: Algorithm = "RS256"
    scopes: tuple[str, ...] = ("openid",)
    group_claim: str = "groups"
    name_claim: str = "sub"
    label: str = ""
    #: The role and tenant for each group. The first group that matches counts.
    roles: Mapping[str, tuple[Role, str | None]]


class SignInAttempt(msgspec.Struct, frozen=True):
    """A sign-in in progress at the provider, sealed into a cookie: only the same browser can finish it."""

    state: str
    nonce: str
    verifier: str
    #: The page to show after the sign-in.
    to: str
    ends_at: Instant


class _Provider(msgspec.Struct, frozen=True):
    """The fields of the provider's discovery document that the sign-in needs."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str


class _TokenAnswer(msgspec.Struct, frozen=True):
    id_token: str


class Oidc:
    def __init__(self, settings: OidcSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._provider: _Provider | None = None
        self._tokens: JwtTokens | None = None
        self._fetched_at: Micros = 0
        self._lock = asyncio.Lock()
        self.label = settings.label or urlsplit(settings.issuer).hostname or ""

    @property
    def _callback(self) -> str:
        return f"{self._settings.url.rstrip('/')}/sign-in/oidc/callback"

    async def begin(self, to: str) -> tuple[str, SignInAttempt]:
        """Return the provider's address to redirect to, and the attempt to check the callback against."""
        provider, _ = await self._discover()
        attempt = SignInAttempt(
            state=secrets.token_urlsafe(32),
            nonce=secrets.token_urlsafe(32),
            verifier=secrets.token_urlsafe(48),
            to=to,
            ends_at=self._clock.now() + MAX_ATTEMPT_TIME,
        )
        challenge = base64.urlsafe_b64encode(hashlib.sha256(attempt.verifier.encode()).digest()).rstrip(b"=")
        parameters = {
            "response_type": "code",
            "client_id": self._settings.client_id,
            "redirect_uri": self._callback,
            "scope": " ".join(self._settings.scopes),
            "state": attempt.state,
            "nonce": attempt.nonce,
            "code_challenge": challenge.decode(),
            "code_challenge_method": "S256",
        }
        separator = "&" if urlsplit(provider.authorization_endpoint).query else "?"
        return f"{provider.authorization_endpoint}{separator}{urlencode(parameters)}", attempt

    async def finish(self, attempt: SignInAttempt, code: str, state: str) -> Principal:
        """Return the principal who has signed in. Raises ``Refused`` if any check fails; the log has the reason."""
        if not secrets.compare_digest(attempt.state.encode(), state.encode()) or not code:
            raise _build_refusal("state mismatch")
        provider, tokens = await self._discover()
        claims = await tokens.claims(await self._fetch_id_token(provider, attempt, code))
        if claims is None:
            raise _build_refusal("invalid token")
        if claims.get("nonce") != attempt.nonce:
            raise _build_refusal("nonce mismatch")
        if claims.get("azp", self._settings.client_id) != self._settings.client_id:
            raise _build_refusal("token of another client")
        return self._build_principal(claims)

    def _build_principal(self, claims: Mapping[str, Any]) -> Principal:
        name, found = claims.get(self._settings.name_claim), claims.get(self._settings.group_claim)
        groups = [found] if isinstance(found, str) else found if isinstance(found, list) else []
        if not isinstance(name, str):
            raise _build_refusal(f"the token has no {self._settings.name_claim}")
        for group, (role, tenant) in self._settings.roles.items():
            if group in groups:
                return Principal(name=format_name(name), role=role, tenant=tenant)
        _log.info("sign-in denied: no group has a role", name=name)
        raise RequestError(
            403,
            "Forbidden",
            "none of your groups has access",
            hint="ask an administrator to map one of them in oidc.roles",
        )

    async def _fetch_id_token(self, provider: _Provider, attempt: SignInAttempt, code: str) -> str:
        settings = self._settings
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._callback,
            "client_id": settings.client_id,
            "code_verifier": attempt.verifier,
        }
        headers = {}
        if settings.client_secret:
            pair = f"{quote(settings.client_id, safe='')}:{quote(settings.client_secret, safe='')}"
            headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        answer = await _request("POST", provider.token_endpoint, headers, form)
        try:
            return msgspec.json.decode(answer, type=_TokenAnswer).id_token
        except msgspec.MsgspecError:
            raise _build_refusal("the provider's answer has no token") from None

    async def _discover(self) -> tuple[_Provider, JwtTokens]:
        """Return the provider's configuration, at most ten minutes old, or older while the provider fails."""
        async with self._lock:
            now = self._clock.monotonic()
            if self._provider is None or self._tokens is None or now - self._fetched_at > _DISCOVERY_TTL:
                try:
                    self._use_provider(await self._fetch_provider())
                    self._fetched_at = now
                except RequestError:
                    if self._provider is None:
                        raise
            assert self._provider is not None
            assert self._tokens is not None
            return self._provider, self._tokens

    def _use_provider(self, provider: _Provider) -> None:
        if self._provider == provider:
            return
        settings = self._settings
        self._provider = provider
        self._tokens = JwtTokens(
            JwksUrl(provider.jwks_uri, settings.algorithm, self._clock),
            self._clock,
            algorithm=settings.algorithm,
            issuer=settings.issuer,
            audience=settings.client_id,
        )

    async def _fetch_provider(self) -> _Provider:
        discovery_url = f"{self._settings.issuer.rstrip('/')}/.well-known/openid-configuration"
        try:
            found = msgspec.json.decode(await _request("GET", discovery_url, {}, None), type=_Provider)
            for address in (found.authorization_endpoint, found.token_endpoint, found.jwks_uri):
                check_jwks_url("oidc.issuer", address)
        except (msgspec.MsgspecError, Invalid):
            raise _build_refusal("invalid discovery document") from None
        if found.issuer != self._settings.issuer:
            raise _build_refusal("the provider has another issuer")
        return found


async def _request(method: str, address: str, headers: dict[str, str], form: dict[str, str] | None) -> bytes:
    """Send a request and return its body. Uses no proxy or credentials of the environment; follows no redirects."""
    try:
        async with (
            asyncio.timeout(_TIMEOUT),
            httpx2.AsyncClient(
                verify=ssl.create_default_context(), trust_env=False, follow_redirects=False, timeout=_TIMEOUT
            ) as client,
            client.stream(method, address, data=form, headers={**headers, "accept": "application/json"}) as answer,
        ):
            if answer.status_code != 200:
                raise _build_refusal(f"the provider answered {answer.status_code}")
            data = bytearray()
            async for part in answer.aiter_bytes():
                data += part
                if len(data) > _MAX_ANSWER:
                    raise _build_refusal("the provider's answer is too large")
            return bytes(data)
    except (httpx2.HTTPError, TimeoutError, OSError) as error:
        raise _build_refusal(f"the provider is unavailable: {type(error).__name__}") from None


def _build_refusal(why: str) -> RequestError:
    _log.warning("sign-in failed", error=why)
    return RequestError(401, "Unauthorized", "the sign-in failed", hint="sign in again")
