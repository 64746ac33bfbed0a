"""Who may look, and who may act."""

import re

import pytest
from playwright.sync_api import Browser, Page, expect

from mainspring.api.auth import make_key
from mainspring.domain.access import Role
from mainspring.ports.access import Author
from tests.support.ui_site import Site
from tests.ui.conftest import Watched, open_page

#: One process for all of them: a site and a browser are not started twice.
pytestmark = pytest.mark.xdist_group("ui-guarded")


def _key(site: Site, role: Role, tenant: str | None = None) -> tuple[str, str]:
    key, text = make_key(name=f"a {role.value}", role=role, tenant=tenant, author="test")
    assert site.node is not None
    site.do(site.node.engine.store.put_key(key, Author("test", tenant)))
    return key.id, text


def _sign_in(page: Page, text: str) -> None:
    page.get_by_label("API key or token").fill(text)
    page.get_by_role("button", name="Sign in").click()


def test_in_and_out(guarded: Site, browser: Browser, watched: list[Watched]) -> None:
    page = open_page(browser, guarded, watched)
    page.goto("runs?status=failed")
    expect(page).to_have_url(re.compile("/sign-in"))
    _sign_in(page, _key(guarded, Role.OPERATOR)[1])
    expect(page).to_have_url(re.compile(r"/runs\?status=failed$"))
    cookie = page.context.cookies()[0]
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Lax"
    assert "ms_" not in cookie["value"]
    page.get_by_role("button", name="Sign out").click()
    expect(page).to_have_url(re.compile("/sign-in"))
    page.goto("")
    expect(page).to_have_url(re.compile("/sign-in"))


def test_a_wrong_key_is_told_so(guarded: Site, browser: Browser) -> None:
    context = browser.new_context(base_url=guarded.url)
    page = context.new_page()
    page.goto("sign-in")
    _sign_in(page, "ms_aaaaaaaaaaaa_" + "b" * 43)
    expect(page.get_by_role("alert")).to_contain_text("not valid")
    context.close()


def test_an_address_that_nothing_is_at_knows_who_looks(guarded: Site, browser: Browser, watched: list[Watched]) -> None:
    page = open_page(browser, guarded, watched)
    watched[-1].allowed = ["404"]
    page.goto("")
    _sign_in(page, _key(guarded, Role.ADMIN)[1])
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    answer = page.goto("no-such-page")
    assert answer is not None
    assert answer.status == 404
    expect(page.locator(".side-foot .who").last).to_have_text("admin")
    expect(page.locator(".side").get_by_role("link", name="Keys")).to_be_visible()


def test_a_viewer_is_offered_nothing_to_do(guarded: Site, browser: Browser, watched: list[Watched]) -> None:
    page = open_page(browser, guarded, watched)
    page.goto("jobs")
    _sign_in(page, _key(guarded, Role.VIEWER)[1])
    page.get_by_role("link", name="sync_inventory").click()
    expect(page.get_by_label("Details")).to_be_visible()
    for words in ("Pause", "Cancel", "Run now"):
        expect(page.get_by_role("button", name=words)).to_have_count(0)


def test_a_revoked_key_ends_the_session(guarded: Site, browser: Browser, watched: list[Watched]) -> None:
    page = open_page(browser, guarded, watched)
    # The page of keys is not for operators.
    watched[0].allowed = ["403"]
    identifier, text = _key(guarded, Role.OPERATOR)
    page.goto("runs")
    _sign_in(page, text)
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()
    assert guarded.node is not None
    guarded.do(guarded.node.engine.store.revoke_key(identifier, None, Author("test", None)))
    # Keys are kept for some seconds by whoever has seen them.
    guarded.until(lambda: "/sign-in" in (page.goto("keys") or page).url, "the session goes on")
