"""Signing in to the dashboard, and what each role may do there."""

import re

import pytest
from playwright.sync_api import Browser, Page, expect

from mainspring.core.model.access.access import Role
from mainspring.core.ports.storage.access import Author
from mainspring.http.auth.authenticator import make_key
from tests.support.ui_site import Site
from tests.support.waiting import wait_until
from tests.ui.conftest import Watched, open_page

#: All of them run in one process, so that the site and the browser start only once.
pytestmark = pytest.mark.xdist_group("ui-guarded")


def make_user_key(site: Site, role: Role, tenant: str | None = None) -> tuple[str, str]:
    key, text = make_key(name=f"a {role.value}", role=role, tenant=tenant, author="test")
    assert site.node is not None
    site.do(site.node.runtime.store.put_key(key, Author("test", tenant)))
    return key.id, text


def sign_in(page: Page, text: str) -> None:
    page.get_by_label("API key or token").fill(text)
    page.get_by_role("button", name="Sign in").click()


def test_sign_in_returns_to_the_requested_page_and_sign_out_ends_the_session(
    guarded: Site, browser: Browser, watched: list[Watched]
) -> None:
    page = open_page(browser, guarded, watched)
    page.goto("runs?status=failed")
    expect(page).to_have_url(re.compile("/sign-in"))
    sign_in(page, make_user_key(guarded, Role.OPERATOR)[1])
    expect(page).to_have_url(re.compile(r"/runs\?status=failed$"))
    cookie = page.context.cookies()[0]
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Lax"
    assert "ms_" not in cookie["value"]
    page.get_by_role("button", name="Sign out").click()
    expect(page).to_have_url(re.compile("/sign-in"))
    page.goto("")
    expect(page).to_have_url(re.compile("/sign-in"))


def test_a_wrong_key_is_refused_with_a_message(guarded: Site, browser: Browser, watched: list[Watched]) -> None:
    page = open_page(browser, guarded, watched)
    watched[-1].allowed = ["401"]
    page.goto("sign-in")
    sign_in(page, "ms_aaaaaaaaaaaa_" + "b" * 43)
    expect(page.get_by_role("alert")).to_contain_text("not valid")


def test_a_missing_page_shows_the_signed_in_user(guarded: Site, browser: Browser, watched: list[Watched]) -> None:
    page = open_page(browser, guarded, watched)
    watched[-1].allowed = ["404"]
    page.goto("")
    sign_in(page, make_user_key(guarded, Role.ADMIN)[1])
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    answer = page.goto("no-such-page")
    assert answer is not None
    assert answer.status == 404
    expect(page.locator(".side-foot .who").last).to_have_text("admin")
    expect(page.locator(".side").get_by_role("link", name="Keys")).to_be_visible()


def test_a_viewer_sees_no_actions(guarded: Site, browser: Browser, watched: list[Watched]) -> None:
    page = open_page(browser, guarded, watched)
    page.goto("jobs")
    sign_in(page, make_user_key(guarded, Role.VIEWER)[1])
    page.get_by_role("link", name="sync_inventory").click()
    expect(page.get_by_label("Details")).to_be_visible()
    for words in ("Pause", "Cancel", "Run now"):
        expect(page.get_by_role("button", name=words)).to_have_count(0)


def test_a_revoked_key_ends_the_session(guarded: Site, browser: Browser, watched: list[Watched]) -> None:
    page = open_page(browser, guarded, watched)
    # Operators may not see the page of keys.
    watched[0].allowed = ["403"]
    identifier, text = make_user_key(guarded, Role.OPERATOR)
    page.goto("runs")
    sign_in(page, text)
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()
    assert guarded.node is not None
    guarded.do(guarded.node.runtime.store.revoke_key(identifier, None, Author("test", None)))
    # The site caches keys for some seconds.
    wait_until(lambda: "/sign-in" in (page.goto("keys") or page).url, "the session is still valid")
