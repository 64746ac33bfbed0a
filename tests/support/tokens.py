"""Tokens as an identity provider signs them, and forged ones."""

import base64
import json
from typing import Any

from joserfc.jwk import Key
from joserfc.jws import JWSRegistry

from tests.support.clock import START

NOW = START // 1_000_000
ISSUER = "https://login.example.org/"
AUDIENCE = "mainspring"
#: The claims of a valid token.
CLAIMS: dict[str, Any] = {
    "sub": "ada",
    "iss": ISSUER,
    "aud": AUDIENCE,
    "exp": NOW + 600,
    "iat": NOW,
    "role": "operator",
    "tenant": "acme",
}


def encode(data: object) -> bytes:
    raw = data if isinstance(data, bytes) else json.dumps(data).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=")


def sign(key: Key | None, algorithm: str, claims: object = None, **header: object) -> str:
    """Sign with this algorithm. ``header`` may name another one."""
    text = encode({"alg": algorithm, "typ": "JWT", **header}) + b"." + encode(CLAIMS if claims is None else claims)
    signature = b"" if key is None else JWSRegistry.algorithms[algorithm].sign(text, key)
    return (text + b"." + encode(signature)).decode()


def jwk(key: Key, **more: object) -> dict[str, Any]:
    """The public part of a key, as in a key set."""
    return {**key.as_dict(private=False), **more}


def jwks(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": keys}).encode()
