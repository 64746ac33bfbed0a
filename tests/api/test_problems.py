"""Types of problems: stable addresses that lead to a description; unknown paths and unknown objects."""

import ast
import re
from pathlib import Path

import httpx2
import pytest

from mainspring.config.pages import PAGES
from mainspring.http.problem_types import TYPES, find_type
from mainspring.http.problems import Problem
from mainspring.web.app import build_dashboard
from tests.api.conftest import Service, memory_only
from tools import problems_reference

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/problems.md"
MISSING = "019a8c4b6f2c70008042b1c2d3e4f506"


def titles_in_code() -> set[tuple[int, str]]:
    """Find every ``RequestError(status, title, …)`` and ``Problem(title=…, status=…)`` in the API and the dashboard."""
    found: set[tuple[int, str]] = set()
    for folder in ("http", "web", "features"):
        for path in (ROOT / "src/mainspring" / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                    continue
                words = [one.value for one in node.args if isinstance(one, ast.Constant)]
                named = {one.arg: one.value.value for one in node.keywords if isinstance(one.value, ast.Constant)}
                if node.func.id == "RequestError" and len(words) > 1:
                    found.add((int(str(words[0])), str(words[1])))
                elif node.func.id == "Problem" and "title" in named:
                    found.add((int(str(named["status"])), str(named["title"])))
    return found


def test_every_problem_of_the_code_is_described() -> None:
    assert {(one.status, one.title) for one in TYPES} == titles_in_code() | {(400, "Bad request")}
    assert len({one.slug for one in TYPES}) == len(TYPES)


def test_the_types_stay_the_same() -> None:
    """Programs compare them. A new type is added here; none is changed or removed."""
    assert sorted(one.slug for one in TYPES) == [
        "bad-request",
        "conflict",
        "content-too-large",
        "fenced",
        "forbidden",
        "internal-error",
        "logs-unavailable",
        "method-not-allowed",
        "no-address",
        "not-done-in-time",
        "not-found",
        "overloaded",
        "quota-reached",
        "read-only",
        "request-timeout",
        "store-damaged",
        "store-unavailable",
        "this-page-is-too-old",
        "too-many-at-once",
        "too-many-requests",
        "unauthorized",
        "unknown-path",
        "unsupported-media-type",
    ]


def test_the_committed_page_is_up_to_date() -> None:
    if PAGE.read_text() != problems_reference.page():
        pytest.fail("docs/reference/problems.md is out of date: run make reference", pytrace=False)


def test_the_page_has_one_heading_for_each_type() -> None:
    headings = [line.removeprefix("## ") for line in PAGE.read_text().splitlines() if line.startswith("## ")]
    assert [find_type(heading) for heading in headings] == [Problem(title=one.title, status=0).type for one in TYPES]


@memory_only
async def test_the_type_of_a_problem_leads_to_its_description(client: httpx2.AsyncClient) -> None:
    refused = await client.post("/v1/jobs", json={"speed": 1})
    path, _, place = refused.json()["type"].partition("#")
    page = await client.get(path)
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert place == "bad-request"
    assert set(re.findall(r'<section id="([^"]+)"', page.text)) == {one.slug for one in TYPES}


@memory_only
@pytest.mark.parametrize(
    ("method", "path", "kind", "words"),
    [
        ("GET", "/v1/jobz", "unknown-path", "did you mean `/v1/jobs`?"),
        ("GET", "/v1", "unknown-path", "/docs"),
        ("POST", "/api/jobs/schedul", "unknown-path", "did you mean `/api/jobs/schedule`?"),
        ("GET", "/api", "unknown-path", "/docs"),
        ("GET", "/v1/jobs/a/b/c", "unknown-path", "/v1/jobs/a/b/c"),
        ("GET", f"/v1/jobs/{MISSING}", "not-found", "no such object, or it is not yours"),
        ("GET", "/v1/runs/x", "not-found", "no such object, or it is not yours"),
        ("PUT", "/v1/jobs", "method-not-allowed", "GET, POST"),
    ],
)
async def test_a_problem_says_whether_the_path_or_the_object_is_unknown(
    service: Service, method: str, path: str, kind: str, words: str
) -> None:
    dashboard = httpx2.ASGITransport(app=build_dashboard(service.api, service.app, PAGES))
    async with (
        service.client() as alone,
        httpx2.AsyncClient(transport=dashboard, base_url="http://localhost") as with_dashboard,
    ):
        for client in (alone, with_dashboard):
            for accept in ("*/*", "application/json", "text/html,application/xhtml+xml,*/*;q=0.8"):
                answer = await client.request(method, path, headers={"accept": accept})
                assert answer.headers["content-type"] == "application/problem+json", (path, accept)
                problem = answer.json()
                assert problem["type"] == f"/docs/problems#{kind}"
                assert words in f"{problem.get('detail')} {problem.get('hint')}"


@memory_only
async def test_only_browsers_get_a_page_about_an_unknown_path(service: Service) -> None:
    transport = httpx2.ASGITransport(app=build_dashboard(service.api, service.app, PAGES))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for path in ("/nowhere", f"/jobs/{MISSING}", f"/runs/{MISSING}"):
            browser = await client.get(path, headers={"accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
            assert (browser.status_code, browser.headers["content-type"]) == (404, "text/html; charset=utf-8")
            program = await client.get(path, headers={"accept": "application/json"})
            assert (program.status_code, program.headers["content-type"]) == (404, "application/problem+json")
            kind = "unknown-path" if path == "/nowhere" else "not-found"
            assert program.json()["type"] == f"/docs/problems#{kind}"
        assert (await client.get("/nowhere", headers={"accept": "*/*"})).json()["title"] == "Unknown path"
