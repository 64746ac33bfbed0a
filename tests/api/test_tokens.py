"""Tokens of an identity provider: which are accepted, and every reason to reject one."""

import asyncio
import base64
import hmac
import json
from collections.abc import Callable
from math import gcd, prod
from typing import Any

import httpx2
import pytest
import structlog
from joserfc.jwk import Key, OctKey, OKPKey, RSAKey

from mainspring.core.model.access.access import Principal, Role
from mainspring.core.model.access.token_rules import Algorithm, check_jwks_url, check_secret
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import SECOND
from mainspring.core.ports.clock import Clock
from mainspring.http.auth.authenticator import REFUSED_WITHIN, Authenticator
from mainspring.http.auth.tokens import (
    LARGEST_SET,
    LARGEST_TOKEN,
    SET_AGAIN,
    SET_CACHED,
    JwksUrl,
    JwtTokens,
    KeySource,
    SingleKey,
    build_secret_key,
    read_jwks,
    read_pem,
)
from mainspring.http.auth.weak_keys import find_weakness
from mainspring.http.problems import RequestError
from mainspring.stores.memory import MemoryStore
from mainspring.testing.virtual_time import VirtualClock
from tests.support.clock import ManualClock
from tests.support.tokens import AUDIENCE, CLAIMS, ISSUER, NOW, encode, jwk, jwks, sign
from tests.support.virtual import in_virtual_time

SECRET = b"8Zq1wR6yT0uXo4pL2kJ9hG5fD3sA7vBn"
URL = "https://login.example.org/keys"
ADA = Principal(name="user:ada", role=Role.OPERATOR, tenant="acme")

OCT = OctKey.import_key(SECRET)
RSA = RSAKey.generate_key(2048, auto_kid=True)
OTHER_RSA = RSAKey.generate_key(2048, auto_kid=True)
OKP = OKPKey.generate_key("Ed25519", auto_kid=True)
SIGNERS: dict[Algorithm, Key] = {"HS256": OCT, "RS256": RSA, "EdDSA": OKP}


def make_key(algorithm: Algorithm) -> SingleKey:
    if algorithm == "HS256":
        return build_secret_key("secret", SECRET)
    key = SIGNERS[algorithm]
    assert isinstance(key, RSAKey | OKPKey)
    return read_pem("key", key.as_pem(), algorithm)


def make_tokens(
    algorithm: Algorithm, keys: KeySource | None = None, clock: Clock | None = None, **more: str
) -> JwtTokens:
    return JwtTokens(
        keys or make_key(algorithm),
        clock or ManualClock(),
        algorithm=algorithm,
        issuer=ISSUER,
        audience=AUDIENCE,
        **more,
    )


async def identify(claims: object, **more: str) -> Principal | None:
    return await make_tokens("HS256", None, None, **more).principal(sign(OCT, "HS256", claims))


@pytest.mark.parametrize("algorithm", ["HS256", "RS256", "EdDSA"])
async def test_a_valid_token_identifies_its_principal(algorithm: Algorithm) -> None:
    token = sign(SIGNERS[algorithm], algorithm, kid="whatever", x5t="also")
    assert await make_tokens(algorithm).principal(token) == ADA


@pytest.mark.parametrize("bound", ["HS256", "RS256", "EdDSA"])
@pytest.mark.parametrize("used", ["HS256", "RS256", "EdDSA"])
async def test_a_token_must_use_the_algorithm_of_the_key(bound: Algorithm, used: Algorithm) -> None:
    found = await make_tokens(bound).principal(sign(SIGNERS[used], used))
    assert (found is not None) == (bound == used)


@pytest.mark.parametrize("bound", ["HS256", "RS256", "EdDSA"])
@pytest.mark.parametrize("name", ["none", "None", "NONE", "", "HS384", "RS512", "PS256", "ES256", None, 7, ["HS256"]])
async def test_the_algorithm_in_the_header_cannot_weaken_the_check(bound: Algorithm, name: object) -> None:
    tokens = make_tokens(bound)
    for claimed in (name, bound):
        assert await tokens.principal(sign(None, "HS256", alg=claimed)) is None, "without any signature"
    assert await tokens.principal(sign(SIGNERS[bound], bound, alg=name)) is None, "with a good one"


