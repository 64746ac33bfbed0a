"""Secrets in HashiCorp Vault: the fields of one secret in a KV engine of version 2."""

import threading
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

import httpx2
import msgspec

from mainspring.core.model.base.errors import Invalid, SecretsUnavailable
from mainspring.core.model.base.instant import HOUR, MINUTE, SECOND, Micros
from mainspring.core.ports.clock import Clock
from mainspring.core.runtime.log import get_logger

_log = get_logger("mainspring.secrets")

#: The time limit of a request. The first caller waits for it, and blocks the worker's event loop.
_TIMEOUT = 3.0
#: After a failure Vault is not asked again for this long …
_PAUSE: Micros = 5 * SECOND
#: … and callers do not wait for it for this long.
_NOT_WAITED_FOR: Micros = MINUTE
#: How long cached secrets stay valid while Vault is unavailable.
STALE: Micros = HOUR
#: A token is renewed after this fraction of its lifetime …
_RENEWED_AFTER = 2 / 3
#: … and a failed renewal is retried after this time, then after twice as long each time, up to a minute.
_AGAIN: Micros = SECOND


class AppRole(msgspec.Struct, frozen=True):
    """The AppRole to sign in with. ``secret_id`` is read on every sign-in, so that it can be rotated."""

    role_id: str
    secret_id: Callable[[], str]


class _Token(msgspec.Struct, frozen=True):
    text: str
    renewable: bool
    #: The lifetime; 0: until it is revoked.
    holds: Micros


