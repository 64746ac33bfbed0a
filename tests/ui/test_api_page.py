"""The page of the API: a reader sends requests from it to the server that shows it."""

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from mainspring.core.model.access.access import Role
from tests.support.ui_site import Site
from tests.ui.conftest import Watched, open_page, serious_findings
from tests.ui.test_sign_in import make_user_key

pytestmark = pytest.mark.xdist_group("ui-guarded")
KEY = "API key or token"


def open_form(page: Page, operation: str) -> Locator:
    section = page.locator(f"#{operation}")
    section.get_by_role("button", name="Try it").click()
    expect(section.locator("form")).to_be_visible()
    return section


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_a_reader_sends_requests_with_a_key_that_is_stored_nowhere(
    guarded: Site, browser: Browser, watched: list[Watched], width: int, dark: bool
) -> None:
    page = open_page(browser, guarded, watched, width=width, dark=dark)
    watched[-1].allowed += ["status of 401", "status of 400"]
    page.goto("docs")
    listing = open_form(page, "list_jobs")
    listing.get_by_label("limit").fill("1")
    listing.get_by_role("button", name="Send GET request").click()
    expect(listing).to_contain_text("401")
    expect(listing).to_contain_text("Enter an API key at the top of this page.")

    key = make_user_key(guarded, Role.OPERATOR)[1]
    page.get_by_label(KEY).fill(key)
    listing.get_by_role("button", name="Send GET request").click()
    expect(listing).to_contain_text("200")
    expect(listing).to_contain_text("/v1/jobs?limit=1")
    expect(listing).to_contain_text('"Authorization: Bearer $MAINSPRING_KEY"')
    assert key not in page.content()

    made = open_form(page, "create_job")
    made.get_by_label("Body (JSON)").fill('{"task": "send_welcome", "payload": {"user_id": 1}, "delay": "1h"}')
    made.get_by_role("button", name="Send POST request").click()
    expect(made).to_contain_text("201")
    expect(made).to_contain_text('"status": "scheduled"')
    made.get_by_label("Body (JSON)").fill("{")
    made.get_by_role("button", name="Send POST request").click()
    expect(made).to_contain_text("400")

    assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.reload()
    expect(page.get_by_label(KEY)).to_have_value("")


def test_every_operation_but_streams_has_a_form(guarded: Site, browser: Browser, watched: list[Watched]) -> None:
    page = open_page(browser, guarded, watched)
    page.goto("docs")
    buttons = page.get_by_role("button", name="Try it")
    expected = page.locator("section[data-path]").count()
    assert buttons.count() == expected > 80
    assert page.locator("#follow_events button").count() == 0
    # At once: opening each by hand takes a minute.
    page.evaluate("document.querySelectorAll('button.open').forEach((button) => button.click())")
    expect(page.locator("form.try")).to_have_count(expected)
    page.evaluate("document.querySelectorAll('main > section:nth-of-type(n+9)').forEach((section) => section.remove())")
    assert serious_findings(page) == []
