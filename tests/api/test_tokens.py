"""Tokens of an identity provider: who is let in, and every way that somebody is not."""

import asyncio
import hmac
import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
import structlog
from joserfc.jwk import Key, OctKey, OKPKey, RSAKey

from mainspring.adapters.store.memory import MemoryStore
from mainspring.api.auth import REFUSED_WITHIN, Authenticator
from mainspring.api.problems import Refused
from mainspring.api.token_rules import Algorithm, check_jwks_url, check_secret
from mainspring.api.tokens import (
    LARGEST_SET,
    LARGEST_TOKEN,
    SET_AGAIN,
    SET_CACHED,
    JwksUrl,
    JwtTokens,
    Keys,
    OneKey,
    read_jwks,
    read_pem,
    secret_key,
)
from mainspring.domain.access import Principal, Role
from mainspring.domain.errors import Invalid
from mainspring.domain.instant import SECOND
from tests.support.clock import ManualClock
from tests.support.tokens import AUDIENCE, CLAIMS, ISSUER, NOW, encode, jwk, jwks, sign

SECRET = b"8Zq1wR6yT0uXo4pL2kJ9hG5fD3sA7vBn"
URL = "https://login.example.org/keys"
ADA = Principal(name="user:ada", role=Role.OPERATOR, tenant="acme")

OCT = OctKey.import_key(SECRET)
RSA = RSAKey.generate_key(2048, auto_kid=True)
OTHER_RSA = RSAKey.generate_key(2048, auto_kid=True)
OKP = OKPKey.generate_key("Ed25519", auto_kid=True)
SIGNERS: dict[Algorithm, Key] = {"HS256": OCT, "RS256": RSA, "EdDSA": OKP}


def keys_of(algorithm: Algorithm) -> OneKey:
    if algorithm == "HS256":
        return secret_key("secret", SECRET)
    key = SIGNERS[algorithm]
    assert isinstance(key, RSAKey | OKPKey)
    return read_pem("key", key.as_pem(), algorithm)


def tokens_of(
    algorithm: Algorithm, keys: Keys | None = None, clock: ManualClock | None = None, **more: str
) -> JwtTokens:
    return JwtTokens(
        keys or keys_of(algorithm),
        clock or ManualClock(),
        algorithm=algorithm,
        issuer=ISSUER,
        audience=AUDIENCE,
        **more,
    )


async def who(claims: object, **more: str) -> Principal | None:
    return await tokens_of("HS256", None, None, **more).principal(sign(OCT, "HS256", claims))


@pytest.mark.parametrize("algorithm", ["HS256", "RS256", "EdDSA"])
async def test_a_good_token_says_who_asks(algorithm: Algorithm) -> None:
    token = sign(SIGNERS[algorithm], algorithm, kid="whatever", x5t="also")
    assert await tokens_of(algorithm).principal(token) == ADA


@pytest.mark.parametrize("bound", ["HS256", "RS256", "EdDSA"])
@pytest.mark.parametrize("used", ["HS256", "RS256", "EdDSA"])
async def test_only_the_algorithm_of_the_key_counts(bound: Algorithm, used: Algorithm) -> None:
    found = await tokens_of(bound).principal(sign(SIGNERS[used], used))
    assert (found is not None) == (bound == used)


@pytest.mark.parametrize("bound", ["HS256", "RS256", "EdDSA"])
@pytest.mark.parametrize("name", ["none", "None", "NONE", "", "HS384", "RS512", "PS256", "ES256", None, 7, ["HS256"]])
async def test_what_the_header_says_about_the_algorithm_helps_nobody(bound: Algorithm, name: object) -> None:
    tokens = tokens_of(bound)
    for claimed in (name, bound):
        assert await tokens.principal(sign(None, "HS256", alg=claimed)) is None, "without any signature"
    assert await tokens.principal(sign(SIGNERS[bound], bound, alg=name)) is None, "with a good one"


@pytest.mark.parametrize("bound", ["RS256", "EdDSA"])
@pytest.mark.parametrize("claimed", ["HS256", "RS256", "EdDSA"])
async def test_the_public_key_is_not_a_secret(bound: Algorithm, claimed: str) -> None:
    """The classic: sign with HMAC, and with the public key as the secret."""
    key = SIGNERS[bound]
    assert isinstance(key, RSAKey | OKPKey)
    for secret in (key.as_pem(), key.as_pem().strip(), key.as_der(), json.dumps(jwk(key)).encode()):
        text = encode({"alg": claimed, "typ": "JWT"}) + b"." + encode(CLAIMS)
        forged = text + b"." + encode(hmac.digest(secret, text, "sha256"))
        assert await tokens_of(bound).principal(forged.decode()) is None


