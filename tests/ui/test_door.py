"""Requests to the dashboard: sessions, forms and headers, on the memory store and without a browser."""

import re
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

import httpx2
import msgspec
import pytest

from mainspring.config.loading import load
from mainspring.config.pages import PAGES
from mainspring.core.model.access.access import Role
from mainspring.core.model.base.instant import HOUR
from mainspring.http.auth.authenticator import REFUSED_WITHIN
from mainspring.http.schemas.job_answers import JobOut
from mainspring.testing.virtual_time import VirtualClock
from mainspring.web.app import DashboardSettings, build_dashboard
from mainspring.web.job_fields import build_form_values
from tests.api.conftest import Service
from tests.support.virtual import in_virtual_time

KEY = re.compile(r'name="csrf" value="([^"]+)"')


def ui(service: Service, *, read_only: bool = False, root: str = "") -> httpx2.AsyncClient:
    app = build_dashboard(service.api, service.app, PAGES, DashboardSettings(secret="s" * 32, read_only=read_only))
    transport = httpx2.ASGITransport(app=cast(Any, app), root_path=root)
    return httpx2.AsyncClient(transport=transport, base_url="http://localhost")


@pytest.fixture
def local() -> Service:
    return Service(auth=False)


@pytest.fixture
def closed() -> Service:
    return Service(auth=True)


async def create_job(service: Service) -> str:
    async with service.client() as client:
        made = await client.post("/v1/jobs", json={"task": "t", "name": "n", "every": "1h"})
        return str(made.json()["jobId"])


async def sign_in(client: httpx2.AsyncClient, key: str) -> httpx2.Response:
    token = KEY.findall((await client.get("/sign-in")).text)[0]
    return await client.post("/sign-in", data={"csrf": token, "credentials": key, "to": "jobs"})


async def test_the_api_is_served_beside_the_dashboard(local: Service) -> None:
    async with ui(local) as client:
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/v1/jobs")).json() == {"items": [], "nextCursor": None}
        assert "API" in (await client.get("/docs")).text
        assert (await client.get("/v1/nowhere")).headers["content-type"] == "application/problem+json"


async def test_every_page_has_a_strict_content_security_policy(local: Service) -> None:
    async with ui(local) as client:
        for path in ("/", "/runs", "/jobs", "/jobs/new", "/workflows", "/calendar", "/calendar?view=day", "/nowhere"):
            answer = await client.get(path)
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'; script-src 'self'; style-src 'self';" in policy
            assert "unsafe" not in policy
            assert answer.headers["cache-control"] == "no-store"
            assert " style=" not in answer.text
            assert not re.findall(r"<script(?![^>]* src=)|\son\w+=", answer.text)


async def test_static_files_are_cached_forever_under_their_version(local: Service) -> None:
    async with ui(local) as client:
        found = re.findall(r'"(/static/[^"]+)"', (await client.get("/")).text)
        assert len(found) >= 6
        for path in found:
            answer = await client.get(path)
            assert answer.status_code == 200, path
            assert "immutable" in answer.headers["cache-control"]
        assert (await client.get("/static/000000000000/app.css")).status_code == 404
        assert (await client.get(found[0].rsplit("/", 1)[0] + "/../app.py")).status_code == 404


