"""Authentication settings: valid combinations, and that secrets are never shown."""

import json
from pathlib import Path

import pytest
from joserfc.jwk import OctKey, OKPKey
from rich.pretty import pretty_repr

from mainspring.config.api import make_tokens
from mainspring.config.loading import load
from mainspring.config.sections.access import AuthSection
from mainspring.config.settings import Settings, describe
from mainspring.core.model.base.errors import Invalid
from tests.support.clock import ManualClock
from tests.support.tokens import AUDIENCE, ISSUER, jwk, jwks, sign

SECRET = "8Zq1wR6yT0uXo4pL2kJ9hG5fD3sA7vBn"
WHO = {"mode": "jwt", "jwt_issuer": ISSUER, "jwt_audience": AUDIENCE}
HS256 = {**WHO, "jwt_algorithm": "HS256", "jwt_secret": SECRET}
RS256 = {**WHO, "jwt_algorithm": "RS256", "jwks_url": "https://login.example.org/keys"}
OKP = OKPKey.generate_key("Ed25519", auto_kid=True)


def load_auth(**auth: str) -> Settings:
    return load(environment={f"MAINSPRING_AUTH_{name.upper()}": value for name, value in auth.items()})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "api.example.org"])
def test_a_public_address_needs_authentication(host: str) -> None:
    with pytest.raises(
        Invalid, match=r"host: .* is reachable from other machines.*mainspring keys create --role admin"
    ):
        Settings(host=host).check()
    for mode in ("keys", "both"):
        settings = Settings(
            host=host, auth=AuthSection(**{**HS256, "mode": mode} if mode == "both" else {"mode": mode})
        )
        settings.check()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_a_loopback_address_needs_no_authentication(host: str) -> None:
    Settings(host=host).check()


@pytest.mark.parametrize("auth", [HS256, RS256, {**RS256, "mode": "both", "jwt_algorithm": "EdDSA"}, {"mode": "keys"}])
def test_valid_combinations_are_accepted(auth: dict[str, str]) -> None:
    assert load_auth(**auth).auth.mode == auth["mode"]


@pytest.mark.parametrize(
    ("auth", "message"),
    [
        ({"mode": "password"}, r"auth\.mode: 'password' is not a mode"),
        ({"mode": "none", "jwt_issuer": "x"}, r"auth\.jwt_issuer: has no use while auth\.mode is none"),
        ({"mode": "keys", "jwt_secret": SECRET}, r"auth\.jwt_secret: has no use while auth\.mode is keys"),
        ({**HS256, "mode": "none", "jwt_algorithm": ""}, r"auth\.jwt_secret: has no use while auth\.mode is none"),
        ({**HS256, "jwt_algorithm": ""}, r"auth\.jwt_algorithm: '' is not one"),
        ({**HS256, "jwt_algorithm": "none"}, r"auth\.jwt_algorithm: 'none' is not one"),
        ({**HS256, "jwt_algorithm": "hs256"}, r"auth\.jwt_algorithm: 'hs256' is not one"),
        ({**HS256, "jwt_algorithm": "RS256"}, r"auth\.jwt_secret: is not for RS256"),
        ({**RS256, "jwt_algorithm": "HS256"}, r"auth\.jwks_url: is not for HS256"),
        ({**HS256, "jwt_key_file": "key.pem"}, r"auth\.jwt_key_file: is not for HS256"),
        ({**HS256, "jwt_secret_file": "x"}, r"auth\.jwt_secret_file: has no use beside auth\.jwt_secret"),
        ({**RS256, "jwks_file": "x"}, r"auth\.jwks_url: has no use beside auth\.jwks_file"),
        ({**HS256, "jwt_secret": ""}, r"auth\.jwt_secret: is missing for HS256"),
        ({**RS256, "jwks_url": ""}, r"auth\.jwt_key_file: is missing for RS256 .*jwks_file, jwks_url"),
        ({**HS256, "jwt_secret": "short"}, r"auth\.jwt_secret: has less than 32 bytes"),
        ({**HS256, "jwt_secret": "x" * 40}, r"auth\.jwt_secret: can be guessed"),
        ({**RS256, "jwks_url": "http://login.example.org"}, r"auth\.jwks_url: is not https"),
        ({**HS256, "jwt_issuer": ""}, r"auth\.jwt_issuer: is missing"),
        ({**HS256, "jwt_audience": ""}, r"auth\.jwt_audience: is missing"),
        ({**HS256, "jwt_role_claim": ""}, r"auth\.jwt_role_claim: is missing"),
        ({**HS256, "jwt_tenant_claim": ""}, r"auth\.jwt_tenant_claim: is missing"),
    ],
)
def test_an_invalid_combination_is_rejected_by_setting(auth: dict[str, str], message: str) -> None:
    with pytest.raises(Invalid, match=message) as caught:
        load_auth(**auth)
    assert SECRET not in str(caught.value)


