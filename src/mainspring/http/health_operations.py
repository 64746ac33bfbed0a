"""Operations for health, metrics and documentation."""

import asyncio
from typing import Any

from mainspring.core.model.access.access import Permission
from mainspring.core.model.base.errors import MainspringError, StoreDamaged
from mainspring.http.context import Api
from mainspring.http.docs.page import API_CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY, render_problems
from mainspring.http.operation import Answer, Call, Empty, Resource
from mainspring.http.problem_types import PATH, TYPES
from mainspring.http.schemas.common import Wire

#: How long a liveness probe waits for the store.
_GLANCE_SECONDS = 0.25
health = Resource("Health", "Probes, metrics, and this document.")


class Health(Wire):
    status: str
    roles: list[str]
    problems: list[str] = []
    clock_offset_ms: float = 0.0
    """How far this node's clock is ahead of the store's."""
    shards: int | None = None
    coordination: str | None = None
    running: int | None = None


@health.operation("GET", "/healthz", permission=None, answers={200: Health, 503: Health})
async def healthz(api: Api, call: Call[Empty, Empty]) -> Answer:
    """Check whether this process works.

    An unavailable store is not reported here, because a restart would not help. 503: the store is damaged.
    """
    found = await api.health()
    try:
        async with asyncio.timeout(_GLANCE_SECONDS):
            await api.store.now()
    except StoreDamaged as error:
        return Answer(503, {**found, "status": "unavailable", "problems": [str(error)]})
    except (MainspringError, TimeoutError):
        pass
    return Answer(200, found)


@health.operation("GET", "/readyz", permission=None, answers={200: Health, 503: Health})
async def readyz(api: Api, call: Call[Empty, Empty]) -> Answer:
    """Check whether this process can serve requests.

    503: it cannot, and the answer names the reason.
    """
    ready, found = await api.check_readiness()
    return Answer(200 if ready else 503, found)


@health.operation(
    "GET",
    "/metrics",
    permission=Permission.READ,
    answers={200: str},
    media_type="text/plain; version=0.0.4",
    traced=False,
)
async def metrics(api: Api, call: Call[Empty, Empty]) -> Answer:
    """Get metrics for Prometheus.

    A key that is bound to a tenant gets the metrics of its queues.
    """
    return Answer(200, raw=await api.metrics.render(call.principal.tenant, api.streams.taken))


@health.operation("GET", "/openapi.json", permission=None, answers={200: dict[str, Any]})
async def openapi(api: Api, call: Call[Empty, Empty]) -> Answer:
    """Get this OpenAPI document.

    It is made from the types that decode requests and encode answers, so it always fits the running version.
    """
    return Answer(200, raw=api.openapi)


@health.operation("GET", "/docs", permission=None, answers={200: str}, media_type="text/html; charset=utf-8")
async def docs(api: Api, call: Call[Empty, Empty]) -> Answer:
    """Get this API as an HTML page.

    A reader can send requests from it to this server. The page loads nothing from other hosts.
    """
    return Answer(200, raw=api.docs, headers={"content-security-policy": API_CONTENT_SECURITY_POLICY})


@health.operation("GET", PATH, permission=None, answers={200: str}, media_type="text/html; charset=utf-8")
async def problems(api: Api, call: Call[Empty, Empty]) -> Answer:
    """Show what each type of problem means.

    The `type` of a problem leads to its heading on this page.
    """
    return Answer(200, raw=_PROBLEMS, headers={"content-security-policy": CONTENT_SECURITY_POLICY})


_PROBLEMS = render_problems(TYPES)
