"""What is asked of a token's key, as far as it can be told without opening anything. The settings check it too."""

from collections.abc import Sequence
from ipaddress import ip_address
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

from mainspring.core.model.access.access import Role
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.runs.names import ALL_TENANTS, check_tenant

Algorithm: TypeAlias = Literal["HS256", "RS256", "EdDSA"]

SHORTEST_SECRET = 32
_FEWEST_DIFFERENT = 10
#: Words that stand in secrets people think up or copy, and practically never in random ones.
_WORDS = (
    b"secret",
    b"password",
    b"passphrase",
    b"change-me",
    b"change_me",
    b"changeme",
    b"example",
    b"default",
    b"qwerty",
    b"0123456789",
    b"1234567890",
    b"abcdefgh",
)
_HINT = "for example the output of: openssl rand -base64 48"


def check_secret(field: str, secret: bytes) -> bytes:
    """Refuse what can be guessed: with the secret, anybody can make a token for anybody. Never shows it."""
    if len(secret) < SHORTEST_SECRET:
        raise Invalid(field, f"has less than {SHORTEST_SECRET} bytes", _HINT)
    lowered = secret.lower()
    if b"-----begin" in lowered or lowered.startswith((b"ssh-", b"ecdsa-")):
        raise Invalid(field, "is a key of a pair, which others may know", _HINT)
    if (
        len(set(secret)) < _FEWEST_DIFFERENT
        or secret in (secret + secret)[1:-1]
        or any(word in lowered for word in _WORDS)
    ):
        raise Invalid(field, "can be guessed", _HINT)
    return secret


def check_jwks_url(field: str, url: str) -> str:
    """Whoever can change the answer can make tokens, so it comes over TLS; on this machine it need not."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise Invalid(field, "is no address", "https://…") from None
    if not host or parts.scheme not in ("https", "http"):
        raise Invalid(field, "is no address", "https://…")
    if parts.username is not None or parts.password is not None:
        raise Invalid(field, "holds a user or a password", "an address that needs none")
    if parts.scheme != "https" and not is_loopback(host):
        raise Invalid(field, "is not https", "http only on loopback")
    return url


def is_loopback(host: str) -> bool:
    """Reached only from this machine."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def check_grant(field: str, group: str, words: Sequence[str]) -> tuple[Role, str | None]:
    """What the members of a group are: a role, and whose things are theirs. None: everybody's."""
    hint = f'such as {group} = ["operator", "acme"], or ["admin", "{ALL_TENANTS}"]'
    if len(words) != 2 or words[0] not in set(Role):
        raise Invalid(field, f"{group!r:.40} is given no role and tenant", hint)
    role, tenant = Role(words[0]), words[1]
    if tenant == ALL_TENANTS:
        return role, None
    check_tenant(field, tenant)
    return role, tenant