@pytest.mark.parametrize("bound", ["RS256", "EdDSA"])
@pytest.mark.parametrize("claimed", ["HS256", "RS256", "EdDSA"])
async def test_a_public_key_is_not_accepted_as_a_shared_secret(bound: Algorithm, claimed: str) -> None:
    """The classic attack signs with HMAC and the public key as the secret."""
    key = SIGNERS[bound]
    assert isinstance(key, RSAKey | OKPKey)
    for secret in (key.as_pem(), key.as_pem().strip(), key.as_der(), json.dumps(jwk(key)).encode()):
        text = encode({"alg": claimed, "typ": "JWT"}) + b"." + encode(CLAIMS)
        forged = text + b"." + encode(hmac.digest(secret, text, "sha256"))
        assert await make_tokens(bound).principal(forged.decode()) is None


@pytest.mark.parametrize("algorithm", ["HS256", "RS256", "EdDSA"])
async def test_a_modified_token_is_rejected(algorithm: Algorithm) -> None:
    tokens = make_tokens(algorithm)
    header, payload, signature = sign(SIGNERS[algorithm], algorithm).split(".")
    admin = encode({**CLAIMS, "role": "admin"}).decode()
    assert await tokens.principal(f"{header}.{admin}.{signature}") is None
    assert await tokens.principal(f"{header}.{payload}.{signature[:-8]}AAAAAAAA") is None
    assert await tokens.principal(f"{header}.{payload}.") is None
    assert await tokens.principal(f"{header}.{payload}.{signature}") == ADA


async def test_a_token_signed_by_another_key_is_rejected() -> None:
    assert await make_tokens("RS256").principal(sign(OTHER_RSA, "RS256")) is None
    # A key in the header, or one it points to, is ignored.
    header = {"jwk": jwk(OTHER_RSA), "jku": "https://evil.example/keys", "kid": RSA.kid}
    assert await make_tokens("RS256").principal(sign(OTHER_RSA, "RS256", **header)) is None


@pytest.mark.parametrize("claim", ["exp", "aud", "iss", "sub", "role", "tenant"])
async def test_a_token_without_a_required_claim_is_rejected(claim: str) -> None:
    assert await identify({name: value for name, value in CLAIMS.items() if name != claim}) is None
    assert await identify({**CLAIMS, claim: None}) is None
    assert await identify({**CLAIMS, claim: ""}) is None
    assert await identify({**CLAIMS, claim: {}}) is None


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
async def test_expiry_issuer_and_audience_are_checked(claims: dict[str, Any], valid: bool) -> None:
    assert await identify({**CLAIMS, **claims}) == (ADA if valid else None)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", "9" * 400])
async def test_a_token_whose_expiry_is_not_a_finite_number_is_rejected(number: str) -> None:
    payload = json.dumps(CLAIMS).replace(str(CLAIMS["exp"]), number).encode()
    assert number.encode() in payload
    assert await identify(payload) is None


async def test_a_token_expires_while_the_process_runs() -> None:
    clock = ManualClock()
    tokens = make_tokens("HS256", clock=clock)
    token = sign(OCT, "HS256")
    clock.advance(629 * SECOND)
    assert await tokens.principal(token) == ADA
    clock.advance(SECOND)
    assert await tokens.principal(token) is None


@in_virtual_time
async def test_a_stream_ends_soon_after_its_token_has_expired() -> None:
    clock = VirtualClock()
    auth = Authenticator(MemoryStore(clock, 1), clock, required=True, tokens=make_tokens("HS256", clock=clock))
    began = clock.monotonic()
    headers = {"authorization": f"Bearer {sign(OCT, 'HS256')}"}
    await auth.wait_for_revocation(lambda: auth.principal(headers))
    assert 0 <= clock.monotonic() - began - 630 * SECOND <= REFUSED_WITHIN


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
async def test_role_and_tenant_claims_are_checked(
    role: object, tenant: object, expected: tuple[Role, str | None] | None
) -> None:
    found = await identify({**CLAIMS, "role": role, "tenant": tenant})
    assert (found and (found.role, found.tenant)) == expected


