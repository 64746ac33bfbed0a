"""The pages of queues: pause, resume, set a policy, see what blocks their runs."""

import re

from playwright.sync_api import Browser, Page, expect

from tests.support.ui_site import Site
from tests.ui.conftest import Watched
from tests.ui.looks import LONG, look_at


@LONG
def test_queue_pages_are_complete_and_accessible(
    site: Site, ids: dict[str, str], browser: Browser, watched: list[Watched]
) -> None:
    look_at(browser, site, watched, ("queues", "queues/reports", "queues/unknown"))


def test_a_queue_is_paused_with_a_reason_and_resumed_by_undo(site: Site, ids: dict[str, str], page: Page) -> None:
    page.goto("queues")
    page.get_by_role("link", name="payments").click()
    page.get_by_role("button", name="Pause").first.click()
    page.get_by_label("Reason").first.fill("the bank is closed")
    page.get_by_label("For how long").first.select_option("an hour")
    page.locator("dialog[open]").get_by_role("button", name="Pause").click()
    expect(page.locator(".head .badge")).to_have_text("paused")
    expect(page.locator(".health")).to_contain_text("the bank is closed")
    expect(page.locator(".health")).to_contain_text(re.compile(r"Resumes in 5\dm"))
    page.locator(".toast").get_by_role("button", name="Undo").click()
    expect(page.locator(".health")).to_have_count(0)


def test_all_queues_are_paused_and_resumed(site: Site, ids: dict[str, str], page: Page) -> None:
    page.goto("queues")
    page.get_by_role("button", name="Pause all queues").first.click()
    page.locator("dialog[open]").get_by_role("button", name="Pause all queues").click()
    expect(page.locator(".health")).to_contain_text("All queues are paused")
    page.get_by_role("button", name="Resume all queues").click()
    expect(page.locator(".health")).to_have_count(0)
    assert not site.ask("GET", "v1/queues").get("everythingPaused")


def test_the_policy_of_a_queue_is_set(site: Site, ids: dict[str, str], page: Page, watched: list[Watched]) -> None:
    watched[0].allowed = ["400"]
    page.goto("queues/reports")
    page.get_by_role("button", name="Policy").click()
    dialog = page.locator("dialog[open]")
    dialog.get_by_label("Concurrency").fill("40")
    dialog.get_by_label("Tenants take turns").check()
    dialog.get_by_label("Shares").fill("acme")
    dialog.get_by_role("button", name="Save").click()
    expect(page.locator("dialog[open] .field-wrong")).to_contain_text("not a tenant and its share")
    dialog.get_by_label("Shares").fill("acme=3, globex=2")
    dialog.get_by_label("Retries").fill("600/5m")
    dialog.get_by_role("button", name="Save").click()
    panel = page.get_by_label("Policy").first
    expect(panel).to_contain_text("at most 40")
    expect(panel).to_contain_text("globex: 2")
    queue = site.ask("GET", "v1/queues/reports")
    assert (queue["concurrency"], queue["retries"], queue["shares"]) == (40, "600/5m", {"acme": 3, "globex": 2})


def test_a_queue_shows_the_holder_of_a_limit(site: Site, ids: dict[str, str], page: Page) -> None:
    limits = [{"key": "one export", "most": 1}]
    holder = site.submit("export_orders", {"pages": 20_000}, limits=limits)
    site.wait_for_state(holder, "running")
    others = [site.submit("export_orders", {"pages": 1}, limits=limits) for _ in range(2)]
    page.goto("queues/reports")
    row = page.get_by_label("Blocked runs").locator("tbody tr", has_text="one export")
    expect(row).to_contain_text("limit 'one export': 1 at a time")
    expect(row.locator("td").last).to_have_text("2")
    row.get_by_role("link", name=holder[-8:]).click()
    expect(page).to_have_url(re.compile(holder))
    for run in (holder, *others):
        site.ask("POST", f"v1/runs/{run}/cancel")
