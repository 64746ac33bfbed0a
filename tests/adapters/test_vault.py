"""Secrets in Vault, by what its documentation says, with times and failures that a real one cannot be brought to.
What a real one does is in ``test_vault_server``."""

import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest

from mainspring.adapters.clock.system import SystemClock
from mainspring.adapters.secrets.vault import AppRole, VaultSecrets
from mainspring.bootstrap.engine import Engine
from mainspring.bootstrap.health import examine
from mainspring.bootstrap.tasks import make_keyring
from mainspring.domain.diagnosis import Level
from mainspring.domain.errors import Invalid, SecretsUnavailable
from mainspring.domain.instant import HOUR, MINUTE, SECOND
from mainspring.ports.clock import Clock
from mainspring.settings import load
from mainspring.worker.secrets import SecretRefused
from tests.support.certificates import make_certificate
from tests.support.clock import ManualClock
from tests.support.vault import ROLE, SECRET_ID, Vault, running


@pytest.fixture
def vault() -> Iterator[Vault]:
    with running() as found:
        found.fields = {"API_KEY": "from the vault", "NUMBER": 5}
        yield found


def secrets_of(
    vault: Vault, clock: Clock, credentials: Callable[[], str] | AppRole, authority: str = ""
) -> VaultSecrets:
    trusted = ssl.create_default_context(cafile=authority or None)
    client = httpx2.Client(base_url=vault.address, trust_env=False, verify=trusted)
    return VaultSecrets(client, clock, credentials, mount="secret", path="mainspring", keep=30 * SECOND)


def by_token(vault: Vault, clock: Clock, token: str | None = None, authority: str = "") -> VaultSecrets:
    token = vault.new_token() if token is None else token
    return secrets_of(vault, clock, lambda: token, authority)


def by_role(vault: Vault, clock: ManualClock, secret_id: str = SECRET_ID) -> VaultSecrets:
    return secrets_of(vault, clock, AppRole(ROLE, lambda: secret_id))