def test_settings_show_no_secret() -> None:
    settings = load(
        environment={
            "MAINSPRING_STORE": "postgresql://ada:hunter2@db/jobs?password=hunter2",
            **{f"MAINSPRING_AUTH_{name.upper()}": value for name, value in HS256.items()},
        }
    )
    shown = [repr(settings), str(settings), f"{settings.auth}", pretty_repr(settings), repr(list(describe()))]
    assert "hunter2" in settings.store
    for text in shown:
        assert SECRET not in text
        assert "hunter2" not in text
    assert "postgresql://ada@db/jobs" in repr(settings)
    assert "mode='jwt'" in repr(settings)


def test_a_secret_of_the_wrong_type_is_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "m.toml"
    file.write_text("[auth]\njwt_secret = 987654321\n")
    with pytest.raises(Invalid, match=r"auth\.jwt_secret: is not a text") as caught:
        load(environment={}, file=file)
    assert "987654321" not in str(caught.value)


def test_lists_and_numbers_are_read_from_the_file_and_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "m.toml"
    file.write_text("[api]\nrate = 2.5\ntrusted_proxies = ['10.0.0.0/8']\n")
    assert load(environment={}, file=file).api.trusted_proxies == ("10.0.0.0/8",)
    found = load(
        environment={"MAINSPRING_API_TRUSTED_PROXIES": "10.0.0.0/8, ::1", "MAINSPRING_API_BURST": "7"}, file=file
    ).api
    assert (found.rate, found.burst, found.trusted_proxies) == (2.5, 7, ("10.0.0.0/8", "::1"))


@pytest.mark.parametrize("mode", ["none", "keys"])
def test_modes_without_jwt_have_no_token_reader(mode: str) -> None:
    assert make_tokens(AuthSection(mode=mode), ManualClock()) is None


async def test_tokens_are_verified_with_the_configured_key(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET + "\n")
    (tmp_path / "key.pem").write_bytes(OKP.as_pem())
    (tmp_path / "keys.json").write_bytes(jwks(jwk(OKP)))
    secret = sign(OctKey.import_key(SECRET), "HS256")
    pair = sign(OKP, "EdDSA", kid=OKP.kid)
    eddsa = {**WHO, "jwt_algorithm": "EdDSA"}
    for auth, good, bad in (
        (HS256, secret, pair),
        ({**HS256, "jwt_secret": "", "jwt_secret_file": str(tmp_path / "secret")}, secret, pair),
        ({**eddsa, "jwt_key_file": str(tmp_path / "key.pem")}, pair, secret),
        ({**eddsa, "jwks_file": str(tmp_path / "keys.json")}, pair, secret),
    ):
        tokens = make_tokens(load_auth(**auth).auth, ManualClock())
        assert tokens is not None
        found = await tokens.principal(good)
        assert found is not None
        assert found.name == "user:ada"
        assert await tokens.principal(bad) is None


@pytest.mark.parametrize(
    ("setting", "content", "message"),
    [
        ("jwt_secret_file", None, r"auth\.jwt_secret_file: .* cannot be read"),
        ("jwt_secret_file", b"tooshort\n", r"auth\.jwt_secret_file: has less than 32 bytes"),
        ("jwt_key_file", None, r"auth\.jwt_key_file: .* cannot be read"),
        ("jwt_key_file", b"hello", r"auth\.jwt_key_file: is not PEM"),
        ("jwks_file", None, r"auth\.jwks_file: .* cannot be read"),
        ("jwks_file", json.dumps({"keys": []}).encode(), r"auth\.jwks_file: holds no usable key"),
    ],
)
def test_key_files_are_checked_when_the_api_starts(
    tmp_path: Path, setting: str, content: bytes | None, message: str
) -> None:
    file = tmp_path / "file"
    if content is not None:
        file.write_bytes(content)
    algorithm = "HS256" if setting == "jwt_secret_file" else "EdDSA"
    settings = load_auth(**{**WHO, "jwt_algorithm": algorithm, setting: str(file)})
    with pytest.raises(Invalid, match=message):
        make_tokens(settings.auth, ManualClock())
