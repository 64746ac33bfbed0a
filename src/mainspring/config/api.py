"""Builds the API and its authentication."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from mainspring.config.health import examine
from mainspring.config.runtime import Runtime
from mainspring.config.sections.access import AuthSection, OidcSection
from mainspring.config.sections.values import read_file
from mainspring.config.settings import Settings, describe
from mainspring.config.stores import build_label
from mainspring.config.tasks import make_builtin_tasks
from mainspring.core.maintenance.monitor import Monitor
from mainspring.core.model.access.networks import read_networks
from mainspring.core.model.access.token_rules import Algorithm, check_grant
from mainspring.core.model.cluster.diagnosis import Finding
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.health import SettingView
from mainspring.http.auth.authenticator import Authenticator, TokenReader
from mainspring.http.context import Api
from mainspring.http.limits import TokenBuckets
from mainspring.http.metrics import Metrics
from mainspring.http.streams.hub import Hub
from mainspring.http.submit_buffer import SubmitBuffer

if TYPE_CHECKING:
    from mainspring.integrations.kafka.ingest import KafkaSubmitBuffer
    from mainspring.web.oidc import OidcSettings


@asynccontextmanager
async def open_local_api(runtime: Runtime) -> AsyncIterator[Api]:
    """Yield the API on an open runtime, without a server. Commands that open a store directly use this."""

    async def health() -> Mapping[str, object]:
        return {"status": "ok", "roles": []}

    # No authentication: a caller with access to the store could do everything without the API.
    api = make_api(runtime, Authenticator(runtime.store, runtime.clock, required=False), health)
    await api.hub.start()
    try:
        yield api
    finally:
        await api.hub.stop()


def make_api(
    runtime: Runtime,
    authenticator: Authenticator,
    health: Callable[[], Awaitable[Mapping[str, object]]],
    monitor: Monitor | None = None,
    buffer: "KafkaSubmitBuffer | None" = None,
) -> Api:
    settings = runtime.settings
    return Api(
        runtime.store,
        runtime.jobs,
        runtime.wakeups,
        runtime.clock,
        auth=authenticator,
        buckets=TokenBuckets(runtime.clock, settings.api.rate, settings.api.burst),
        hub=Hub(runtime.store, runtime.clock, build_label()),
        metrics=Metrics(monitor or Monitor(), runtime.metrics, runtime.replica_staleness),
        health=health,
        tasks=make_builtin_tasks(settings),
        proxies=read_networks("api.trusted_proxies", settings.api.trusted_proxies),
        production=settings.production,
        submit_buffer=None if buffer is None else SubmitBuffer(buffer, runtime.clock, settings.ingest.bound_to),
        system=_System(settings),
        notifications=settings.notifications.read(),
        run_logs=runtime.run_logs,
        tracing=runtime.tracing,
    )


class _System:
    """The settings and health checks of this process, for administrators."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def settings(self) -> list[SettingView]:
        defaults = dict(describe())
        return [SettingView(name, value, value != defaults[name]) for name, value in describe(self._settings)]

    async def examine(self) -> list[Finding]:
        # A store in memory has nothing to check.
        return [] if self._settings.store == "memory:" else await examine(self._settings)


def make_oidc_settings(section: OidcSection) -> "OidcSettings | None":
    """Return the OpenID settings of the dashboard, or None if sign-in is off."""
    if not section.issuer:
        return None
    from mainspring.web.oidc import OidcSettings

    return OidcSettings(
        issuer=section.issuer,
        client_id=section.client_id,
        client_secret=section.secret(),
        url=section.url,
        algorithm=msgspec.convert(section.algorithm, Algorithm),
        scopes=section.scopes,
        group_claim=section.group_claim,
        name_claim=section.name_claim,
        label=section.label,
        roles={group: check_grant("oidc.roles", group, words) for group, words in section.roles.items()},
    )


def make_tokens(auth: AuthSection, clock: Clock) -> TokenReader | None:
    """Build the validator of bearer tokens, or None if tokens are not accepted. Key files are read here, once."""
    if not auth.takes_tokens:
        return None
    from mainspring.http.auth import tokens

    algorithm = msgspec.convert(auth.jwt_algorithm, Algorithm)
    keys: tokens.KeySource
    if auth.jwks_url:
        keys = tokens.JwksUrl(auth.jwks_url, algorithm, clock)
    elif auth.jwks_file:
        keys = tokens.read_jwks("auth.jwks_file", read_file("auth.jwks_file", auth.jwks_file), algorithm)
    elif auth.jwt_key_file:
        keys = tokens.read_pem("auth.jwt_key_file", read_file("auth.jwt_key_file", auth.jwt_key_file), algorithm)
    else:
        keys = tokens.build_secret_key(
            "auth.jwt_secret_file" if auth.jwt_secret_file else "auth.jwt_secret", auth.secret()
        )
    return tokens.JwtTokens(
        keys,
        clock,
        algorithm=algorithm,
        issuer=auth.jwt_issuer,
        audience=auth.jwt_audience,
        role_claim=auth.jwt_role_claim,
        tenant_claim=auth.jwt_tenant_claim,
    )
