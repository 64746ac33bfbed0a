"""Secrets in a fake Vault, with times and failures that a real one cannot be brought to.

``test_vault_server`` uses a real one.
"""

import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest

from mainspring.config.health import examine
from mainspring.config.loading import load
from mainspring.config.runtime import Runtime
from mainspring.config.tasks import make_keyring
from mainspring.core.model.base.errors import Invalid, SecretsUnavailable
from mainspring.core.model.base.instant import HOUR, MINUTE, SECOND
from mainspring.core.model.cluster.diagnosis import Level
from mainspring.core.ports.clock import Clock
from mainspring.core.worker.secrets import SecretRefused
from mainspring.integrations.vault.secrets import AppRole, VaultSecrets
from tests.support.certificates import make_certificate
from tests.support.clock import ManualClock
from tests.support.vault import ROLE, SECRET_ID, Vault, running
from tests.support.waiting import DEADLINE_SECONDS, wait_until


@pytest.fixture(autouse=True)
def _no_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.integrations.vault.secrets._TIMEOUT", 3_600)


@pytest.fixture
def vault() -> Iterator[Vault]:
    with running() as found:
        found.fields = {"API_KEY": "from the vault", "NUMBER": 5}
        yield found
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer) and thread.name == "mainspring-vault":
            thread.cancel()
            thread.join()


def make_secrets(
    vault: Vault, clock: Clock, credentials: Callable[[], str] | AppRole, authority: str = ""
) -> VaultSecrets:
    trusted = ssl.create_default_context(cafile=authority or None)
    client = httpx2.Client(base_url=vault.address, trust_env=False, verify=trusted, timeout=DEADLINE_SECONDS)
    return VaultSecrets(client, clock, credentials, mount="secret", path="mainspring", keep=30 * SECOND)


def by_token(vault: Vault, clock: Clock, token: str | None = None, authority: str = "") -> VaultSecrets:
    token = vault.new_token() if token is None else token
    return make_secrets(vault, clock, lambda: token, authority)


def by_role(vault: Vault, clock: ManualClock, secret_id: str = SECRET_ID) -> VaultSecrets:
    return make_secrets(vault, clock, AppRole(ROLE, lambda: secret_id))


def test_a_token_gives_access(vault: Vault) -> None:
    secrets = by_token(vault, ManualClock())
    assert secrets.read("API_KEY") == "from the vault"
    assert secrets.read("ABSENT") is None
    # One request for every field, after one for the lease of the token.
    assert vault.asked == ["auth/token/lookup-self", "secret/data/mainspring"]
    with pytest.raises(Invalid, match="is not a text"):
        secrets.read("NUMBER")


def test_a_role_gives_access(vault: Vault) -> None:
    assert by_role(vault, ManualClock()).read("API_KEY") == "from the vault"
    assert vault.asked == ["auth/approle/login", "secret/data/mainspring"]
    with pytest.raises(SecretsUnavailable, match="invalid role or secret ID"):
        by_role(vault, ManualClock(), "wrong").read("API_KEY")


def test_a_missing_secret_is_reported_as_unavailable(vault: Vault) -> None:
    vault.fields = None
    with pytest.raises(SecretsUnavailable, match=r"Vault has nothing at secret/mainspring: see vault.mount"):
        by_token(vault, ManualClock()).read("API_KEY")


def test_a_missing_secret_stays_valid_for_a_while_and_a_deleted_one_does_not(vault: Vault) -> None:
    clock = ManualClock()
    secrets = by_token(vault, clock)
    assert secrets.read("API_KEY") == "from the vault"
    vault.fields = None
    clock.advance(5 * MINUTE)
    assert secrets.read("API_KEY") == "from the vault"
    vault.deleted = True
    clock.advance(5 * MINUTE)
    secrets.read("API_KEY")
    with pytest.raises(SecretsUnavailable, match="secret/mainspring was deleted"):
        wait_until(lambda: secrets.read("API_KEY") != "from the vault")


