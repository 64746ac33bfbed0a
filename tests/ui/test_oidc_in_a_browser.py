"""Sign-in at an OpenID provider, in a real browser."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from mainspring.config.sections.access import OidcSection
from tests.support.openid_provider import Provider
from tests.support.processes import free_port
from tests.support.ui_site import Site
from tests.support.waiting import DEADLINE_SECONDS

pytestmark = pytest.mark.xdist_group("ui-guarded")


def test_sign_in_at_the_provider_returns_to_the_requested_page(browser: Browser, tmp_path: Path) -> None:
    port = free_port()
    with Provider().serving() as provider:
        oidc = OidcSection(
            issuer=provider.issuer,
            client_id=provider.client,
            client_secret=provider.secret,
            url=f"http://127.0.0.1:{port}/",
            label="the company",
            roles={"people": ("operator", "default")},
        )
        site = Site(str(tmp_path / "mainspring.db"), port, auth=True, oidc=oidc)
        site.start()
        try:
            context = browser.new_context(base_url=site.url)
            context.set_default_timeout(1_000 * DEADLINE_SECONDS)
            page = context.new_page()
            page.goto("runs?status=failed")
            page.get_by_role("link", name="Sign in with the company").click()
            expect(page).to_have_url(re.compile(r"/runs\?status=failed$"))
            expect(page.locator(".side-foot")).to_contain_text("user:ada")
            page.goto("jobs")
            page.get_by_role("link", name="sync_inventory").click()
            # The role of the user allows this.
            page.get_by_role("button", name="Pause").first.click()
            page.locator("dialog[open]").get_by_role("button", name="Pause").click()
            expect(page.locator(".head .badge")).to_have_text("paused")
            page.get_by_role("button", name="Sign out").click()
            page.goto("jobs")
            expect(page).to_have_url(re.compile("/sign-in"))
            context.close()
        finally:
            site.stop()
