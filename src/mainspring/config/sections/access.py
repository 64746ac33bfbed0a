"""The sections of the API, the dashboard and who may use them."""

import msgspec

from mainspring.config.sections.values import Secret, Table, read_file
from mainspring.core.model.access.networks import read_networks
from mainspring.core.model.access.token_rules import check_grant, check_jwks_url, check_secret
from mainspring.core.model.base.errors import Invalid


class AuthSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    mode: str = "none"
    """The authentication: ``keys`` (API keys), ``jwt`` (tokens of an identity provider), ``both``, or ``none``:
    every user of this machine has access."""
    jwt_algorithm: str = ""
    """``HS256``, ``RS256`` or ``EdDSA``. Tokens with another algorithm are rejected."""
    jwt_secret: Secret = ""
    """The shared secret of HS256, at least 32 bytes."""
    jwt_secret_file: str = ""
    """A file with the shared secret."""
    jwt_key_file: str = ""
    """A public key in PEM, for RS256 or EdDSA."""
    jwks_file: str = ""
    """A JSON Web Key Set, for RS256 or EdDSA."""
    jwks_url: str = ""
    """The address where the provider publishes its key set."""
    jwt_issuer: str = ""
    """The ``iss`` that a token must have."""
    jwt_audience: str = ""
    """The ``aud`` that a token must have."""
    jwt_role_claim: str = "role"
    jwt_tenant_claim: str = "tenant"

    @property
    def takes_keys(self) -> bool:
        return self.mode in ("keys", "both")

    @property
    def takes_tokens(self) -> bool:
        return self.mode in ("jwt", "both")

    def secret(self) -> bytes:
        """Return the secret of HS256 from the setting or from its file."""
        if self.jwt_secret_file:
            return read_file("auth.jwt_secret_file", self.jwt_secret_file).strip()
        return self.jwt_secret.encode()

    def check(self) -> None:
        if self.mode not in ("none", "keys", "jwt", "both"):
            raise Invalid("auth.mode", f"{self.mode!r} is not a mode", "none, keys, jwt or both")
        named = [
            field
            for field in ("jwt_secret", "jwt_secret_file", "jwt_key_file", "jwks_file", "jwks_url")
            if getattr(self, field)
        ]
        if not self.takes_tokens:
            for field in ("jwt_algorithm", *named, "jwt_issuer", "jwt_audience"):
                if getattr(self, field):
                    # A user who sets these expects that tokens are checked.
                    raise Invalid(f"auth.{field}", f"has no use while auth.mode is {self.mode}", "jwt or both")
            return
        fitting = {
            "HS256": ("jwt_secret", "jwt_secret_file"),
            "RS256": ("jwt_key_file", "jwks_file", "jwks_url"),
            "EdDSA": ("jwt_key_file", "jwks_file", "jwks_url"),
        }.get(self.jwt_algorithm)
        if fitting is None:
            raise Invalid("auth.jwt_algorithm", f"{self.jwt_algorithm!r} is not one", "HS256, RS256 or EdDSA")
        for field in named:
            if field not in fitting:
                raise Invalid(f"auth.{field}", f"is not for {self.jwt_algorithm}", f"set {' or '.join(fitting)}")
        if len(named) != 1:
            reason = f"has no use beside auth.{named[0]}" if named else f"is missing for {self.jwt_algorithm}"
            raise Invalid(f"auth.{named[1] if named else fitting[0]}", reason, f"one of {', '.join(fitting)}")
        if self.jwt_secret:
            check_secret("auth.jwt_secret", self.jwt_secret.encode())
        if self.jwks_url:
            check_jwks_url("auth.jwks_url", self.jwks_url)
        for field in ("jwt_issuer", "jwt_audience", "jwt_role_claim", "jwt_tenant_claim"):
            if not getattr(self, field):
                raise Invalid(f"auth.{field}", "is missing", "tokens are checked for it")

    def __repr__(self) -> str:
        return f"AuthSection(mode={self.mode!r}, jwt_algorithm={self.jwt_algorithm!r}, …)"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("mode", self.mode), ("jwt_algorithm", self.jwt_algorithm)]


class ApiSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    rate: float = 0
    """Requests per second of one caller, on average, in each API process; 0 for no limit."""
    burst: int = 100
    """Requests of one caller at once."""
    trusted_proxies: tuple[str, ...] = ()
    """Networks of proxies whose ``X-Forwarded-For`` is trusted."""
    submit_buffer: str = ""
    """``kafka``: while the store is unavailable, one-off jobs go to the topic of ``ingest.kafka``, and the API
    answers 202."""

    def check(self) -> None:
        read_networks("api.trusted_proxies", self.trusted_proxies)
        if self.submit_buffer not in ("", "kafka"):
            raise Invalid("api.submit_buffer", f"{self.submit_buffer!r} is not a buffer", "kafka, or nothing")


class UiSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    enabled: bool = True
    """Serve the dashboard beside the API."""
    read_only: bool = False
    """The dashboard is read-only for every user."""
    secret: Secret = ""
    """Encrypts the sessions of signed-in users. Set the same in every API process; without it, each process
    generates its own."""
    redact: tuple[str, ...] = ()
    """Names of fields whose values no page shows, in payloads and results; ``*`` stands for any characters."""


class OidcSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    issuer: str = ""
    """The OpenID provider where users sign in to the dashboard. Default: none."""
    client_id: str = ""
    """The client id of the dashboard at the provider."""
    client_secret: Secret = ""
    """The client secret, if the provider issued one."""
    client_secret_file: str = ""
    """A file with the client secret."""
    url: str = ""
    """The address of the dashboard for browsers, such as ``https://jobs.example.org/``."""
    algorithm: str = "RS256"
    """The algorithm of the provider's signatures: ``RS256`` or ``EdDSA``."""
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    """The scopes that the dashboard requests."""
    group_claim: str = "groups"
    """The claim with a user's groups."""
    name_claim: str = "sub"
    """The claim with a user's name in the audit."""
    label: str = ""
    """The text of the sign-in button. Default: the host of the provider."""
    roles: Table = msgspec.field(default_factory=dict)
    """For each group, a role, and a tenant or ``*`` for all. If a user has several groups, the first match
    counts."""

    def secret(self) -> str:
        """Return the secret from the setting or from its file."""
        if self.client_secret_file:
            return read_file("oidc.client_secret_file", self.client_secret_file).decode().strip()
        return self.client_secret

    def check(self) -> None:
        if not self.issuer:
            for field in ("client_id", "client_secret", "client_secret_file", "url", "roles"):
                if getattr(self, field):
                    raise Invalid(f"oidc.{field}", "has no use without oidc.issuer", "the address of the provider")
            return
        check_jwks_url("oidc.issuer", self.issuer)
        check_jwks_url("oidc.url", self.url)
        if self.algorithm not in ("RS256", "EdDSA"):
            raise Invalid("oidc.algorithm", f"{self.algorithm!r} is not one", "RS256 or EdDSA")
        for field in ("client_id", "group_claim", "name_claim", "roles"):
            if not getattr(self, field):
                raise Invalid(f"oidc.{field}", "is missing", "it is needed to sign users in")
        if "openid" not in self.scopes:
            raise Invalid("oidc.scopes", "does not name openid", "openid, and the scope with the groups")
        for group, words in self.roles.items():
            check_grant("oidc.roles", group, words)