async def test_a_form_post_from_another_site_is_refused(local: Service) -> None:
    job = await create_job(local)
    async with ui(local) as client:
        token = KEY.findall((await client.get(f"/jobs/{job}")).text)[0]
        path, data = f"/jobs/{job}/pause", {"csrf": token}
        for headers in ({"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}):
            assert (await client.post(path, data=data, headers=headers)).status_code == 403
        for wrong in ({}, {"csrf": ""}, {"csrf": "x" * 44}, {"csrf": "é"}):
            answer = await client.post(path, data=wrong)
            assert answer.status_code == 403
            assert "too old" in answer.text
        assert (await client.get(path)).status_code == 404
        answer = await client.post(path, data=data, headers={"origin": "http://localhost"})
        assert (answer.status_code, answer.headers["location"]) == (303, f"/jobs/{job}")
        assert (await client.get(f"/v1/jobs/{job}")).json()["status"] == "paused"


async def test_pages_without_a_session_redirect_to_sign_in(closed: Service) -> None:
    async with ui(closed) as client:
        for path in ("/", "/runs", "/runs/x", "/nowhere", "/live"):
            answer = await client.get(path)
            assert answer.status_code == 303, path
            assert answer.headers["location"].startswith("/sign-in")
        forged = {"cookie": "mainspring_session=eyJhbGciOiJkaXIiLCJlbmMiOiJBMjU2R0NNIn0..AAAA.AAAA.AAAA"}
        assert (await client.get("/runs", headers=forged)).status_code == 303
        script = {"hx-request": "true"}
        assert (await client.get("/runs", headers=script)).headers["hx-redirect"] == "/sign-in"


async def test_an_expired_session_returns_to_the_current_page_after_sign_in(closed: Service) -> None:
    async with ui(closed) as client:

        async def read_redirect(shown: str) -> str:
            headers = {"hx-request": "true", "hx-current-url": shown}
            return (await client.get("/runs/x/log", headers=headers)).headers["hx-redirect"]

        assert await read_redirect(f"{client.base_url}/runs?status=failed") == "/sign-in?to=runs%3Fstatus%3Dfailed"
        assert await read_redirect("http://elsewhere.example/runs") == "/sign-in"


async def test_a_session_has_the_role_of_its_key(closed: Service) -> None:
    operator, viewer = await closed.key(Role.OPERATOR, "acme"), await closed.key(Role.VIEWER, "acme")
    async with closed.client(operator) as api:
        job = (await api.post("/v1/jobs", json={"task": "t", "name": "n", "every": "1h"})).json()["jobId"]
    async with ui(closed) as client:
        assert (await sign_in(client, "ms_wrong")).status_code == 401
        answer = await sign_in(client, viewer)
        assert (answer.status_code, answer.headers["location"]) == (303, "/jobs")
        assert viewer not in answer.headers["set-cookie"]
        page = await client.get(f"/jobs/{job}")
        assert page.status_code == 200
        assert "/pause" not in page.text
        token = KEY.findall(page.text)[0]
        assert (await client.post(f"/jobs/{job}/pause", data={"csrf": token})).status_code == 403
    async with ui(closed) as client:
        await sign_in(client, operator)
        token = KEY.findall((await client.get(f"/jobs/{job}")).text)[0]
        assert (await client.post(f"/jobs/{job}/pause", data={"csrf": token})).status_code == 303


async def test_a_viewer_gets_no_job_form(closed: Service) -> None:
    async with ui(closed) as client:
        await sign_in(client, await closed.key(Role.VIEWER, "acme"))
        assert (await client.get("/jobs/new")).status_code == 403
        assert "/jobs/new" not in (await client.get("/jobs")).text


async def test_a_form_changes_only_the_edited_fields(local: Service) -> None:
    async with local.client() as api:
        retry = {"backoff": "fixed", "firstDelay": "7s"}
        catch_up = {"mode": "all", "cap": 3}
        kept = {"retry": retry, "catchUp": catch_up, "limits": [{"key": "bank", "most": 2}], "deadline": "2h"}
        made = await api.post("/v1/jobs", json={"task": "t", "name": "n", "every": "1h", "owner": "ada", **kept})
        assert made.status_code == 201, made.text
        path = f"/v1/jobs/{made.json()['jobId']}"
        before = msgspec.json.decode((await api.get(path)).content, type=JobOut)
    values = build_form_values(before)
    async with ui(local) as client:
        token = KEY.findall((await client.get(f"/jobs/{before.job_id}/edit")).text)[0]
        changed = {**values, "every": "2h", "deadline": "", "owner": "", "tags": "a, b", "csrf": token, "version": "1"}
        answer = await client.post(f"/jobs/{before.job_id}/edit", data=changed)
        assert answer.status_code == 303, answer.text
    async with local.client() as api:
        after = (await api.get(path)).json()
        changes = (await api.get(f"{path}/diff")).json()["changes"]
    assert set(changes) == {"every", "deadline", "owner", "tags"}
    assert (after["every"], after["tags"], after["retry"]["firstDelay"], after["catchUp"]["cap"]) == (
        "2h",
        ["a", "b"],
        "7s",
        3,
    )


async def test_a_job_of_another_tenant_is_not_found(closed: Service) -> None:
    async with closed.client(await closed.key(Role.OPERATOR, "acme")) as api:
        job = (await api.post("/v1/jobs", json={"task": "t", "name": "n", "every": "1h"})).json()["jobId"]
    async with ui(closed) as client:
        await sign_in(client, await closed.key(Role.ADMIN, "globex"))
        assert (await client.get(f"/jobs/{job}")).status_code == 404


async def test_sign_in_does_not_redirect_to_another_site(closed: Service) -> None:
    key = await closed.key(Role.VIEWER, None)
    async with ui(closed) as client:
        token = KEY.findall((await client.get("/sign-in")).text)[0]
        for to in (
            "//evil.example",
            "https://evil.example",
            "\\\\evil.example",
            "\n/evil.example",
            " \t\r\n\\evil.example",
            "\n\u200b/evil.example",
            "ht\ntps://evil.example",
        ):
            answer = await client.post("/sign-in", data={"csrf": token, "credentials": key, "to": to})
            assert answer.headers["location"] == "/", to
            client.cookies.clear()


@pytest.mark.parametrize("text", ["jobs/ü", "jobs/日本", "runs?text=ключ", "jobs/\U0001f600", "jobs/a b", "jobs/%zz"])
async def test_sign_in_redirects_to_a_page_with_any_characters(closed: Service, text: str) -> None:
    key = await closed.key(Role.VIEWER, None)
    async with ui(closed) as client:
        token = KEY.findall((await client.get("/sign-in")).text)[0]
        for field in ("to", "credentials", "csrf"):
            form = {"csrf": token, "credentials": key, "to": "jobs"} | {field: text}
            answer = await client.post("/sign-in", data=form)
            assert answer.status_code == {"to": 303, "credentials": 401, "csrf": 403}[field], answer.text
            if field == "to":
                assert unquote(answer.headers["location"]) == unquote(f"/{text}")
            client.cookies.clear()


async def test_sign_out_ends_the_session_for_every_copy_of_its_cookie(closed: Service) -> None:
    key = await closed.key(Role.VIEWER, None)
    async with ui(closed) as client, ui(closed) as other:
        await sign_in(client, key)
        copied = client.cookies["mainspring_session"]
        other.cookies.set("mainspring_session", copied)
        assert (await other.get("/jobs")).status_code == 200
        token = KEY.findall((await client.get("/jobs")).text)[0]
        assert (await client.post("/sign-out", data={"csrf": token})).headers["location"] == "/sign-in"
        assert "mainspring_session" not in client.cookies
        refused = await other.get("/jobs")
        assert (refused.status_code, refused.headers["location"]) == (303, "/sign-in?to=jobs")
        await sign_in(client, key)
        assert (await client.get("/jobs")).status_code == 200, "another session of the same key is valid"


@in_virtual_time
async def test_another_process_honors_a_sign_out_within_seconds() -> None:
    clock = VirtualClock()
    first = Service(auth=True, clock=clock)
    second = Service(auth=True, clock=clock, store=first.store)
    outs = first.api.sign_outs, second.api.sign_outs
    assert not await outs[1].includes("a")
    await outs[0].add("a", clock.now() + HOUR)
    assert await outs[0].includes("a")
    await clock.sleep(REFUSED_WITHIN)
    assert await outs[1].includes("a")
    assert not await outs[1].includes("b")


async def test_a_read_only_dashboard_has_no_forms_and_refuses_posts(local: Service) -> None:
    job = await create_job(local)
    async with ui(local) as client:
        token = KEY.findall((await client.get(f"/jobs/{job}")).text)[0]
    async with ui(local, read_only=True) as client:
        page = await client.get(f"/jobs/{job}")
        assert "<form" not in page.text
        for answer in (
            await client.post(f"/jobs/{job}/pause", data={"csrf": token}),
            await client.get("/jobs/new"),
            await client.get(f"/jobs/{job}/edit"),
        ):
            assert answer.status_code == 403
            assert "read-only" in answer.text


async def test_the_dashboard_can_be_mounted_under_a_prefix(local: Service) -> None:
    job = await create_job(local)
    async with ui(local, root="/tools/mainspring") as client:
        page = await client.get("/tools/mainspring/jobs")
        assert page.status_code == 200
        assert f'href="/tools/mainspring/jobs/{job}"' in page.text
        assert not re.findall(r'(?:href|src|action|hx-get|hx-post)="/(?!tools/mainspring/)', page.text)


async def test_an_internal_error_page_shows_no_details(local: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a secret detail")

    monkeypatch.setattr(local.store, "list_runs", broken)
    async with ui(local) as client:
        answer = await client.get("/runs")
        assert answer.status_code == 500
        assert "our fault" in answer.text
        assert "a secret detail" not in answer.text


def test_the_settings_of_the_guide_are_valid(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[2] / "docs/guides/dashboard.md").read_text()
    [block] = re.findall(r"```toml\n(.*?)```", guide, re.DOTALL)
    file = tmp_path / "mainspring.toml"
    file.write_text(block)
    found = load(environment={}, file=file).ui
    assert (found.enabled, found.read_only, bool(found.secret)) == (True, True, True)


async def test_redacted_fields_are_hidden_and_unchanged_by_an_edit(local: Service) -> None:
    app = build_dashboard(
        local.api, local.app, PAGES, DashboardSettings(secret="s" * 32, redact=("password", "*token*"))
    )
    made = {"task": "t", "name": "n", "every": "1h", "payload": {"user": "ada", "password": "open sesame"}}
    async with local.client() as api:
        job = (await api.post("/v1/jobs", json=made)).json()["jobId"]
        transport = httpx2.ASGITransport(app=cast(Any, app))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            for path in (f"/jobs/{job}", f"/jobs/{job}/edit", f"/jobs/new?like={job}", "/audit"):
                page = await client.get(path)
                assert page.status_code == 200, path
                assert "open sesame" not in page.text, path
            token = KEY.findall((await client.get(f"/jobs/{job}")).text)[0]
            run = await client.post(f"/jobs/{job}/run", data={"csrf": token, "payload": ""})
            assert "open sesame" not in (await client.get(run.headers["location"])).text
            form = await client.get(f"/jobs/{job}/edit")
            values = {"csrf": KEY.findall(form.text)[0], "kind": "every", "every": "2h"}
            masked = '{\n  "user": "ada",\n  "password": "•••"\n}'
            await client.post(f"/jobs/{job}/edit", data={**values, "name": "n", "task": "t", "payload": masked})
        found = (await api.get(f"/v1/jobs/{job}")).json()
        assert (found["every"], found["payload"]["password"]) == ("2h", "open sesame")
        runs = (await api.get(f"/v1/jobs/{job}/runs")).json()["items"]
        assert (await api.get(f"/v1/runs/{runs[0]['runId']}")).json()["payload"]["password"] == "open sesame"


async def test_names_in_paths_may_contain_any_character(local: Service) -> None:
    async with local.client() as api, ui(local, root="/ops") as client:
        for name in ("100% ours", "a%41", "what?#", "ü & ß", 'quote"s'):
            await api.post("/v1/jobs", json={"task": "t", "queue": name})
        for name in ("one/two", "50%2F"):
            await api.put("/v1/tenants", json={"name": name})
        for listed in ("/ops/queues", "/ops/tenants"):
            links = re.findall(r'class="row-link" href="([^"]+)"', (await client.get(listed)).text)
            assert len(links) >= 2
            for link in links:
                page = await client.get(link)
                assert page.status_code == 200, link
                assert "No worker serves this queue" in page.text or "Budgets" in page.text, link
        token = KEY.findall((await client.get("/ops/queues/a%2541")).text)[0]
        answer = await client.post("/ops/queues/a%2541/pause", data={"csrf": token})
        assert answer.headers["location"] == "/ops/queues/a%2541"
        paused = [queue["name"] for queue in (await api.get("/v1/queues")).json()["items"] if queue["paused"]]
        assert paused == ["a%41"]