async def test_the_names_of_the_role_and_tenant_claims_can_be_set() -> None:
    claims = {**CLAIMS, "https://acme.example/role": "viewer", "org": "umbrella"}
    found = await identify(claims, role_claim="https://acme.example/role", tenant_claim="org")
    assert found == Principal(name="user:ada", role=Role.VIEWER, tenant="umbrella")


@pytest.mark.parametrize(
    ("subject", "valid"), [("a" * 195, True), ("a" * 196, False), ("a\x1b[31m", False), (" a", False), (7, False)]
)
async def test_a_subject_that_cannot_be_displayed_is_rejected(subject: object, valid: bool) -> None:
    assert (await identify({**CLAIMS, "sub": subject}) is not None) == valid


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
async def test_garbage_is_rejected_without_an_error(token: str) -> None:
    assert await make_tokens("HS256").principal(token) is None


@pytest.mark.parametrize("payload", [b"[]", b"7", b"null", b"\xff", b"", b"{", b"[" * 5_000, b'{"a":' * 900])
async def test_a_signed_payload_that_is_not_a_json_object_is_rejected(payload: bytes) -> None:
    assert await identify(payload) is None


async def test_a_token_with_critical_extensions_is_rejected() -> None:
    tokens = make_tokens("HS256")
    assert await tokens.principal(sign(OCT, "HS256", crit=["exp"], exp=1)) is None
    assert await tokens.principal(sign(OCT, "HS256", crit=["b64"], b64=False)) is None
    assert await tokens.principal(sign(OCT, "HS256", crit=[])) is None
    assert await tokens.principal(sign(OCT, "HS256", kid=7)) is None


async def test_a_token_that_is_too_large_is_rejected() -> None:
    def padded(extra: int) -> str:
        return sign(OCT, "HS256", {**CLAIMS, "pad": "x" * extra})

    # In Base64, three bytes become four.
    fits = (LARGEST_TOKEN - len(padded(0))) * 3 // 4 - 3
    assert len(padded(fits)) <= LARGEST_TOKEN < len(padded(fits + 12))
    assert await make_tokens("HS256").principal(padded(fits)) == ADA
    assert await make_tokens("HS256").principal(padded(fits + 12)) is None


async def test_the_log_has_the_reason_of_a_rejection_but_not_the_token() -> None:
    good = sign(OCT, "HS256")
    with structlog.testing.capture_logs() as logs:
        await make_tokens("HS256").principal(sign(OCT, "HS256", {**CLAIMS, "exp": 1, "sub": "private-name"}))
        await make_tokens("HS256").principal(good + "tamperedx")
        await make_tokens("RS256").principal(good)
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
def test_a_weak_secret_is_rejected_and_not_shown(secret: bytes, message: str) -> None:
    with pytest.raises(Invalid, match=message) as caught:
        build_secret_key("auth.jwt_secret", secret)
    assert len(secret) == 0 or secret.decode() not in str(caught.value)


@pytest.mark.parametrize("secret", [SECRET, bytes(range(32)), b"6f1d9c0b7a8e4523d0c9b8a7f6e51234"])
def test_a_random_secret_is_accepted(secret: bytes) -> None:
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
def test_a_key_file_of_the_wrong_kind_is_rejected(data: bytes, algorithm: Algorithm, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        read_pem("auth.jwt_key_file", data, algorithm)


@pytest.mark.filterwarnings("ignore:Key size")
def test_a_short_rsa_key_is_rejected() -> None:
    short = RSAKey.generate_key(1024)
    with pytest.raises(Invalid, match="no usable key"):
        read_pem("key", short.as_pem(), "RS256")
    with pytest.raises(Invalid, match="no usable key"):
        read_jwks("keys", jwks(jwk(short)), "RS256")


async def test_the_key_of_a_set_is_found_by_its_id() -> None:
    tokens = make_tokens("RS256", read_jwks("keys", jwks(jwk(OTHER_RSA), jwk(OKP), jwk(RSA)), "RS256"))
    assert await tokens.principal(sign(RSA, "RS256", kid=RSA.kid)) == ADA
    assert await tokens.principal(sign(OTHER_RSA, "RS256", kid=OTHER_RSA.kid)) == ADA
    assert await tokens.principal(sign(RSA, "RS256", kid=OTHER_RSA.kid)) is None
    assert await tokens.principal(sign(RSA, "RS256", kid="unknown")) is None
    for key in (RSA, OTHER_RSA):
        assert await tokens.principal(sign(key, "RS256")) is None, "either key could have signed it"


async def test_a_token_without_a_key_id_is_accepted_if_one_key_fits() -> None:
    tokens = make_tokens("EdDSA", read_jwks("keys", jwks(jwk(OKP), jwk(RSA)), "EdDSA"))
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
def test_keys_for_other_purposes_are_ignored(unfit: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match="no usable key for RS256"):
        read_jwks("auth.jwks_file", jwks(unfit, jwk(OKP)), "RS256")


def test_a_key_set_with_a_shared_secret_is_rejected() -> None:
    with pytest.raises(Invalid, match="no usable key for HS256"):
        read_jwks("auth.jwks_file", jwks(OCT.as_dict()), "HS256")


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"keys": {}}', b'{"keys": [7]}', b"\xff", b"[" * 100_000])
def test_malformed_key_sets_are_rejected(data: bytes) -> None:
    with pytest.raises(Invalid, match="is not a JSON Web Key Set"):
        read_jwks("auth.jwks_file", data, "RS256")


