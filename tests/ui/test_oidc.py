"""Sign-in at an OpenID provider: a real one, if small, over HTTP."""

from collections.abc import Iterator
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

from mainspring.adapters.clock.system import SystemClock
from mainspring.domain.access import Principal, Role
from mainspring.domain.errors import Invalid
from mainspring.domain.instant import HOUR
from mainspring.sections import AuthSection, OidcSection
from mainspring.settings import Settings
from mainspring.ui.app import UiSettings, make_ui
from mainspring.ui.oidc import OidcSettings
from mainspring.ui.session import COOKIE, Sealer, new_session
from tests.api.conftest import Service
from tests.support.openid_provider import Provider

ROLES = {"owners": (Role.ADMIN, None), "people": (Role.OPERATOR, "acme"), "guests": (Role.VIEWER, "acme")}


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider().serving() as found:
        yield found


def dashboard(provider: Provider, **more: Any) -> httpx2.AsyncClient:
    service = Service(auth=True)
    # The provider's tokens are of today.
    service.api.clock = SystemClock()
    settings = OidcSettings(
        issuer=provider.issuer,
        client_id=provider.client,
        client_secret=provider.secret,
        url="http://localhost/",
        roles=ROLES,
        **more,
    )
    app = make_ui(service.api, service.app, UiSettings(secret="s" * 32, oidc=settings))
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=cast(Any, app)), base_url="http://localhost")


async def at_the_provider(client: httpx2.AsyncClient, to: str = "jobs") -> str:
    """Leave for the provider; the address it sends back to."""
    away = await client.get("/sign-in/oidc", params={"to": to})
    assert away.status_code == 303
    async with httpx2.AsyncClient() as browser:
        back = await browser.get(away.headers["location"])
    return str(back.headers["location"])


async def test_there_and_back(provider: Provider) -> None:
    async with dashboard(provider, label="the company") as client:
        page = await client.get("/sign-in?to=runs%3Fstatus=failed")
        assert "Sign in with the company" in page.text
        back = await client.get(await at_the_provider(client, "runs?status=failed"))
        assert (back.status_code, back.headers["location"]) == (303, "/runs?status=failed")
        assert "httponly" in back.headers["set-cookie"].lower()
        shown = await client.get("/jobs")
        assert shown.status_code == 200
        assert "user:ada" in shown.text
        assert "operator of <a" in shown.text
        # An operator of one tenant administers nothing.
        assert (await client.get("/keys")).status_code == 403


@pytest.mark.parametrize(
    ("groups", "words"),
    [(["owners", "guests"], ">admin"), (["guests"], ">viewer of <a"), ("people", ">operator of <a")],
)
async def test_a_role_is_that_of_the_first_group(provider: Provider, groups: Any, words: str) -> None:
    provider.claims = {"sub": "1f3b", "email": "ada@example.org", "groups": groups}
    async with dashboard(provider, name_claim="email") as client:
        await client.get(await at_the_provider(client))
        shown = (await client.get("/jobs")).text
        assert "user:ada@example.org" in shown
        assert words in shown


@pytest.mark.parametrize("claims", [{"sub": "a", "groups": ["others"]}, {"sub": "a"}, {"sub": "a", "groups": 7}])
async def test_who_is_in_no_group_stays_outside(provider: Provider, claims: dict[str, Any]) -> None:
    provider.claims = claims
    async with dashboard(provider) as client:
        back = await client.get(await at_the_provider(client))
        assert back.status_code == 403
        assert "no group that is let in" in back.text
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
async def test_a_token_that_is_not_right_lets_nobody_in(provider: Provider, wrong: dict[str, Any]) -> None:
    provider.wrong = wrong
    async with dashboard(provider) as client:
        back = await client.get(await at_the_provider(client))
        assert back.status_code in (400, 401)
        assert (await client.get("/jobs")).status_code == 303


async def test_a_forged_token_lets_nobody_in(provider: Provider) -> None:
    provider.forged = True
    async with dashboard(provider) as client:
        assert (await client.get(await at_the_provider(client))).status_code == 401


async def test_only_the_browser_that_left_comes_back(provider: Provider) -> None:
    async with dashboard(provider) as client:
        mine = await at_the_provider(client)
        # A link with somebody else's code, in a browser that never left.
        kept = dict(client.cookies)
        client.cookies.clear()
        assert (await client.get(mine)).status_code == 401
        client.cookies.update(kept)
        # Another state than the one that was given to it.
        parts = urlsplit(mine)
        code = parse_qs(parts.query)["code"][0]
        assert (await client.get(f"{parts.path}?code={code}&state=other")).status_code == 401
        assert (await client.get(mine)).status_code == 303
        # A code is good once.
        client.cookies.clear()
        client.cookies.update(kept)
        assert (await client.get(mine)).status_code == 401


async def test_whoever_said_no_is_told(provider: Provider) -> None:
    async with dashboard(provider) as client:
        await at_the_provider(client)
        back = await client.get("/sign-in/oidc/callback?error=access_denied")
        assert back.status_code == 401
        assert "let nobody in" in back.text


async def test_a_provider_that_is_away_is_told_and_keys_still_open(provider: Provider) -> None:
    provider.away = True
    async with dashboard(provider) as client:
        away = await client.get("/sign-in/oidc")
        assert away.status_code == 503
        assert "API key or token" in away.text
        provider.away = False
        assert (await client.get("/sign-in/oidc")).status_code == 303


async def test_another_sites_address_is_not_gone_to(provider: Provider) -> None:
    async with dashboard(provider) as client:
        back = await client.get(await at_the_provider(client, "//evil.example"))
        assert back.headers["location"] == "/"


async def test_without_a_provider_there_is_no_such_page() -> None:
    service = Service(auth=True)
    app = make_ui(service.api, service.app, UiSettings(secret="s" * 32))
    transport = httpx2.ASGITransport(app=cast(Any, app))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert (await client.get("/sign-in/oidc")).status_code == 404
        assert "Sign in with" not in (await client.get("/sign-in")).text


async def test_a_session_that_is_over_is_renewed_by_the_provider(provider: Provider) -> None:
    now = SystemClock().now()
    ada = Principal(name="user:ada", role=Role.OPERATOR, tenant="acme")
    assert new_session("", now, ada).ends_at == now + HOUR
    over = new_session("", now - HOUR, ada)
    async with dashboard(provider) as client:
        client.cookies.set(COOKIE, Sealer("s" * 32).seal(over))
        away = await client.get("/jobs?status=paused")
        assert away.headers["location"] == "/sign-in/oidc?to=jobs%3Fstatus%3Dpaused"
        assert (await client.get("/sign-in/oidc?to=jobs")).status_code == 303
        # Whoever came with a key is asked for one.
        client.cookies.set(COOKIE, Sealer("s" * 32).seal(new_session("ms_x", now - 13 * HOUR)))
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
def test_settings_that_would_let_in_the_wrong_people_are_refused(changed: dict[str, Any], field: str) -> None:
    Settings(auth=AuthSection(mode="keys"), oidc=OidcSection(**RIGHT)).check()
    with pytest.raises(Invalid) as refused:
        Settings(auth=AuthSection(mode="keys"), oidc=OidcSection(**{**RIGHT, **changed})).check()
    assert refused.value.field == field


def test_a_provider_has_no_use_where_nobody_is_asked() -> None:
    with pytest.raises(Invalid, match=r"auth\.mode is none"):
        Settings(oidc=OidcSection(**RIGHT)).check()
