"""Authenticates requests by API key or token."""

import secrets
import string
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from mainspring.core.model.access.access import (
    KEY_ID_LENGTH,
    KEY_PREFIX,
    ApiKey,
    Principal,
    Role,
    hash_secret,
    read_key,
    write_key,
)
from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.core.model.base.instant import MINUTE, SECOND, Instant, Micros
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.storage.access import Access
from mainspring.core.ports.wakeups import Wakeups
from mainspring.core.runtime.service import TickingService
from mainspring.http.problems import RequestError

#: A revoked key is refused within this time, and its open streams have ended.
REFUSED_WITHIN: Micros = 5 * SECOND
_KEY_CACHED: Micros = 3 * SECOND
_ASKED_AGAIN: Micros = 3 * SECOND // 2
_MISS_CACHED: Micros = SECOND
#: How often the last use of keys is written to the store.
_NOTED_EVERY: Micros = 10 * SECOND
_REMEMBERED = 10_000
_ALPHABET = string.ascii_lowercase + string.digits

#: The principal of every request if authentication is off, which is allowed on loopback only.
LOCAL = Principal(name="local", role=Role.ADMIN, tenant=None)


class TokenReader(Protocol):
    """Reads bearer tokens that are not API keys."""

    async def principal(self, token: str) -> Principal | None: ...


class Authenticator:
    """Authenticates requests. Without authentication every request has the principal ``LOCAL``."""

    def __init__(
        self, store: Access, clock: Clock, *, required: bool, keys: bool = True, tokens: TokenReader | None = None
    ) -> None:
        """``keys``: whether API keys are accepted. ``tokens``: reads other bearer tokens, or None to refuse them."""
        self._store = store
        self._clock = clock
        self._takes_keys = keys
        self._tokens = tokens
        self.required = required
        self._keys: dict[str, tuple[ApiKey | None, Micros]] = {}
        self._used: dict[str, Micros] = {}
        self._noted: dict[str, Micros] = {}

    async def principal(self, headers: Mapping[str, str]) -> Principal:
        if not self.required:
            return LOCAL
        scheme, _, token = headers.get("authorization", "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            raise _reject("no credentials", "Authorization: Bearer <API key or token>")
        if token.startswith(f"{KEY_PREFIX}_"):
            found = await self._by_key(token) if self._takes_keys else None
        else:
            found = None if self._tokens is None else await self._tokens.principal(token)
        if found is None:
            raise _reject("these credentials are not valid", "unknown, expired or revoked")
        return found

    async def wait_for_revocation(self, authenticate: Callable[[], Awaitable[object]]) -> None:
        """Return when ``authenticate`` refuses the credentials.

        Streams need this, because they outlive the check of their request.
        """
        while True:
            await self._clock.sleep(_ASKED_AGAIN)
            try:
                await authenticate()
            except RequestError:
                return
            except StoreUnavailable:
                # The store cannot answer. Credentials that were valid stay valid until it can.
                continue

    async def _by_key(self, token: str) -> Principal | None:
        read = read_key(token)
        if read is None:
            return None
        identifier, secret = read
        now = self._clock.monotonic()
        known = self._keys.get(identifier)
        if known is None or now >= known[1]:
            key = await self._store.key(identifier)
            if len(self._keys) >= _REMEMBERED:
                self._keys.clear()
            known = (key, now + (_MISS_CACHED if key is None else _KEY_CACHED))
            self._keys[identifier] = known
        key = known[0]
        if key is None or not key.is_valid(secret, self._clock.now()):
            return None
        self._used[identifier] = now
        return key.principal

    def forget(self, identifier: str) -> None:
        """Drop a key from the cache, because this process changed it."""
        self._keys.pop(identifier, None)

    async def note_use(self) -> None:
        """Record in the store which keys were used, each at most once a minute. The times are shown to users."""
        now = self._clock.monotonic()
        due = [key for key, at in self._used.items() if at >= self._noted.get(key, -MINUTE) + MINUTE]
        if due:
            await self._store.touch_keys(due)
            self._noted.update(dict.fromkeys(due, now))
        if len(self._noted) > _REMEMBERED:
            self._noted.clear()
            self._used.clear()


class SignOuts:
    """The dashboard sessions that were signed out.

    A sign-out takes effect in this process at once, and in every other one within ``REFUSED_WITHIN``.
    """

    def __init__(self, store: Access, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        #: For each session whether it was ended, and until when this entry is valid.
        self._known: dict[str, tuple[bool, Micros]] = {}

    async def add(self, session: str, ends_at: Instant) -> None:
        await self._store.sign_out(session, ends_at)
        self._remember(session, ended=True)

    async def includes(self, session: str) -> bool:
        known = self._known.get(session)
        if known is None or self._clock.monotonic() >= known[1]:
            ended = await self._store.is_signed_out(session)
            # The session may have been signed out here after the store was read.
            known = self._remember(session, ended=ended or self._known.get(session, (False, 0))[0])
        return known[0]

    def _remember(self, session: str, *, ended: bool) -> tuple[bool, Micros]:
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        known = self._known[session] = (ended, self._clock.monotonic() + _KEY_CACHED)
        return known


class KeyUsageRecorder(TickingService):
    """Records periodically in the store which keys are in use."""

    def __init__(self, auth: Authenticator, wakeups: Wakeups, clock: Clock) -> None:
        super().__init__("api.keys", clock, wakeups.listen(()))
        self._auth = auth

    async def tick(self) -> Micros:
        await self._auth.note_use()
        return _NOTED_EVERY


def make_key(
    *,
    name: str,
    role: Role,
    tenant: str | None,
    author: str,
    queues: tuple[str, ...] = (),
    expires_at: Instant | None = None,
) -> tuple[ApiKey, str]:
    """Create a key. Returns it with its text, which is shown only once."""
    identifier = "".join(secrets.choice(_ALPHABET) for _ in range(KEY_ID_LENGTH))
    secret = secrets.token_urlsafe(32)
    key = ApiKey(
        id=identifier,
        tenant=tenant,
        name=name,
        role=role,
        secret_hash=hash_secret(secret),
        queues=queues,
        made_by=author,
        expires_at=expires_at,
    )
    key.check()
    return key, write_key(identifier, secret)


def _reject(detail: str, hint: str) -> RequestError:
    return RequestError(401, "Unauthorized", detail, hint=hint)