class VaultSecrets:
    """Reads secrets from Vault. ``API_KEY`` is the field of that name. All fields are read and cached together.

    When the cache is older than ``keep``, a thread refreshes it while callers get the cached value. Callers do not
    wait for the refresh, nor for a Vault that has just failed to answer.
    """

    def __init__(
        self,
        client: httpx2.Client,
        clock: Clock,
        credentials: Callable[[], str] | AppRole,
        *,
        mount: str,
        path: str,
        keep: Micros,
    ) -> None:
        """``client``: has the address of Vault. ``credentials``: reads the token, or the AppRole to sign in with."""
        self._client = client
        self._clock = clock
        self._credentials = credentials
        self._url = f"/v1/{quote(mount)}/data/{quote(path)}"
        self._place = f"{mount}/{path}"
        self._keep = keep
        self._kept: Mapping[str, object] | None = None
        self._kept_at: Micros = 0
        self._failed_at: Micros | None = None
        self._error = SecretsUnavailable("Vault was not asked yet")
        self._token: _Token | None = None
        self._lock = threading.Lock()

    def read(self, name: str) -> str | None:
        found = self._fields().get(name)
        if found is not None and not isinstance(found, str):
            raise Invalid(name, "the secret in Vault is not a text", "a field with a string")
        return found

    def check(self) -> int:
        """Return the number of fields, read from Vault now. Raises ``SecretsUnavailable``."""
        with self._lock:
            return len(self._fetch())

    def _fields(self) -> Mapping[str, object]:
        now = self._clock.monotonic()
        kept, age = self._kept, now - self._kept_at
        if kept is not None and age < self._keep:
            return kept
        if kept is not None and (age < 2 * self._keep or (self._failed_at is not None and age < STALE)):
            self._refresh_later(now)
            return kept
        if self._failed_at is not None and now - self._failed_at < _NOT_WAITED_FOR:
            self._refresh_later(now)
            raise self._error
        self._refresh()
        if self._kept is None or self._clock.monotonic() - self._kept_at > STALE:
            raise self._error
        return self._kept

    def _refresh_later(self, now: Micros) -> None:
        if not self._lock.locked() and not self._rests(now):
            threading.Thread(target=self._refresh, name="mainspring-vault", daemon=True).start()

    def _rests(self, now: Micros) -> bool:
        return self._failed_at is not None and now - self._failed_at < _PAUSE

    def _refresh(self) -> None:
        with self._lock:
            now = self._clock.monotonic()
            if self._kept is not None and now - self._kept_at < self._keep:
                return
            if self._rests(now):
                return
            try:
                self._kept = self._fetch()
                self._kept_at, self._failed_at = self._clock.monotonic(), None
            except (SecretsUnavailable, Invalid) as error:
                self._error, self._failed_at = SecretsUnavailable(str(error)), self._clock.monotonic()
                _log.warning("secrets unavailable", error=str(error), cached=self._kept is not None)

    def _fetch(self) -> Mapping[str, object]:
        answer = self._send_request("GET", self._url, self._hold())
        if answer.status_code == 403:
            # The token may have been revoked.
            self._token = None
            answer = self._send_request("GET", self._url, self._hold())
        if answer.status_code == 404:
            raise self._nothing(answer)
        found = self._read_part(answer, "data").get("data")
        return found if isinstance(found, dict) else {}

    def _nothing(self, answer: httpx2.Response) -> SecretsUnavailable:
        """Explain a 404: the secret was deleted, the path is wrong, or the engine has another version."""
        try:
            self._read_part(answer, "data", status=404)
        except SecretsUnavailable:
            advice = "see vault.mount, which is an engine KV of version 2, and vault.path"
            return SecretsUnavailable(f"Vault has nothing at {self._place}: {advice}")
        # The secret has a history, so it was deleted on purpose and must not be used any longer.
        self._kept = None
        return SecretsUnavailable(f"Vault's secret {self._place} was deleted")

    def _hold(self) -> str:
        if self._token is None:
            self._token = self._sign_in()
            self._keep_good(self._token)
        return self._token.text

    def _sign_in(self) -> _Token:
        match self._credentials:
            case AppRole(role_id, secret_id):
                body = {"role_id": role_id, "secret_id": secret_id()}
                answered = self._read_part(self._send_request("POST", "/v1/auth/approle/login", None, body), "auth")
                return _Token(
                    str(answered["client_token"]), bool(answered["renewable"]), _read_lease(answered["lease_duration"])
                )
            case read_token:
                text = read_token()
                answered = self._read_part(self._send_request("GET", "/v1/auth/token/lookup-self", text), "data")
                return _Token(text, bool(answered.get("renewable")), _read_lease(answered.get("ttl", 0)))

    def _keep_good(self, token: _Token) -> None:
        if token.renewable and token.holds:
            ends = self._clock.monotonic() + token.holds
            # A token with a short lifetime needs several attempts before it ends.
            again = min(_AGAIN, token.holds // 32)
            self._renew_later(round(token.holds * _RENEWED_AFTER), token, ends, again)

    def _renew_later(self, after: Micros, token: _Token, ends: Micros, again: Micros) -> None:
        timer = threading.Timer(after / SECOND, self._renew, [token, ends, again])
        timer.daemon = True
        timer.name = "mainspring-vault"
        timer.start()

    def _renew(self, token: _Token, ends: Micros, again: Micros) -> None:
        with self._lock:
            if self._token is not token:
                return
            try:
                answered = self._read_part(
                    self._send_request("POST", "/v1/auth/token/renew-self", token.text, {}), "auth"
                )
            except SecretsUnavailable as error:
                left = ends - self._clock.monotonic()
                _log.warning("Vault token not renewable", error=str(error), expired=left <= 0)
                if left > 0:
                    self._renew_later(min(again, left), token, ends, min(2 * again, MINUTE))
                else:
                    # The next caller signs in again, or gets the error.
                    self._token = None
                return
            self._token = _Token(token.text, bool(answered["renewable"]), _read_lease(answered["lease_duration"]))
            self._keep_good(self._token)

    def _send_request(self, method: str, url: str, token: str | None, body: object = None) -> httpx2.Response:
        headers = {} if token is None else {"X-Vault-Token": token}
        try:
            return self._client.request(method, url, headers=headers, json=body, timeout=_TIMEOUT)
        except httpx2.HTTPError as error:
            # The message of this error is omitted, because it could contain the token.
            words = "" if isinstance(error, httpx2.LocalProtocolError) else str(error)
            raise SecretsUnavailable(f"Vault does not answer: {words or type(error).__name__}") from None

    def _read_part(self, answer: httpx2.Response, part: str, status: int = 200) -> dict[str, Any]:
        """Return a part of an answer. Errors contain Vault's messages, and never the value of a secret."""
        try:
            found = answer.json()
        except ValueError:
            found = {}
        if answer.status_code != status or not isinstance(found, dict) or not isinstance(found.get(part), dict):
            errors = found.get("errors") if isinstance(found, dict) else None
            why = " ".join("; ".join(map(str, errors)).split())[:200] if isinstance(errors, list) else ""
            raise SecretsUnavailable(f"Vault answered {answer.status_code} {why}".rstrip())
        answered: dict[str, Any] = found[part]
        return answered


def _read_lease(seconds: object) -> Micros:
    return seconds * SECOND if isinstance(seconds, int) else 0
