"""Sign-in at an OpenID provider: a small but real one, over HTTP."""

from collections.abc import Iterator
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

from mainspring.config.pages import PAGES
from mainspring.config.sections.access import AuthSection, OidcSection
from mainspring.config.settings import Settings
from mainspring.core.model.access.access import Principal, Role
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import HOUR
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.web.app import DashboardSettings, build_dashboard
from mainspring.web.oidc import OidcSettings
from mainspring.web.session import COOKIE, CookieCipher, build_session
from tests.api.conftest import Service
from tests.support.openid_provider import Provider
from tests.support.waiting import DEADLINE_SECONDS

ROLES = {"owners": (Role.ADMIN, None), "people": (Role.OPERATOR, "acme"), "guests": (Role.VIEWER, "acme")}


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider().serving() as found:
        yield found


def dashboard(provider: Provider, **more: Any) -> httpx2.AsyncClient:
    service = Service(auth=True)
    # The provider issues its tokens by the system clock.
    service.api.clock = SystemClock()
    settings = OidcSettings(
        issuer=provider.issuer,
        client_id=provider.client,
        client_secret=provider.secret,
        url="http://localhost/",
        roles=ROLES,
        **more,
    )
    app = build_dashboard(service.api, service.app, PAGES, DashboardSettings(secret="s" * 32, oidc=settings))
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=cast(Any, app)), base_url="http://localhost")


async def sign_in_at_provider(client: httpx2.AsyncClient, to: str = "jobs") -> str:
    """Go to the provider and return the address that it redirects to."""
    away = await client.get("/sign-in/oidc", params={"to": to})
    assert away.status_code == 303
    async with httpx2.AsyncClient(timeout=DEADLINE_SECONDS) as browser:
        back = await browser.get(away.headers["location"])
    return str(back.headers["location"])


async def test_sign_in_returns_to_the_requested_page_with_a_session(provider: Provider) -> None:
    async with dashboard(provider, label="the company") as client:
        page = await client.get("/sign-in?to=runs%3Fstatus=failed")
        assert "Sign in with the company" in page.text
        back = await client.get(await sign_in_at_provider(client, "runs?status=failed"))
        assert (back.status_code, back.headers["location"]) == (303, "/runs?status=failed")
        assert "httponly" in back.headers["set-cookie"].lower()
        shown = await client.get("/jobs")
        assert shown.status_code == 200
        assert "user:ada" in shown.text
        assert "operator of <a" in shown.text
        # An operator of one tenant may not see keys.
        assert (await client.get("/keys")).status_code == 403


@pytest.mark.parametrize(
    ("groups", "words"),
    [(["owners", "guests"], ">admin"), (["guests"], ">viewer of <a"), ("people", ">operator of <a")],
)
async def test_a_user_has_the_role_of_the_first_matching_group(provider: Provider, groups: Any, words: str) -> None:
    provider.claims = {"sub": "1f3b", "email": "ada@example.org", "groups": groups}
    async with dashboard(provider, name_claim="email") as client:
        await client.get(await sign_in_at_provider(client))
        shown = (await client.get("/jobs")).text
        assert "user:ada@example.org" in shown
        assert words in shown


@pytest.mark.parametrize("claims", [{"sub": "a", "groups": ["others"]}, {"sub": "a"}, {"sub": "a", "groups": 7}])
async def test_a_user_without_a_known_group_is_denied(provider: Provider, claims: dict[str, Any]) -> None:
    provider.claims = claims
    async with dashboard(provider) as client:
        back = await client.get(await sign_in_at_provider(client))
        assert back.status_code == 403
        assert "None of your groups has access" in back.text
        assert (await client.get("/jobs")).status_code == 303


@pytest.mark.parametrize(
    "wrong",
    [
        {"nonce": "another"},
        {"aud": "another"},
        {"aud": ["dashboard", "other"], "azp": "other"},
        {"iss": "https://another.example"},
        {"exp": 1},
        {"sub": ""},
    ],
)
async def test_an_invalid_token_is_refused(provider: Provider, wrong: dict[str, Any]) -> None:
    provider.wrong = wrong
    async with dashboard(provider) as client:
        back = await client.get(await sign_in_at_provider(client))
        assert back.status_code in (400, 401)
        assert (await client.get("/jobs")).status_code == 303


async def test_a_forged_token_is_refused(provider: Provider) -> None:
    provider.forged = True
    async with dashboard(provider) as client:
        assert (await client.get(await sign_in_at_provider(client))).status_code == 401