def soon(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def known(secrets: VaultSecrets) -> bool:
    try:
        return secrets.read("API_KEY") is not None
    except SecretsUnavailable:
        return False


def test_a_token_lets_us_in(vault: Vault) -> None:
    secrets = by_token(vault, ManualClock())
    assert secrets.read("API_KEY") == "from the vault"
    assert secrets.read("ABSENT") is None
    # All of it was one request, after one that asks how long the token is good.
    assert vault.asked == ["auth/token/lookup-self", "secret/data/mainspring"]
    with pytest.raises(Invalid, match="is not a text"):
        secrets.read("NUMBER")


def test_a_role_lets_us_in(vault: Vault) -> None:
    assert by_role(vault, ManualClock()).read("API_KEY") == "from the vault"
    assert vault.asked == ["auth/approle/login", "secret/data/mainspring"]
    with pytest.raises(SecretsUnavailable, match="invalid role or secret ID"):
        by_role(vault, ManualClock(), "wrong").read("API_KEY")


def test_an_entry_that_is_not_there_is_no_reason_to_give_up(vault: Vault) -> None:
    vault.fields = None
    with pytest.raises(SecretsUnavailable, match=r"Vault has nothing at secret/mainspring: see vault.mount"):
        by_token(vault, ManualClock()).read("API_KEY")


def test_what_is_not_found_any_more_counts_for_a_while_and_what_was_deleted_does_not(vault: Vault) -> None:
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
        soon(lambda: secrets.read("API_KEY") != "from the vault")


def test_a_new_value_counts_after_a_while_and_nobody_waits(vault: Vault) -> None:
    clock = ManualClock()
    secrets = by_token(vault, clock)
    assert secrets.read("API_KEY") == "from the vault"
    vault.fields = {"API_KEY": "another value"}
    clock.advance(29 * SECOND)
    assert secrets.read("API_KEY") == "from the vault"
    clock.advance(2 * SECOND)
    assert secrets.read("API_KEY") == "from the vault"
    soon(lambda: secrets.read("API_KEY") == "another value")
    assert vault.asked.count("secret/data/mainspring") == 2


def test_while_vault_is_away_the_last_answer_is_good_for_a_while(vault: Vault) -> None:
    clock = ManualClock()
    secrets = by_token(vault, clock)
    assert secrets.read("API_KEY") == "from the vault"
    vault.status = 503
    clock.advance(5 * MINUTE)
    assert secrets.read("API_KEY") == "from the vault"
    asked = len(vault.asked)
    assert secrets.read("API_KEY") == "from the vault"
    assert len(vault.asked) == asked, "it is left alone for some seconds"
    clock.advance(2 * HOUR)
    with pytest.raises(SecretsUnavailable, match="Vault answered 503 Vault is sealed"):
        secrets.read("API_KEY")
    vault.status = 200
    clock.advance(MINUTE)
    assert secrets.read("API_KEY") == "from the vault"


def test_nobody_waits_for_a_vault_that_has_just_not_answered(vault: Vault) -> None:
    clock = ManualClock()
    secrets, stranger = by_token(vault, clock), by_token(vault, clock)
    assert secrets.read("API_KEY") == "from the vault"
    vault.status = 503
    clock.advance(5 * MINUTE)
    assert secrets.read("API_KEY") == "from the vault"
    with pytest.raises(SecretsUnavailable):
        stranger.read("API_KEY")
    vault.goes_on.clear()
    clock.advance(6 * SECOND)
    asked, began = len(vault.asked), time.monotonic()
    for _ in range(20):
        assert secrets.read("API_KEY") == "from the vault"
        with pytest.raises(SecretsUnavailable):
            stranger.read("API_KEY")
    assert time.monotonic() - began < 1
    # One request each is under way, and no more.
    soon(lambda: len(vault.asked) == asked + 2)
    vault.status = 200
    vault.goes_on.set()
    soon(lambda: not secrets._lock.locked() and not stranger._lock.locked())
    clock.advance(6 * SECOND)
    assert secrets.read("API_KEY") == "from the vault"
    soon(lambda: known(stranger))


def test_while_vault_rests_no_thread_is_started_in_vain(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_token_that_is_not_good_is_not_shown(vault: Vault) -> None:
    with pytest.raises(SecretsUnavailable, match="Vault answered 403") as refused:
        by_token(vault, ManualClock(), "hvs.wrong-token").read("API_KEY")
    assert "wrong-token" not in str(refused.value)
    # Nor one that cannot be sent at all.
    with pytest.raises(SecretsUnavailable, match="does not answer") as refused:
        by_token(vault, ManualClock(), "two\nlines").read("API_KEY")
    assert "lines" not in str(refused.value)


def test_a_token_that_could_not_be_renewed_once_is_tried_again_and_lives_on(vault: Vault) -> None:
    vault.lease = 3
    secrets = by_token(vault, SystemClock())
    assert secrets.read("API_KEY") == "from the vault"
    vault.status = 503
    soon(lambda: "auth/token/renew-self" in vault.asked)
    vault.status = 200
    # Nobody reads meanwhile: it is renewed, and in its time again.
    soon(lambda: vault.asked.count("auth/token/renew-self") >= 3)
    assert secrets._token is not None
    assert vault.asked.count("auth/token/lookup-self") == 1


def test_a_token_is_given_up_at_its_end_and_asked_for_again(vault: Vault) -> None:
    vault.lease = 1
    secrets = by_token(vault, SystemClock())
    secrets.read("API_KEY")
    vault.status = 503
    soon(lambda: secrets._token is None)
    tried = vault.asked.count("auth/token/renew-self")
    assert tried >= 2
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


def test_settings_lead_there(vault: Vault, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(vault.new_token() + "\n")
    settings = load({"vault.address": vault.address, "vault.token_file": str(tmp_path / "token")}, {})
    keyring = make_keyring(settings)
    assert keyring.read("default", "API_KEY") == "from the vault"
    with pytest.raises(SecretRefused, match="there is no OTHER here"):
        keyring.read("default", "OTHER")
    assert vault.asked == ["auth/token/lookup-self", "secret/data/mainspring"]
    make_keyring(settings).read("default", "API_KEY")
    assert len(vault.asked) == 2, "one for all who ask in a process"
    # That it does not answer is not the run's fault: it is tried again.
    away = load({"vault.address": "http://localhost:1", "vault.token_file": str(tmp_path / "token")}, {})
    with pytest.raises(SecretsUnavailable, match="does not answer"):
        make_keyring(away).read("default", "API_KEY")


async def test_doctor_asks_it(vault: Vault, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(vault.new_token())
    given = {"vault.address": vault.address, "vault.token_file": str(tmp_path / "token")}
    settings = load({"store": str(tmp_path / "jobs.db"), **given}, {})
    await (engine := Engine(settings)).open()
    await engine.close()
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
def test_bad_settings(given: dict[str, str], words: str) -> None:
    with pytest.raises(Invalid) as refused:
        load({f"vault.{name}": value for name, value in given.items()}, {})
    assert words in str(refused.value)