def answers(body: bytes, status: int = 200, **headers: str) -> httpx2.Response:
    return httpx2.Response(status, stream=httpx2.ByteStream(body), headers=headers)


class Provider:
    """An identity provider that publishes keys and records requests."""

    def __init__(self, *keys: Key) -> None:
        self.requests: list[httpx2.Request] = []
        self.answer: Callable[[], httpx2.Response] = lambda: answers(jwks(*map(jwk, self.keys)))
        self.keys = list(keys)
        self.called = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        self.called.set()
        await self.may_answer.wait()
        return self.answer()

    def tokens(self, clock: Clock) -> JwtTokens:
        return make_tokens("RS256", JwksUrl(URL, "RS256", clock, httpx2.MockTransport(self)), clock)


OLD = sign(RSA, "RS256", kid=RSA.kid)
NEW = sign(OTHER_RSA, "RS256", {**CLAIMS, "exp": NOW + 100_000}, kid=OTHER_RSA.kid)
LASTING = sign(RSA, "RS256", {**CLAIMS, "exp": NOW + 100_000}, kid=RSA.kid)


async def test_a_published_key_set_is_fetched_on_demand_and_cached_for_ten_minutes() -> None:
    clock, provider = ManualClock(), Provider(RSA)
    tokens = provider.tokens(clock)
    assert provider.requests == []
    for _ in range(3):
        assert await tokens.principal(LASTING) == ADA
        clock.advance(SECOND)
    assert len(provider.requests) == 1
    clock.advance(SET_CACHED - 4 * SECOND)
    assert await tokens.principal(LASTING) == ADA
    assert len(provider.requests) == 1
    clock.advance(SECOND)
    assert await tokens.principal(LASTING) == ADA
    assert len(provider.requests) == 2
    request = provider.requests[0]
    assert (str(request.url), request.headers["accept-encoding"]) == (URL, "identity")
    assert "authorization" not in request.headers


async def test_an_unknown_key_id_refreshes_the_key_set_at_most_every_30_seconds() -> None:
    clock, provider = ManualClock(), Provider(RSA)
    tokens = provider.tokens(clock)
    assert await tokens.principal(OLD) == ADA
    provider.keys = [OTHER_RSA]
    assert await tokens.principal(NEW) is None, "the set was fetched a moment ago"
    clock.advance(SET_AGAIN)
    assert await tokens.principal(NEW) == ADA
    assert await tokens.principal(OLD) is None, "no longer published"
    for number in range(20):
        assert await tokens.principal(sign(RSA, "RS256", kid=str(number))) is None
    assert len(provider.requests) == 2
    clock.advance(SET_AGAIN)
    await tokens.principal(sign(RSA, "RS256", kid="x"))
    assert len(provider.requests) == 3


def _refuse() -> httpx2.Response:
    raise httpx2.ConnectError("no route to secret-host")


