"""Who is asking? API keys and tokens; nothing else is believed."""

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
from mainspring.http.problems import Refused

#: A key that was revoked is refused after this long at the latest, and whatever it follows has ended.
REFUSED_WITHIN: Micros = 5 * SECOND
_KEY_CACHED: Micros = 3 * SECOND
_ASKED_AGAIN: Micros = 3 * SECOND // 2
_MISS_CACHED: Micros = SECOND
#: How often the store is told which keys were used.
_NOTED_EVERY: Micros = 10 * SECOND
_REMEMBERED = 10_000
_ALPHABET = string.ascii_lowercase + string.digits

#: Everybody, where no authentication is set up: only on loopback.
LOCAL = Principal(name="local", role=Role.ADMIN, tenant=None)


class Tokens(Protocol):
    """Reads bearer tokens that are no API keys."""

    async def principal(self, token: str) -> Principal | None: ...


class Authenticator:
    """Without keys and tokens set up everybody is local."""

    def __init__(
        self, store: Access, clock: Clock, *, required: bool, keys: bool = True, tokens: Tokens | None = None
    ) -> None:
        """``keys``: API keys are let in. ``tokens``: what reads other bearer tokens, if they are."""
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
            raise _unauthorized("no credentials", "Authorization: Bearer <API key or token>")
        if token.startswith(f"{KEY_PREFIX}_"):
            found = await self._by_key(token) if self._takes_keys else None
        else:
            found = None if self._tokens is None else await self._tokens.principal(token)
        if found is None:
            raise _unauthorized("these credentials are not valid", "unknown, expired or revoked")
        return found

    async def no_longer(self, authenticate: Callable[[], Awaitable[object]]) -> None:
        """Return when ``authenticate`` refuses: for streams, which outlive the check of their request."""
        while True:
            await self._clock.sleep(_ASKED_AGAIN)
            try:
                await authenticate()
            except Refused:
                return
            except StoreUnavailable:
                # Nobody can say. What was valid stays so until somebody can.
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
        """A key was changed by this very process."""
        self._keys.pop(identifier, None)

    async def note_use(self) -> None:
        """Tell the store which keys were used, each once a minute. For people to see; called now and then."""
        now = self._clock.monotonic()
        due = [key for key, at in self._used.items() if at >= self._noted.get(key, -MINUTE) + MINUTE]
        if due:
            await self._store.touch_keys(due)
            self._noted.update(dict.fromkeys(due, now))
        if len(self._noted) > _REMEMBERED:
            self._noted.clear()
            self._used.clear()


class SignOuts:
    """Sessions of the dashboard that were signed out of, as the store knows them.

    A sign-out is effective in this process at once, and in every other one within ``REFUSED_WITHIN``.
    """

    def __init__(self, store: Access, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        #: For each session whether it was ended, and until when that is taken from here.
        self._known: dict[str, tuple[bool, Micros]] = {}

    async def add(self, session: str, ends_at: Instant) -> None:
        await self._store.sign_out(session, ends_at)
        self._remember(session, ended=True)

    async def includes(self, session: str) -> bool:
        known = self._known.get(session)
        if known is None or self._clock.monotonic() >= known[1]:
            ended = await self._store.is_signed_out(session)
            # It may have been signed out here after the store had looked.
            known = self._remember(session, ended=ended or self._known.get(session, (False, 0))[0])
        return known[0]

    def _remember(self, session: str, *, ended: bool) -> tuple[bool, Micros]:
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        known = self._known[session] = (ended, self._clock.monotonic() + _KEY_CACHED)
        return known


class KeyKeeper(TickingService):
    """Tells the store now and then which keys are in use."""

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
    """A new key, and the text that is shown once."""
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


def _unauthorized(detail: str, hint: str) -> Refused:
    return Refused(401, "Unauthorized", detail, hint=hint)
