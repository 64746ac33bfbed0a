"""Builds the HTTP services: the API, the dashboard and the server."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from mainspring.config.api import make_api, make_oidc_settings, make_tokens
from mainspring.config.ingest import make_submit_buffer
from mainspring.config.pages import PAGES
from mainspring.config.resources import RESOURCES
from mainspring.config.runtime import Runtime
from mainspring.core.maintenance.monitor import Monitor
from mainspring.core.runtime.service import Service
from mainspring.http.app import make_app
from mainspring.http.auth.authenticator import Authenticator, KeyUsageRecorder
from mainspring.http.server import HttpServer
from mainspring.web.app import DashboardSettings, build_dashboard

#: An ASGI application.
AsgiApp: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]


class _ExternalServer:
    """Replaces the HTTP server if another server serves the API. ``stop`` ends streams and waiting requests."""

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave = leave

    async def start(self) -> None: ...

    async def stop(self) -> None:
        self._leave()


def make_http_services(
    runtime: Runtime, health: Callable[[], Awaitable[Mapping[str, object]]], monitor: Monitor, *, listens: bool
) -> tuple[AsgiApp, list[Service]]:
    """Build the ASGI application and its services. ``listens``: False if another server serves the application."""
    settings = runtime.settings
    auth, ui = settings.auth, settings.ui
    authenticator = Authenticator(
        runtime.store,
        runtime.clock,
        required=auth.mode != "none",
        keys=auth.takes_keys,
        tokens=make_tokens(auth, runtime.clock),
    )
    buffer = make_submit_buffer(settings)
    api = make_api(runtime, authenticator, health, monitor, buffer)
    app = make_app(api, RESOURCES)
    if ui.enabled:
        app = build_dashboard(
            api, app, PAGES, DashboardSettings(ui.secret, ui.read_only, ui.redact, make_oidc_settings(settings.oidc))
        )
    services: list[Service] = [api.hub, KeyUsageRecorder(authenticator, runtime.wakeups, runtime.clock)]
    if buffer is not None:
        services.append(buffer)
    if listens:
        services.append(HttpServer(settings.host, settings.port, app, runtime.clock, leave=api.prepare_stop))
    else:
        services.append(_ExternalServer(api.prepare_stop))
    return app, services