@pytest.mark.parametrize("algorithm", ["HS256", "RS256", "EdDSA"])
async def test_a_token_that_was_changed_is_refused(algorithm: Algorithm) -> None:
    tokens = tokens_of(algorithm)
    header, payload, signature = sign(SIGNERS[algorithm], algorithm).split(".")
    admin = encode({**CLAIMS, "role": "admin"}).decode()
    assert await tokens.principal(f"{header}.{admin}.{signature}") is None
    assert await tokens.principal(f"{header}.{payload}.{signature[:-8]}AAAAAAAA") is None
    assert await tokens.principal(f"{header}.{payload}.") is None
    assert await tokens.principal(f"{header}.{payload}.{signature}") == ADA


async def test_another_key_is_another_issuer() -> None:
    assert await tokens_of("RS256").principal(sign(OTHER_RSA, "RS256")) is None
    # The key that a header brings along, or points to, is not looked at.
    header = {"jwk": jwk(OTHER_RSA), "jku": "https://evil.example/keys", "kid": RSA.kid}
    assert await tokens_of("RS256").principal(sign(OTHER_RSA, "RS256", **header)) is None


@pytest.mark.parametrize("claim", ["exp", "aud", "iss", "sub", "role", "tenant"])
async def test_a_claim_that_is_needed_is_needed(claim: str) -> None:
    assert await who({name: value for name, value in CLAIMS.items() if name != claim}) is None
    assert await who({**CLAIMS, claim: None}) is None
    assert await who({**CLAIMS, claim: ""}) is None
    assert await who({**CLAIMS, claim: {}}) is None


@pytest.mark.parametrize(
    ("claims", "valid"),
    [
        ({"exp": NOW - 29}, True),
        ({"exp": NOW - 30}, False),
        ({"exp": NOW + 0.5}, True),
        ({"exp": str(NOW + 600)}, False),
        ({"exp": True}, False),
        ({"nbf": NOW + 30}, True),
        ({"nbf": NOW + 31}, False),
        ({"nbf": "soon"}, False),
        ({"iat": NOW + 30}, True),
        ({"iat": NOW + 31}, False),
        ({"aud": ["other", AUDIENCE]}, True),
        ({"aud": ["other"]}, False),
        ({"aud": []}, False),
        ({"aud": "mainspring2"}, False),
        ({"aud": [[AUDIENCE]]}, False),
        ({"iss": "https://login.example.org"}, False),
        ({"iss": [ISSUER]}, False),
    ],
)
async def test_times_issuer_and_audience(claims: dict[str, Any], valid: bool) -> None:
    assert await who({**CLAIMS, **claims}) == (ADA if valid else None)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", "9" * 400])
async def test_a_time_that_is_no_number_is_refused(number: str) -> None:
    payload = json.dumps(CLAIMS).replace(str(CLAIMS["exp"]), number).encode()
    assert number.encode() in payload
    assert await who(payload) is None


async def test_a_token_expires_while_the_process_runs() -> None:
    clock = ManualClock()
    tokens = tokens_of("HS256", clock=clock)
    token = sign(OCT, "HS256")
    clock.advance(629 * SECOND)
    assert await tokens.principal(token) == ADA
    clock.advance(SECOND)
    assert await tokens.principal(token) is None