def _break() -> httpx2.Response:
    raise RuntimeError("unexpected error of secret-host")


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
async def test_the_old_key_set_is_kept_when_a_refresh_fails(answer: Callable[[], httpx2.Response]) -> None:
    clock, provider = ManualClock(), Provider(RSA)
    tokens = provider.tokens(clock)
    assert await tokens.principal(LASTING) == ADA
    good, provider.answer = provider.answer, answer
    clock.advance(SET_CACHED)
    with structlog.testing.capture_logs() as logs:
        assert await tokens.principal(LASTING) == ADA
        assert await tokens.principal(LASTING) == ADA
        assert await tokens.principal(NEW) is None
    assert len(provider.requests) == 2, "a failed fetch is not repeated at once"
    [warning] = [entry for entry in logs if entry["log_level"] == "warning"]
    assert (warning["host"], warning["old_keys_kept"]) == ("login.example.org", True)
    assert "secret-host" not in repr(logs)
    provider.answer, provider.keys = good, [OTHER_RSA]
    clock.advance(SET_AGAIN)
    assert await tokens.principal(NEW) == ADA


async def test_without_a_key_set_tokens_are_rejected_and_the_fetch_is_retried() -> None:
    clock, provider = ManualClock(), Provider(RSA)
    good, provider.answer = provider.answer, _refuse
    tokens = provider.tokens(clock)
    for _ in range(3):
        assert await tokens.principal(OLD) is None
    assert len(provider.requests) == 1
    provider.answer = good
    clock.advance(5 * SECOND)
    assert await tokens.principal(OLD) == ADA


async def test_concurrent_checks_share_one_fetch_and_do_not_wait_for_a_refresh() -> None:
    clock, provider = ManualClock(), Provider(RSA)
    tokens = provider.tokens(clock)
    provider.may_answer.clear()
    first = [asyncio.create_task(tokens.principal(LASTING)) for _ in range(20)]
    await provider.called.wait()
    # Let all of them wait before the provider answers.
    await asyncio.sleep(0)
    assert not any(task.done() for task in first)
    provider.may_answer.set()
    assert await asyncio.gather(*first) == [ADA] * 20
    assert len(provider.requests) == 1
    provider.may_answer.clear()
    provider.called.clear()
    clock.advance(SET_CACHED)
    waiting = asyncio.create_task(tokens.principal(LASTING))
    await provider.called.wait()
    assert await tokens.principal(LASTING) == ADA
    assert not waiting.done()
    provider.may_answer.set()
    assert await waiting == ADA


@in_virtual_time
async def test_a_request_to_a_provider_that_does_not_answer_times_out() -> None:
    clock, provider = VirtualClock(), Provider(RSA)
    provider.may_answer.clear()
    began = clock.monotonic()
    assert await provider.tokens(clock).principal(OLD) is None
    assert clock.monotonic() - began == 5 * SECOND


async def test_a_key_set_is_fetched_from_a_real_server() -> None:
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
        assert await make_tokens("RS256", JwksUrl(url, "RS256", clock), clock).principal(OLD) == ADA


async def test_every_invalid_token_gets_the_same_401() -> None:
    clock = ManualClock()
    authenticator = Authenticator(MemoryStore(clock, 4), clock, required=True, tokens=make_tokens("HS256", clock=clock))
    assert await authenticator.principal({"authorization": f"Bearer {sign(OCT, 'HS256')}"}) == ADA
    problems = set()
    wrong: list[object] = [{**CLAIMS, "exp": 1}, {**CLAIMS, "aud": "x"}, {**CLAIMS, "role": "root"}, []]
    for claims in wrong:
        with pytest.raises(RequestError) as caught:
            await authenticator.principal({"authorization": f"Bearer {sign(OCT, 'HS256', claims)}"})
        problems.add(caught.value.problem)
    assert [problem.status for problem in problems] == [401], "all problems are equal"


@pytest.mark.parametrize(
    "url",
    ["https://login.example.org/keys", "http://127.0.0.1:8080/keys", "http://localhost/k", "http://[::1]:80/k"],
)
def test_a_safe_key_set_url_is_accepted(url: str) -> None:
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
def test_an_unsafe_key_set_url_is_rejected(url: str) -> None:
    with pytest.raises(Invalid, match=r"auth\.jwks_url") as caught:
        JwksUrl(url, "RS256", ManualClock())
    assert "hunter2" not in str(caught.value)


