"""Requirements for the keys of tokens that can be checked without a connection. The settings check them, too."""

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
#: Words that occur in invented or copied secrets, and practically never in random ones.
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
    """Refuse a secret that can be guessed: with it, anyone can forge tokens. Errors never contain the secret."""
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
    """Require HTTPS unless the host is this machine: an attacker who changes the answer could forge tokens."""
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
    """Return whether a host can be reached only from this machine."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def check_grant(field: str, group: str, words: Sequence[str]) -> tuple[Role, str | None]:
    """Parse the role and the tenant that a group grants. A tenant of None stands for all tenants."""
    hint = f'such as {group} = ["operator", "acme"], or ["admin", "{ALL_TENANTS}"]'
    if len(words) != 2 or words[0] not in set(Role):
        raise Invalid(field, f"{group!r:.40} is given no role and tenant", hint)
    role, tenant = Role(words[0]), words[1]
    if tenant == ALL_TENANTS:
        return role, None
    check_tenant(field, tenant)
    return role, tenant