async def test_what_follows_with_a_token_ends_when_it_has_expired() -> None:
    clock = ManualClock()
    auth = Authenticator(MemoryStore(clock, 1), clock, required=True, tokens=tokens_of("HS256", clock=clock))
    ended = asyncio.create_task(auth.no_longer({"authorization": f"Bearer {sign(OCT, 'HS256')}"}))
    for seconds, done in ((629, False), (REFUSED_WITHIN // SECOND, True)):
        for _ in range(seconds):
            clock.advance(SECOND)
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        assert ended.done() == done
    await ended


@pytest.mark.parametrize(
    ("role", "tenant", "expected"),
    [
        ("viewer", "acme", (Role.VIEWER, "acme")),
        (["worker"], "acme", (Role.WORKER, "acme")),
        ("admin", "acme", (Role.ADMIN, "acme")),
        ("admin", "*", (Role.ADMIN, None)),
        ("operator", "*", None),
        ("worker", "*", None),
        ("admin", ["*"], None),
        ("admin", " *", None),
        ("admin", None, None),
        ("Admin", "acme", None),
        ("root", "acme", None),
        (["viewer", "admin"], "acme", None),
        ([], "acme", None),
        ("viewer", " acme", None),
        ("viewer", "a" * 201, None),
        ("viewer", "a\nb", None),
    ],
)
async def test_role_and_tenant(role: object, tenant: object, expected: tuple[Role, str | None] | None) -> None:
    found = await who({**CLAIMS, "role": role, "tenant": tenant})
    assert (found and (found.role, found.tenant)) == expected


async def test_the_claims_may_have_other_names() -> None:
    claims = {**CLAIMS, "https://acme.example/role": "viewer", "org": "umbrella"}
    found = await who(claims, role_claim="https://acme.example/role", tenant_claim="org")
    assert found == Principal(name="user:ada", role=Role.VIEWER, tenant="umbrella")


@pytest.mark.parametrize(
    ("subject", "valid"), [("a" * 195, True), ("a" * 196, False), ("a\x1b[31m", False), (" a", False), (7, False)]
)
async def test_the_name_can_be_shown(subject: object, valid: bool) -> None:
    assert (await who({**CLAIMS, "sub": subject}) is not None) == valid


@pytest.mark.parametrize(
    "token",
    [
        "",
        ".",
        "..",
        "a.b.c",
        "a.b.c.d.e",
        "ünïcode.ünïcode.ünïcode",
        "\x00" * 10,
        encode(b"[" * 1_500).decode() + ".e30.AA",
        encode(b"\xff\xfe").decode() + ".e30.AA",
        encode([]).decode() + ".e30.AA",
        encode({}).decode() + ".e30.AA",
    ],
)
async def test_what_is_no_token_at_all_is_no_error_either(token: str) -> None:
    assert await tokens_of("HS256").principal(token) is None


@pytest.mark.parametrize("payload", [b"[]", b"7", b"null", b"\xff", b"", b"{", b"[" * 5_000, b'{"a":' * 900])
async def test_a_signed_payload_that_is_no_set_of_claims_is_refused(payload: bytes) -> None:
    assert await who(payload) is None


async def test_extensions_are_refused() -> None:
    tokens = tokens_of("HS256")
    assert await tokens.principal(sign(OCT, "HS256", crit=["exp"], exp=1)) is None
    assert await tokens.principal(sign(OCT, "HS256", crit=["b64"], b64=False)) is None
    assert await tokens.principal(sign(OCT, "HS256", crit=[])) is None
    assert await tokens.principal(sign(OCT, "HS256", kid=7)) is None


async def test_a_token_has_a_largest_size() -> None:
    def padded(extra: int) -> str:
        return sign(OCT, "HS256", {**CLAIMS, "pad": "x" * extra})

    # Base64: a token grows by four bytes for three.
    fits = (LARGEST_TOKEN - len(padded(0))) * 3 // 4 - 3
    assert len(padded(fits)) <= LARGEST_TOKEN < len(padded(fits + 12))
    assert await tokens_of("HS256").principal(padded(fits)) == ADA
    assert await tokens_of("HS256").principal(padded(fits + 12)) is None


async def test_the_log_says_why_and_nothing_of_the_token() -> None:
    good = sign(OCT, "HS256")
    with structlog.testing.capture_logs() as logs:
        await tokens_of("HS256").principal(sign(OCT, "HS256", {**CLAIMS, "exp": 1, "sub": "private-name"}))
        await tokens_of("HS256").principal(good + "tampered")
        await tokens_of("RS256").principal(good)
    assert [entry["why"] for entry in logs] == ["expired", "wrong signature", "UnsupportedAlgorithmError"]
    for part in (*good.split("."), "private-name", SECRET.decode()):
        assert part not in repr(logs)


@pytest.mark.parametrize(
    ("secret", "message"),
    [
        (b"", "less than 32 bytes"),
        (SECRET[:31], "less than 32 bytes"),
        (b"a" * 64, "can be guessed"),
        (b"passwordpasswordpasswordpassword", "can be guessed"),
        (b"Kq3xW9zPKq3xW9zPKq3xW9zPKq3xW9zP", "can be guessed"),
        (b"Kq3xW9zPb5Tn7RmV" * 2, "can be guessed"),
        (b"your-256-bit-secret-goes-in-here", "can be guessed"),
        (b"a-string-secret-at-least-256-bits-long", "can be guessed"),
        (b"ChangeMe-before-production-2026!!", "can be guessed"),
        (b"0123456789abcdefghijklmnopqrstuv", "can be guessed"),
        (RSA.as_pem(), "key of a pair"),
        (b"ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABgQC7 ada@example", "key of a pair"),
    ],
)
def test_a_weak_secret_is_refused_and_not_shown(secret: bytes, message: str) -> None:
    with pytest.raises(Invalid, match=message) as caught:
        secret_key("auth.jwt_secret", secret)
    assert len(secret) == 0 or secret.decode() not in str(caught.value)


@pytest.mark.parametrize("secret", [SECRET, bytes(range(32)), b"6f1d9c0b7a8e4523d0c9b8a7f6e51234"])
def test_a_random_secret_will_do(secret: bytes) -> None:
    assert check_secret("secret", secret) == secret


@pytest.mark.parametrize(
    ("data", "algorithm", "message"),
    [
        (b"hello", "RS256", "is not PEM"),
        (RSA.as_pem(private=True), "RS256", "private key"),
        (RSA.as_pem(), "EdDSA", "no usable key"),
        (OKP.as_pem(), "RS256", "no usable key"),
        (OKPKey.generate_key("X25519").as_pem(), "EdDSA", "no usable key"),
        (b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "RS256", "no usable key"),
    ],
)
def test_a_key_file_must_fit(data: bytes, algorithm: Algorithm, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        read_pem("auth.jwt_key_file", data, algorithm)


@pytest.mark.filterwarnings("ignore:Key size")
def test_a_short_rsa_key_is_refused() -> None:
    short = RSAKey.generate_key(1024)
    with pytest.raises(Invalid, match="no usable key"):
        read_pem("key", short.as_pem(), "RS256")
    with pytest.raises(Invalid, match="no usable key"):
        read_jwks("keys", jwks(jwk(short)), "RS256")


async def test_the_key_of_a_set_is_found_by_its_id() -> None:
    tokens = tokens_of("RS256", read_jwks("keys", jwks(jwk(OTHER_RSA), jwk(OKP), jwk(RSA)), "RS256"))
    assert await tokens.principal(sign(RSA, "RS256", kid=RSA.kid)) == ADA
    assert await tokens.principal(sign(OTHER_RSA, "RS256", kid=OTHER_RSA.kid)) == ADA
    assert await tokens.principal(sign(RSA, "RS256", kid=OTHER_RSA.kid)) is None
    assert await tokens.principal(sign(RSA, "RS256", kid="unknown")) is None
    for key in (RSA, OTHER_RSA):
        assert await tokens.principal(sign(key, "RS256")) is None, "which of the two?"


async def test_a_token_without_a_key_id_needs_a_set_of_one() -> None:
    tokens = tokens_of("EdDSA", read_jwks("keys", jwks(jwk(OKP), jwk(RSA)), "EdDSA"))
    assert await tokens.principal(sign(OKP, "EdDSA")) == ADA


@pytest.mark.parametrize(
    "unfit",
    [
        jwk(RSA, use="enc"),
        jwk(RSA, alg="RS512"),
        jwk(RSA, key_ops=["sign"]),
        jwk(RSA, key_ops=None),
        jwk(RSA, kid=7),
        jwk(RSA, n=7),
        jwk(RSA, kty="EC"),
        jwk(RSA, e="!"),
        {"kty": "oct", "k": "c2VjcmV0", "kid": "1"},
        {},
    ],
)
def test_keys_for_other_purposes_are_passed_over(unfit: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match="no usable key for RS256"):
        read_jwks("auth.jwks_file", jwks(unfit, jwk(OKP)), "RS256")


def test_a_set_never_holds_a_shared_secret() -> None:
    with pytest.raises(Invalid, match="no usable key for HS256"):
        read_jwks("auth.jwks_file", jwks(OCT.as_dict()), "HS256")


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"keys": {}}', b'{"keys": [7]}', b"\xff", b"[" * 100_000])
def test_a_set_that_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(Invalid, match="is not a JSON Web Key Set"):
        read_jwks("auth.jwks_file", data, "RS256")


def answers(body: bytes, status: int = 200, **headers: str) -> httpx2.Response:
    return httpx2.Response(status, stream=httpx2.ByteStream(body), headers=headers)


class Provider:
    """An identity provider that publishes keys, and counts who asks."""

    def __init__(self, *keys: Key) -> None:
        self.asked: list[httpx2.Request] = []
        self.answer: Callable[[], httpx2.Response] = lambda: answers(jwks(*map(jwk, self.keys)))
        self.keys = list(keys)
        self.called = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append(request)
        self.called.set()
        await self.gate.wait()
        return self.answer()

    def tokens(self, clock: ManualClock) -> JwtTokens:
        return tokens_of("RS256", JwksUrl(URL, "RS256", clock, httpx2.MockTransport(self)), clock)


OLD = sign(RSA, "RS256", kid=RSA.kid)
NEW = sign(OTHER_RSA, "RS256", {**CLAIMS, "exp": NOW + 100_000}, kid=OTHER_RSA.kid)
LASTING = sign(RSA, "RS256", {**CLAIMS, "exp": NOW + 100_000}, kid=RSA.kid)


async def test_a_published_set_is_fetched_when_it_is_needed_and_kept_ten_minutes() -> None:
    clock, provider = ManualClock(), Provider(RSA)
    tokens = provider.tokens(clock)
    assert provider.asked == []
    for _ in range(3):
        assert await tokens.principal(LASTING) == ADA
        clock.advance(SECOND)
    assert len(provider.asked) == 1
    clock.advance(SET_CACHED - 4 * SECOND)
    assert await tokens.principal(LASTING) == ADA
    assert len(provider.asked) == 1
    clock.advance(SECOND)
    assert await tokens.principal(LASTING) == ADA
    assert len(provider.asked) == 2
    request = provider.asked[0]
    assert (str(request.url), request.headers["accept-encoding"]) == (URL, "identity")
    assert "authorization" not in request.headers


async def test_a_new_key_is_found_at_once_and_made_up_ids_ask_every_30_seconds() -> None:
    clock, provider = ManualClock(), Provider(RSA)
    tokens = provider.tokens(clock)
    assert await tokens.principal(OLD) == ADA
    provider.keys = [OTHER_RSA]
    assert await tokens.principal(NEW) is None, "asked a moment ago"
    clock.advance(SET_AGAIN)
    assert await tokens.principal(NEW) == ADA
    assert await tokens.principal(OLD) is None, "no longer published"
    for number in range(20):
        assert await tokens.principal(sign(RSA, "RS256", kid=str(number))) is None
    assert len(provider.asked) == 2
    clock.advance(SET_AGAIN)
    await tokens.principal(sign(RSA, "RS256", kid="x"))
    assert len(provider.asked) == 3


def _refuse() -> httpx2.Response:
    raise httpx2.ConnectError("no route to secret-host")


def _break() -> httpx2.Response:
    raise RuntimeError("nobody expects this of secret-host")


@pytest.mark.parametrize(
    "answer",
    [
        _refuse,
        _break,
        lambda: answers(jwks(jwk(OTHER_RSA)), 500),
        lambda: answers(jwks(jwk(OTHER_RSA)), 302, location="https://evil.example/keys"),
        lambda: answers(b"<html>"),
        lambda: answers(jwks()),
        lambda: answers(jwks(jwk(OKP))),
        lambda: answers(b" " * LARGEST_SET + jwks(jwk(OTHER_RSA))),
        lambda: answers(jwks(jwk(OTHER_RSA)), 200, **{"content-encoding": "gzip"}),
    ],
)
async def test_the_old_set_is_kept_when_a_refresh_fails(answer: Callable[[], httpx2.Response]) -> None:
    clock, provider = ManualClock(), Provider(RSA)
    tokens = provider.tokens(clock)
    assert await tokens.principal(LASTING) == ADA
    good, provider.answer = provider.answer, answer
    clock.advance(SET_CACHED)
    with structlog.testing.capture_logs() as logs:
        assert await tokens.principal(LASTING) == ADA
        assert await tokens.principal(LASTING) == ADA
        assert await tokens.principal(NEW) is None
    assert len(provider.asked) == 2, "a provider in trouble is left alone for a while"
    [warning] = [entry for entry in logs if entry["log_level"] == "warning"]
    assert (warning["host"], warning["old_keys_kept"]) == ("login.example.org", True)
    assert "secret-host" not in repr(logs)
    provider.answer, provider.keys = good, [OTHER_RSA]
    clock.advance(SET_AGAIN)
    assert await tokens.principal(NEW) == ADA


async def test_without_any_set_nobody_is_let_in_and_it_is_tried_again_soon() -> None:
    clock, provider = ManualClock(), Provider(RSA)
    good, provider.answer = provider.answer, _refuse
    tokens = provider.tokens(clock)
    for _ in range(3):
        assert await tokens.principal(OLD) is None
    assert len(provider.asked) == 1
    provider.answer = good
    clock.advance(5 * SECOND)
    assert await tokens.principal(OLD) == ADA


async def test_many_at_once_ask_the_provider_once_and_do_not_wait_for_what_they_have() -> None:
    clock, provider = ManualClock(), Provider(RSA)
    tokens = provider.tokens(clock)
    provider.gate.clear()
    first = [asyncio.create_task(tokens.principal(LASTING)) for _ in range(20)]
    await provider.called.wait()
    # All of them have come before there is an answer.
    await asyncio.sleep(0)
    assert not any(task.done() for task in first)
    provider.gate.set()
    assert await asyncio.gather(*first) == [ADA] * 20
    assert len(provider.asked) == 1
    provider.gate.clear()
    provider.called.clear()
    clock.advance(SET_CACHED)
    waiting = asyncio.create_task(tokens.principal(LASTING))
    await provider.called.wait()
    async with asyncio.timeout(1):
        assert await tokens.principal(LASTING) == ADA
    assert not waiting.done()
    provider.gate.set()
    assert await waiting == ADA


async def test_a_provider_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.api.tokens._FETCH_TIMEOUT", 0.05)
    provider = Provider(RSA)
    provider.gate.clear()
    async with asyncio.timeout(5):
        assert await provider.tokens(ManualClock()).principal(OLD) is None


async def test_a_set_is_fetched_from_a_real_server() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = jwks(jwk(RSA))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/keys"
        clock = ManualClock()
        assert await tokens_of("RS256", JwksUrl(url, "RS256", clock), clock).principal(OLD) == ADA


async def test_the_door_answers_401_whatever_is_wrong_with_a_token() -> None:
    clock = ManualClock()
    door = Authenticator(MemoryStore(clock, 4), clock, required=True, tokens=tokens_of("HS256", clock=clock))
    assert await door.principal({"authorization": f"Bearer {sign(OCT, 'HS256')}"}) == ADA
    told = set()
    wrong: list[object] = [{**CLAIMS, "exp": 1}, {**CLAIMS, "aud": "x"}, {**CLAIMS, "role": "root"}, []]
    for claims in wrong:
        with pytest.raises(Refused) as caught:
            await door.principal({"authorization": f"Bearer {sign(OCT, 'HS256', claims)}"})
        told.add(caught.value.problem)
    assert [problem.status for problem in told] == [401], "the same words for all of them"


@pytest.mark.parametrize(
    "url",
    ["https://login.example.org/keys", "http://127.0.0.1:8080/keys", "http://localhost/k", "http://[::1]:80/k"],
)
def test_addresses_that_will_do(url: str) -> None:
    assert check_jwks_url("auth.jwks_url", url) == url


@pytest.mark.parametrize(
    "url",
    [
        "http://login.example.org/keys",
        "http://127.0.0.1.example.org/keys",
        "http://localhost.example.org/keys",
        "http://0.0.0.0/keys",
        "https://ada:hunter2@login.example.org/keys",
        "file:///etc/passwd",
        "login.example.org",
        "https://",
        "https://host:port/",
        "https://[::1",
        "",
    ],
)
def test_addresses_that_will_not(url: str) -> None:
    with pytest.raises(Invalid, match=r"auth\.jwks_url") as caught:
        JwksUrl(url, "RS256", ManualClock())
    assert "hunter2" not in str(caught.value)