def respell(token: str) -> dict[str, str]:
    """Other spellings of a token that a lenient decoder takes for the same."""
    found = {"trailing newline": f"{token}\n", "leading space": f" {token}", "fourth part": f"{token}."}
    parts = token.split(".")
    for number, part in enumerate(parts):
        last = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
        changes = {
            "padding": part + "=" * (-len(part) % 4 or 4),
            "question mark": f"{part[:-1]}?{part[-1:]}",
            "space": f"{part[:2]} {part[2:]}",
            "line break": f"{part[:2]}\n{part[2:]}",
            "other alphabet": part.replace("-", "+").replace("_", "/"),
        }
        if len(part) % 4:
            changes["unused bits"] = part[:-1] + last[last.index(part[-1]) + 1]
        for name, changed in changes.items():
            if changed != part:
                found[f"{name} in part {number}"] = ".".join([*parts[:number], changed, *parts[number + 1 :]])
    return found


@pytest.mark.parametrize("algorithm", ["HS256", "RS256", "EdDSA"])
async def test_a_token_has_one_spelling(algorithm: Algorithm) -> None:
    """Strict base64url (RFC 7515): signed as it stands, and still refused."""
    tokens, token = make_tokens(algorithm), sign(SIGNERS[algorithm], algorithm)
    assert await tokens.principal(token) == ADA
    for name, other in respell(token).items():
        assert await tokens.principal(other) is None, name


@pytest.mark.parametrize("character", ["=", "==", "====", "?", "#", " ", "\n", "+", "/", "ü"])
async def test_a_signature_over_a_stray_character_does_not_help(character: str) -> None:
    header, payload, _ = sign(OCT, "HS256").split(".")
    for signed in (
        f"{header}{character}.{payload}",
        f"{header}.{payload}{character}",
        f"{header}.{character}{payload}",
    ):
        signature = base64.urlsafe_b64encode(hmac.digest(SECRET, signed.encode(), "sha256")).decode().rstrip("=")
        assert await make_tokens("HS256").principal(f"{signed}.{signature}") is None


def encode_number(number: int) -> str:
    return base64.urlsafe_b64encode(number.to_bytes(-(-number.bit_length() // 8), "big")).decode().rstrip("=")


#: All primes by which the faulty library is recognized.
PRODUCT = prod(n for n in range(3, 168) if all(n % divisor for divisor in range(2, n)))
ROCA = pow(65537, 1_234_567, PRODUCT)
#: Two large numbers without small factors, not far from each other.
FIRST, OTHER = [number for number in range(2**1023, 2**1023 + 1_000) if gcd(number, 2 * PRODUCT) == 1][:2]
WEAK_MODULI = {
    "ROCA": (PRODUCT * (2**1830 + 1 - ROCA % 2) + ROCA, "ROCA"),
    "even": (2**2047, "small factor"),
    "small factor": (167 * (2**2047 + 1), "small factor"),
    "close primes": (FIRST * OTHER, "close"),
    "a square": (FIRST**2, "close"),
}


@pytest.mark.parametrize("name", WEAK_MODULI)
def test_an_rsa_key_that_can_be_factored_is_not_used(name: str) -> None:
    modulus, why = WEAK_MODULI[name]
    assert modulus.bit_length() >= 2_000
    assert why in find_weakness(modulus, 65537)
    weak = {"kty": "RSA", "n": encode_number(modulus), "e": "AQAB", "kid": "weak"}
    with pytest.raises(Invalid, match="holds no usable key for RS256"):
        read_jwks("keys", json.dumps({"keys": [weak]}).encode(), "RS256")
    good = RSA.as_dict(private=False)
    ring = read_jwks("keys", json.dumps({"keys": [weak, good]}).encode(), "RS256")
    assert ring.find("weak") is None
    assert ring.find(str(good["kid"])) is not None


@pytest.mark.parametrize("exponent", [0, 1, 2, 65536])
def test_an_rsa_key_with_a_useless_exponent_is_not_used(exponent: int) -> None:
    assert "exponent" in find_weakness(RSA.public_key.public_numbers().n, exponent)
    assert find_weakness(RSA.public_key.public_numbers().n, 3) == ""
