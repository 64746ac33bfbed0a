"""The dashboard and the API inside another ASGI application."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from mainspring.asgi import Mounted
from mainspring.core.model.base.errors import Invalid


@asynccontextmanager
async def visiting(mounted: Mounted) -> AsyncIterator[httpx2.AsyncClient]:
    app = Starlette(routes=[Mount("/ops/jobs", mounted)])
    transport = httpx2.ASGITransport(app=cast(Any, app))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


async def test_pages_links_and_the_api_are_below_the_mount_path(tmp_path: Path) -> None:
    mounted = Mounted({"store": str(tmp_path / "mainspring.db")}, open_to_all=True)
    async with mounted, visiting(mounted) as client:
        page = await client.get("/ops/jobs/runs")
        assert page.status_code == 200
        assert 'href="/ops/jobs/jobs"' in page.text
        made = await client.post("/ops/jobs/v1/jobs", json={"task": "greet", "delay": "1h"})
        assert made.status_code in (201, 202), made.text
        listed = await client.get("/ops/jobs/v1/runs")
        assert [run["task"] for run in listed.json()["items"]] == ["greet"]


async def test_a_mounted_app_without_its_lifespan_answers_503(tmp_path: Path) -> None:
    async with visiting(Mounted({"store": str(tmp_path / "mainspring.db")}, open_to_all=True)) as client:
        answer = await client.get("/ops/jobs/")
    assert answer.status_code == 503
    assert "lifespan" in answer.json()["detail"]


def test_a_mounted_app_without_authentication_must_be_open_to_all(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="everybody"):
        Mounted({"store": str(tmp_path / "mainspring.db")})
