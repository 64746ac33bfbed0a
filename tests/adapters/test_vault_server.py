"""Secrets in a real Vault: reading, access, and outages.

``LARGE_TESTS=1`` runs these tests. ``python -m tools.services start vault`` builds the server from Go modules, which
takes a quarter of an hour once.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest

from mainspring.core.model.base.errors import Invalid, SecretsUnavailable
from mainspring.core.model.base.instant import MINUTE
from mainspring.integrations.vault.secrets import AppRole, VaultSecrets
from tests.support.clock import ManualClock
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tools.services.vault import Vault

pytestmark = [
    pytest.mark.skipif(os.environ.get("LARGE_TESTS") != "1", reason="LARGE_TESTS=1 runs it"),
    pytest.mark.xdist_group("vault"),
]
_POLICY = 'path "kv/data/mainspring" { capabilities = ["read"] }'


class Site:
    """A server of its own, with an engine, a policy and a role."""

    def __init__(self, vault: Vault) -> None:
        self.vault = vault
        self.client = httpx2.Client(base_url=vault.address(), trust_env=False, timeout=DEADLINE_SECONDS)

    def ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        headers = {"X-Vault-Token": self.vault.token}
        answer = self.client.request(method, f"/v1/{path}", headers=headers, json=body).raise_for_status()
        found: dict[str, Any] = answer.json() if answer.content else {}
        return found

    def set_up(self) -> None:
        self.ask("POST", "sys/mounts/kv", {"type": "kv", "options": {"version": "2"}})

        def is_ready() -> bool:
            # The engine is upgraded to its second version in the background.
            try:
                self.keep(API_KEY="abcdef-1")
            except httpx2.HTTPStatusError:
                return False
            return True

        wait_until(is_ready)
        self.ask("PUT", "sys/policies/acl/mainspring", {"policy": _POLICY})
        self.ask("POST", "sys/auth/approle", {"type": "approle"})
        self.ask("POST", "auth/approle/role/mainspring", {"token_policies": "mainspring", "token_ttl": "1h"})

    def keep(self, **fields: object) -> None:
        self.ask("POST", "kv/data/mainspring", {"data": fields})

    def token(self, ttl: str = "1h", policy: str = "mainspring") -> str:
        made = self.ask("POST", "auth/token/create", {"policies": [policy], "ttl": ttl, "renewable": True})
        return str(made["auth"]["client_token"])

    def role(self) -> AppRole:
        found = self.ask("GET", "auth/approle/role/mainspring/role-id")["data"]["role_id"]
        secret = self.ask("POST", "auth/approle/role/mainspring/secret-id")["data"]["secret_id"]
        return AppRole(found, lambda: secret)

    def secrets(
        self, credentials: Callable[[], str] | AppRole, clock: ManualClock | None = None, path: str = "mainspring"
    ) -> VaultSecrets:
        """Values are fresh for a minute of the clock, and are served while they are fetched again for another."""
        return VaultSecrets(self.client, clock or ManualClock(), credentials, mount="kv", path=path, keep=MINUTE)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """The server accepts requests and answers none."""
        process = self.vault.nodes[0].pid
        assert process is not None
        os.kill(process, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(process, signal.SIGCONT)


@pytest.fixture(scope="module")
def server(address_of: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    # Skips if Vault cannot be installed. The shared server is not used, because a test stops its own.
    address_of("vault")
    vault = Vault(tmp_path_factory.mktemp("vault"))
    vault.ensure()
    try:
        site = Site(vault)
        site.set_up()
        yield site
    finally:
        vault.remove()


@pytest.fixture
def site(server: Site) -> Site:
    server.keep(API_KEY="abcdef-1", NUMBER=7)
    return server


def test_a_field_is_a_secret(site: Site) -> None:
    token = site.token()
    secrets = site.secrets(lambda: token)
    assert secrets.read("API_KEY") == "abcdef-1"
    assert secrets.read("OTHER") is None
    assert secrets.check() == 2
    with pytest.raises(Invalid, match="not a text"):
        secrets.read("NUMBER")


def test_the_error_names_a_missing_secret(site: Site) -> None:
    with pytest.raises(SecretsUnavailable, match="Vault has nothing at kv/nothing/here"):
        site.secrets(lambda: site.vault.token, path="nothing/here").read("API_KEY")


def test_a_deleted_secret_becomes_unavailable(site: Site) -> None:
    token, clock = site.token(), ManualClock()
    secrets = site.secrets(lambda: token, clock)
    assert secrets.read("API_KEY") == "abcdef-1"
    site.ask("DELETE", "kv/data/mainspring")
    clock.advance(3 * MINUTE)
    with pytest.raises(SecretsUnavailable, match="kv/mainspring was deleted"):
        secrets.read("API_KEY")


def test_a_new_value_and_a_removed_field_are_found_after_a_while(site: Site) -> None:
    token, clock = site.token(), ManualClock()
    secrets = site.secrets(lambda: token, clock)
    assert secrets.read("API_KEY") == "abcdef-1"
    site.keep(API_KEY="abcdef-2")
    assert secrets.read("API_KEY") == "abcdef-1"
    clock.advance(3 * MINUTE)
    assert secrets.read("API_KEY") == "abcdef-2"
    site.keep()
    clock.advance(3 * MINUTE)
    assert secrets.read("API_KEY") is None


def test_a_read_does_not_wait_while_a_new_value_is_fetched(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    # A read that waits for the stopped server does not return.
    monkeypatch.setattr("mainspring.integrations.vault.secrets._TIMEOUT", 3_600)
    token, clock = site.token(), ManualClock()
    secrets = site.secrets(lambda: token, clock)
    secrets.read("API_KEY")
    site.keep(API_KEY="abcdef-3")
    clock.advance(3 * MINUTE // 2)
    with site.stopped():
        for _ in range(20):
            assert secrets.read("API_KEY") == "abcdef-1"
    wait_until(lambda: secrets.read("API_KEY") == "abcdef-3")


def test_the_error_of_a_token_without_permission_says_so(site: Site) -> None:
    token = site.token(policy="default")
    with pytest.raises(SecretsUnavailable, match=r"Vault answered 403 .*permission denied"):
        site.secrets(lambda: token).read("API_KEY")


def test_a_wrong_token_is_not_in_the_error(site: Site) -> None:
    with pytest.raises(SecretsUnavailable, match="Vault answered 403") as caught:
        site.secrets(lambda: "hvs.not-a-token").read("API_KEY")
    assert "hvs" not in str(caught.value)


def test_a_token_is_renewed_before_it_ends(site: Site) -> None:
    # Long enough that the renewal comes before the end on a slow machine.
    token = site.token(ttl="30s")
    secrets = site.secrets(lambda: token)
    assert secrets.read("API_KEY") == "abcdef-1"

    def is_renewed() -> bool:
        return site.ask("POST", "auth/token/lookup", {"token": token})["data"]["last_renewal"] is not None

    wait_until(is_renewed)


def test_a_role_signs_in_again_after_its_token_was_revoked(site: Site) -> None:
    clock = ManualClock()
    secrets = site.secrets(site.role(), clock)
    assert secrets.read("API_KEY") == "abcdef-1"
    held = secrets._token
    assert held is not None
    site.ask("POST", "auth/token/revoke", {"token": held.text})
    clock.advance(3 * MINUTE)
    site.keep(API_KEY="abcdef-5")
    assert secrets.read("API_KEY") == "abcdef-5"
    assert secrets._token is not held


def test_the_error_of_a_role_with_a_wrong_secret_says_so(site: Site) -> None:
    role = AppRole(site.role().role_id, lambda: "wrong")
    with pytest.raises(SecretsUnavailable, match="invalid role or secret ID"):
        site.secrets(role).read("API_KEY")


def test_the_last_value_is_served_during_an_outage_and_only_one_read_waits(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, clock = site.token(), ManualClock()
    secrets, stranger = site.secrets(lambda: token, clock), site.secrets(lambda: token, clock)
    secrets.read("API_KEY")
    with site.stopped():
        clock.advance(3 * MINUTE)
        assert secrets.read("API_KEY") == "abcdef-1"
        with pytest.raises(SecretsUnavailable, match="does not answer"):
            stranger.read("API_KEY")
        # From here on, a read that waits for the stopped server does not return.
        monkeypatch.setattr("mainspring.integrations.vault.secrets._TIMEOUT", 3_600)
        assert secrets.read("API_KEY") == "abcdef-1"
        with pytest.raises(SecretsUnavailable, match="does not answer"):
            stranger.read("API_KEY")
    site.keep(API_KEY="abcdef-6")
    clock.advance(3 * MINUTE)
    wait_until(lambda: secrets.read("API_KEY") == "abcdef-6")