def test_a_new_value_is_fetched_in_the_background(vault: Vault) -> None:
    clock = ManualClock()
    secrets = by_token(vault, clock)
    assert secrets.read("API_KEY") == "from the vault"
    vault.fields = {"API_KEY": "another value"}
    clock.advance(29 * SECOND)
    assert secrets.read("API_KEY") == "from the vault"
    clock.advance(2 * SECOND)
    assert secrets.read("API_KEY") == "from the vault"
    wait_until(lambda: secrets.read("API_KEY") == "another value")
    assert vault.asked.count("secret/data/mainspring") == 2


def test_the_last_answer_stays_valid_for_a_while_when_vault_is_away(vault: Vault) -> None:
    clock = ManualClock()
    secrets = by_token(vault, clock)
    assert secrets.read("API_KEY") == "from the vault"
    vault.status = 503
    clock.advance(5 * MINUTE)
    assert secrets.read("API_KEY") == "from the vault"
    asked = len(vault.asked)
    assert secrets.read("API_KEY") == "from the vault"
    assert len(vault.asked) == asked, "Vault was asked again at once"
    clock.advance(2 * HOUR)
    with pytest.raises(SecretsUnavailable, match="Vault answered 503 Vault is sealed"):
        secrets.read("API_KEY")
    vault.status = 200
    clock.advance(MINUTE)
    assert secrets.read("API_KEY") == "from the vault"


def test_reads_do_not_wait_for_a_vault_that_has_just_failed(vault: Vault) -> None:
    clock = ManualClock()
    secrets, stranger = by_token(vault, clock), by_token(vault, clock)
    assert secrets.read("API_KEY") == "from the vault"
    vault.status = 503
    clock.advance(5 * MINUTE)
    assert secrets.read("API_KEY") == "from the vault"
    with pytest.raises(SecretsUnavailable):
        stranger.read("API_KEY")
    # From here on, a read that waits for Vault never returns.
    vault.goes_on.clear()
    clock.advance(6 * SECOND)
    asked = len(vault.asked)
    for _ in range(20):
        assert secrets.read("API_KEY") == "from the vault"
        with pytest.raises(SecretsUnavailable):
            stranger.read("API_KEY")
    # One request of each is under way, and no more.
    wait_until(lambda: len(vault.asked) >= asked + 2)
    assert len(vault.asked) == asked + 2
    vault.status = 200
    vault.goes_on.set()
    wait_until(lambda: not secrets._lock.locked() and not stranger._lock.locked())
    clock.advance(6 * SECOND)
    assert secrets.read("API_KEY") == "from the vault"

    def is_known_to_the_stranger() -> bool:
        try:
            return stranger.read("API_KEY") is not None
        except SecretsUnavailable:
            return False

    wait_until(is_known_to_the_stranger)


