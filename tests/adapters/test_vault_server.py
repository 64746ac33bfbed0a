"""Secrets in a real Vault: what is read, who may, and what happens when it is away. ``LARGE_TESTS=1`` runs it:
``python -m tools.services start vault`` builds its server of Go's modules, which takes a quarter of an hour, once."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest

from mainspring.adapters.clock.system import SystemClock
from mainspring.adapters.secrets.vault import AppRole, VaultSecrets
from mainspring.domain.errors import Invalid, SecretsUnavailable
from mainspring.domain.instant import MILLISECOND, MINUTE, Micros
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
        self.client = httpx2.Client(base_url=vault.address(), trust_env=False, timeout=10)

    def ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        headers = {"X-Vault-Token": self.vault.token}
        answer = self.client.request(method, f"/v1/{path}", headers=headers, json=body).raise_for_status()
        found: dict[str, Any] = answer.json() if answer.content else {}
        return found

    def set_up(self) -> None:
        self.ask("POST", "sys/mounts/kv", {"type": "kv", "options": {"version": "2"}})
        # The engine is upgraded to its second version in the background.
        until = time.monotonic() + 20
        while True:
            try:
                self.keep(API_KEY="abcdef-1")
                break
            except httpx2.HTTPStatusError:
                assert time.monotonic() < until
                time.sleep(0.1)
        self.ask("PUT", "sys/policies/acl/mainspring", {"policy": _POLICY})
        self.ask("POST", "sys/auth/approle", {"type": "approle"})
        self.ask("POST", "auth/approle/role/mainspring", {"token_policies": "mainspring", "token_ttl": "2s"})

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
        self, credentials: Callable[[], str] | AppRole, keep: Micros = MINUTE, path: str = "mainspring"
    ) -> VaultSecrets:
        return VaultSecrets(self.client, SystemClock(), credentials, mount="kv", path=path, keep=keep)


@pytest.fixture(scope="module")
def server(address_of: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    # The one that all share says whether it can be had. This one is stopped by a test.
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


def test_what_is_not_there_is_named(site: Site) -> None:
    with pytest.raises(SecretsUnavailable, match="Vault has nothing at kv/nothing/here"):
        site.secrets(lambda: site.vault.token, path="nothing/here").read("API_KEY")


def test_what_was_deleted_does_not_count_any_more(site: Site) -> None:
    token = site.token()
    secrets = site.secrets(lambda: token, keep=50 * MILLISECOND)
    assert secrets.read("API_KEY") == "abcdef-1"
    site.ask("DELETE", "kv/data/mainspring")
    time.sleep(0.2)
    with pytest.raises(SecretsUnavailable, match="kv/mainspring was deleted"):
        secrets.read("API_KEY")


def test_a_new_value_counts_after_a_while_and_what_is_gone_is_gone(site: Site) -> None:
    token = site.token()
    secrets = site.secrets(lambda: token, keep=300 * MILLISECOND)
    assert secrets.read("API_KEY") == "abcdef-1"
    site.keep(API_KEY="abcdef-2")
    assert secrets.read("API_KEY") == "abcdef-1"
    time.sleep(0.7)
    assert secrets.read("API_KEY") == "abcdef-2"
    site.keep()
    time.sleep(0.7)
    assert secrets.read("API_KEY") is None


def test_who_reads_often_never_waits_for_a_new_value(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    token = site.token()
    secrets = site.secrets(lambda: token, keep=300 * MILLISECOND)
    secrets.read("API_KEY")
    site.keep(API_KEY="abcdef-3")
    slowly = secrets._fetch

    def fetch() -> Any:
        time.sleep(0.1)
        return slowly()

    monkeypatch.setattr(secrets, "_fetch", fetch)
    until, longest = time.monotonic() + 1, 0.0
    while time.monotonic() < until:
        asked = time.monotonic()
        found = secrets.read("API_KEY")
        longest = max(longest, time.monotonic() - asked)
        time.sleep(0.01)
    assert found == "abcdef-3"
    assert longest < 0.1


def test_a_token_that_may_not_read_is_told_so(site: Site) -> None:
    token = site.token(policy="default")
    with pytest.raises(SecretsUnavailable, match=r"Vault answered 403 .*permission denied"):
        site.secrets(lambda: token).read("API_KEY")


def test_a_wrong_token_is_not_in_the_message(site: Site) -> None:
    with pytest.raises(SecretsUnavailable, match="Vault answered 403") as caught:
        site.secrets(lambda: "hvs.not-a-token").read("API_KEY")
    assert "hvs" not in str(caught.value)


def test_a_token_is_renewed_before_it_ends(site: Site) -> None:
    token = site.token(ttl="3s")
    secrets = site.secrets(lambda: token, keep=100 * MILLISECOND)
    assert secrets.read("API_KEY") == "abcdef-1"
    # Nobody reads meanwhile.
    time.sleep(5)
    site.keep(API_KEY="abcdef-4")
    assert secrets.read("API_KEY") == "abcdef-4"


def test_a_role_signs_in_and_signs_in_again(site: Site) -> None:
    secrets = site.secrets(site.role(), keep=50 * MILLISECOND)
    assert secrets.read("API_KEY") == "abcdef-1"
    held = secrets._token
    assert held is not None
    site.ask("POST", "auth/token/revoke", {"token": held.text})
    time.sleep(0.2)
    site.keep(API_KEY="abcdef-5")
    assert secrets.read("API_KEY") == "abcdef-5"
    assert secrets._token is not held


def test_a_role_with_a_wrong_secret_is_told_so(site: Site) -> None:
    role = AppRole(site.role().role_id, lambda: "wrong")
    with pytest.raises(SecretsUnavailable, match="invalid role or secret ID"):
        site.secrets(role).read("API_KEY")


def test_while_it_is_away_what_it_said_last_counts_and_nobody_waits_twice(site: Site) -> None:
    token = site.token()
    secrets = site.secrets(lambda: token, keep=50 * MILLISECOND)
    stranger = site.secrets(lambda: token)
    secrets.read("API_KEY")
    process = site.vault.nodes[0].pid
    assert process is not None
    os.kill(process, signal.SIGSTOP)
    try:
        time.sleep(0.2)
        assert secrets.read("API_KEY") == "abcdef-1"
        asked = time.monotonic()
        assert secrets.read("API_KEY") == "abcdef-1"
        assert time.monotonic() - asked < 1, "it was asked again at once"
        for _ in range(2):
            with pytest.raises(SecretsUnavailable, match="does not answer"):
                stranger.read("API_KEY")
    finally:
        os.kill(process, signal.SIGCONT)
    secrets._failed_at = None
    site.keep(API_KEY="abcdef-6")
    time.sleep(0.2)
    assert secrets.read("API_KEY") == "abcdef-6"
