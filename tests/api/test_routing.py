"""Finding what serves a path."""

from typing import Any

import pytest

from mainspring.config.resources import RESOURCES
from mainspring.http.app import make_app
from mainspring.http.routing import Routes
from tests.api.conftest import Service

ROUTES = Routes({"/": "home", "/jobs": "list", "/jobs/batch": "batch", "/jobs/{id}": "job", "/jobs/{id}/runs": "runs"})


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/", ("home", {})),
        ("/jobs", ("list", {})),
        ("/jobs/", ("list", {})),
        ("/jobs/batch", ("batch", {})),
        ("/jobs/7", ("job", {"id": "7"})),
        ("/jobs/batch/runs", ("runs", {"id": "batch"})),
        ("/jobs/7/runs/", ("runs", {"id": "7"})),
        ("", None),
        ("/jobs//runs", None),
        ("/jobs/7/other", None),
        ("/jobsx", None),
        ("//", ("home", {})),
    ],
)
def test_a_path_leads_to_its_target(path: str, found: Any) -> None:
    assert ROUTES.find(path) == found


def test_characters_of_a_template_are_literal() -> None:
    assert Routes({"/usage.csv/{id}": 1}).find("/usageXcsv/1") is None


async def test_the_application_answers_the_lifespan_protocol() -> None:
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "lifespan.startup" if not sent else "lifespan.shutdown"}

    async def send(message: Any) -> None:
        sent.append(message["type"])

    await make_app(Service(auth=False).api, RESOURCES)({"type": "lifespan"}, receive, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


async def test_paths_count_from_the_root_path_and_unknown_ones_are_problems() -> None:
    service = Service(auth=False)
    async with service.client() as client:
        transport: Any = client._transport
        transport.root_path = "/below"
        assert (await client.get("/below/healthz")).status_code == 200
        missing = await client.get("/below/v1/nothing")
    assert (missing.status_code, missing.headers["content-type"]) == (404, "application/problem+json")
    assert missing.json()["status"] == 404