async def test_only_the_browser_that_started_the_sign_in_can_finish_it(provider: Provider) -> None:
    async with dashboard(provider) as client:
        mine = await sign_in_at_provider(client)
        # Another browser opens the link with the code.
        kept = dict(client.cookies)
        client.cookies.clear()
        assert (await client.get(mine)).status_code == 401
        client.cookies.update(kept)
        # The state is not the one of this sign-in.
        parts = urlsplit(mine)
        code = parse_qs(parts.query)["code"][0]
        assert (await client.get(f"{parts.path}?code={code}&state=other")).status_code == 401
        assert (await client.get(mine)).status_code == 303
        # A code works only once.
        client.cookies.clear()
        client.cookies.update(kept)
        assert (await client.get(mine)).status_code == 401


async def test_a_sign_in_denied_by_the_provider_shows_a_message(provider: Provider) -> None:
    async with dashboard(provider) as client:
        await sign_in_at_provider(client)
        back = await client.get("/sign-in/oidc/callback?error=access_denied")
        assert back.status_code == 401
        assert "denied the sign-in" in back.text


async def test_keys_still_work_if_the_provider_is_unavailable(provider: Provider) -> None:
    provider.away = True
    async with dashboard(provider) as client:
        away = await client.get("/sign-in/oidc")
        assert away.status_code == 503
        assert "API key or token" in away.text
        provider.away = False
        assert (await client.get("/sign-in/oidc")).status_code == 303


async def test_sign_in_at_the_provider_does_not_redirect_to_another_site(provider: Provider) -> None:
    async with dashboard(provider) as client:
        back = await client.get(await sign_in_at_provider(client, "//evil.example"))
        assert back.headers["location"] == "/"


async def test_without_a_provider_the_page_is_not_found() -> None:
    service = Service(auth=True)
    app = build_dashboard(service.api, service.app, PAGES, DashboardSettings(secret="s" * 32))
    transport = httpx2.ASGITransport(app=cast(Any, app))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert (await client.get("/sign-in/oidc")).status_code == 404
        assert "Sign in with" not in (await client.get("/sign-in")).text


async def test_an_expired_session_is_renewed_by_the_provider(provider: Provider) -> None:
    now = SystemClock().now()
    ada = Principal(name="user:ada", role=Role.OPERATOR, tenant="acme")
    assert build_session("", now, ada).ends_at == now + HOUR
    over = build_session("", now - HOUR, ada)
    async with dashboard(provider) as client:
        client.cookies.set(COOKIE, CookieCipher("s" * 32).encrypt(over))
        away = await client.get("/jobs?status=paused")
        assert away.headers["location"] == "/sign-in/oidc?to=jobs%3Fstatus%3Dpaused"
        assert (await client.get("/sign-in/oidc?to=jobs")).status_code == 303
        # A session by API key needs the key again.
        client.cookies.set(COOKIE, CookieCipher("s" * 32).encrypt(build_session("ms_x", now - 13 * HOUR)))
        assert (await client.get("/jobs")).headers["location"] == "/sign-in?to=jobs"


RIGHT: dict[str, Any] = {
    "issuer": "https://login.example.org",
    "client_id": "dashboard",
    "url": "https://jobs.example.org/",
    "roles": {"people": ("operator", "acme"), "owners": ("admin", "*")},
}


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"issuer": "http://login.example.org"}, "oidc.issuer"),
        ({"issuer": ""}, "oidc.client_id"),
        ({"client_id": ""}, "oidc.client_id"),
        ({"url": ""}, "oidc.url"),
        ({"algorithm": "HS256"}, "oidc.algorithm"),
        ({"scopes": ("profile",)}, "oidc.scopes"),
        ({"roles": {}}, "oidc.roles"),
        ({"roles": {"people": ("king", "acme")}}, "oidc.roles"),
        ({"roles": {"people": ("viewer",)}}, "oidc.roles"),
    ],
)
def test_unsafe_oidc_settings_are_refused(changed: dict[str, Any], field: str) -> None:
    Settings(auth=AuthSection(mode="keys"), oidc=OidcSection(**RIGHT)).check()
    with pytest.raises(Invalid) as refused:
        Settings(auth=AuthSection(mode="keys"), oidc=OidcSection(**{**RIGHT, **changed})).check()
    assert refused.value.field == field


def test_oidc_settings_without_authentication_are_refused() -> None:
    with pytest.raises(Invalid, match=r"auth\.mode is none"):
        Settings(oidc=OidcSection(**RIGHT)).check()