def test_no_thread_is_started_during_the_pause_after_a_failure(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    secrets = by_token(vault, clock)
    secrets.read("API_KEY")
    vault.status = 503
    clock.advance(5 * MINUTE)
    secrets.read("API_KEY")

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a thread")

    monkeypatch.setattr("threading.Thread", refuse)
    assert secrets.read("API_KEY") == "from the vault"


def test_a_wrong_token_is_not_in_the_error(vault: Vault) -> None:
    with pytest.raises(SecretsUnavailable, match="Vault answered 403") as refused:
        by_token(vault, ManualClock(), "hvs.wrong-token").read("API_KEY")
    assert "wrong-token" not in str(refused.value)
    # This token cannot be sent at all.
    with pytest.raises(SecretsUnavailable, match="does not answer") as refused:
        by_token(vault, ManualClock(), "two\nlines").read("API_KEY")
    assert "lines" not in str(refused.value)


@pytest.mark.slow
def test_the_renewal_of_a_token_is_retried_after_a_failure(vault: Vault) -> None:
    vault.lease = 1
    # The clock stands still, so the token does not end; only the timer of the renewal runs in real time.
    clock = ManualClock()
    secrets = by_token(vault, clock)
    assert secrets.read("API_KEY") == "from the vault"
    vault.status = 503
    wait_until(lambda: "auth/token/renew-self" in vault.asked)
    vault.status = 200
    # The token is renewed, and later renewed again, although no secret is read.
    wait_until(lambda: vault.asked.count("auth/token/renew-self") >= 3)
    assert secrets._token is not None
    assert vault.asked.count("auth/token/lookup-self") == 1
    # The next renewal, which fails without a server, is the last one.
    clock.advance(HOUR)


def test_a_token_that_ended_is_replaced(vault: Vault) -> None:
    clock = ManualClock()
    vault.lease = 1
    secrets = by_token(vault, clock)
    secrets.read("API_KEY")
    vault.status = 503
    wait_until(lambda: vault.asked.count("auth/token/renew-self") >= 2)
    assert secrets._token is not None
    clock.advance(2 * SECOND)
    wait_until(lambda: secrets._token is None)
    vault.status = 200
    assert secrets.check() == 2
    assert vault.asked.count("auth/token/lookup-self") == 2


def test_certificates_are_checked(tmp_path: Path) -> None:
    make_certificate(tmp_path)
    with running(tmp_path) as vault:
        vault.fields = {"API_KEY": "over TLS"}
        trusted = by_token(vault, ManualClock(), authority=str(tmp_path / "certificate.pem"))
        assert trusted.read("API_KEY") == "over TLS"
        with pytest.raises(SecretsUnavailable, match=r"(?i)certificate.verify.failed"):
            by_token(vault, ManualClock()).read("API_KEY")
        asked = len(vault.asked)
    with pytest.raises(SecretsUnavailable, match="Vault does not answer"):
        by_token(vault, ManualClock()).read("API_KEY")
    assert len(vault.asked) == asked


def test_settings_connect_the_keyring_to_vault(vault: Vault, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(vault.new_token() + "\n")
    settings = load({"vault.address": vault.address, "vault.token_file": str(tmp_path / "token")}, {})
    keyring = make_keyring(settings)
    assert keyring.read("default", "API_KEY") == "from the vault"
    with pytest.raises(SecretRefused, match="there is no OTHER here"):
        keyring.read("default", "OTHER")
    assert vault.asked == ["auth/token/lookup-self", "secret/data/mainspring"]
    make_keyring(settings).read("default", "API_KEY")
    assert len(vault.asked) == 2, "a process asks Vault once for all of its tasks"
    # An outage of Vault is not the fault of the run, which is retried.
    away = load({"vault.address": "http://localhost:1", "vault.token_file": str(tmp_path / "token")}, {})
    with pytest.raises(SecretsUnavailable, match="does not answer"):
        make_keyring(away).read("default", "API_KEY")


async def test_doctor_checks_vault(vault: Vault, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(vault.new_token())
    given = {"vault.address": vault.address, "vault.token_file": str(tmp_path / "token")}
    settings = load({"store": str(tmp_path / "jobs.db"), **given}, {})
    await (runtime := Runtime(settings)).open()
    await runtime.close()
    findings = {finding.check: finding for finding in await examine(settings)}
    assert findings["vault"].says == "it answers, with 2 secrets"
    vault.status = 503
    findings = {finding.check: finding for finding in await examine(settings)}
    assert findings["vault"].level is Level.PROBLEM
    vault.status, vault.fields = 200, None
    findings = {finding.check: finding for finding in await examine(settings)}
    assert findings["vault"].level is Level.PROBLEM
    assert "secret/mainspring" in findings["vault"].says


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"address": "http://vault.example.org:8200"}, "vault.address"),
        ({"address": "https://v", "mount": ""}, "vault.mount: is missing"),
        ({"address": "https://v", "role_id": "y"}, "vault.secret_id_file: is missing"),
        ({"address": "https://v", "secret_id_file": "y"}, "vault.role_id: is missing"),
        ({"address": "https://v", "role_id": "x", "secret_id_file": "y", "token_file": "z"}, "vault.token_file"),
        ({"token_file": "x"}, "has no use without vault.address"),
    ],
)
def test_bad_vault_settings_are_refused(given: dict[str, str], words: str) -> None:
    with pytest.raises(Invalid) as refused:
        load({f"vault.{name}": value for name, value in given.items()}, {})
    assert words in str(refused.value)
