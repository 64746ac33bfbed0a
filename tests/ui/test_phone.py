"""On a phone every list has the same information as on a wide screen."""

import re

from playwright.sync_api import Browser, Page, expect

from tests.support.ui_site import Site
from tests.support.waiting import wait_until
from tests.ui.conftest import Watched, open_page
from tests.ui.looks import LONG
from tools.screenshots import show_whole

#: A relative time followed by a time of day.
_WHEN = re.compile(r"(now|ago|in \d+).*\d\d:\d\d")


@LONG
def test_lists_on_a_phone_have_times_filters_and_actions(
    site: Site, ids: dict[str, str], browser: Browser, watched: list[Watched]
) -> None:
    page = open_page(browser, site, watched, width=390)
    page.goto("runs?text=a+welcome")
    assert _WHEN.search(_line(page))
    page.locator(".pick").check()
    expect(page.get_by_role("button", name="Run those that are ticked again")).to_be_visible()
    expect(page.get_by_label("Tag")).to_be_visible()
    page.goto("jobs?text=sync_inventory")
    expect(page.locator("tbody .strip:visible > *").first).to_be_visible()
    assert _WHEN.search(_line(page))
    expect(page.get_by_label("Tag")).to_be_visible()
    page.goto(f"jobs/{ids['job']}")
    expect(page.get_by_role("link", name="Copy")).to_be_visible()
    page.goto("dead-letters?task=charge_card")
    assert re.search(rf"last .*{_WHEN.pattern}[^$]*first .*{_WHEN.pattern}", _line(page))
    expect(page.locator("tbody .spark:visible")).to_have_count(1)
    page.goto("workers")
    assert re.search(rf"heartbeat .*{_WHEN.pattern}", _line(page))
    page.goto("audit?action=queues.set")
    site.ask("PUT", "v1/queues/phones", {"concurrency": 3, "why": "for a phone"})
    page.reload()
    page.locator("tbody details:visible summary").first.click()
    expect(page.locator("tbody .diff:visible").first).to_contain_text("concurrency")


def test_a_queue_on_a_phone_shows_the_holder_of_a_limit(
    site: Site, ids: dict[str, str], browser: Browser, watched: list[Watched]
) -> None:
    limit = {"limits": [{"key": "one phone", "most": 1}]}
    first, second = (site.submit("export_orders", {"pages": 20_000}, **limit) for _ in range(2))
    wait_until(lambda: {site.state(first), site.state(second)} == {"running", "blocked"})
    page = open_page(browser, site, watched, width=390)
    page.goto("queues/reports")
    row = page.get_by_label("Held back").locator("tr", has_text="one phone")
    expect(row.get_by_text("held by")).to_be_visible()
    expect(row.get_by_role("link", name=(first if site.state(first) == "running" else second)[-8:])).to_be_visible()
    for run in (second, first):
        site.ask("POST", f"v1/runs/{run}/cancel")


def test_a_screenshot_of_a_phone_shows_the_whole_page(
    site: Site, ids: dict[str, str], browser: Browser, watched: list[Watched]
) -> None:
    page = open_page(browser, site, watched, width=390)
    page.goto("runs")
    show_whole(page)
    # Both at one moment: a refresh may remove the last row between two questions.
    last, bar = (
        page.evaluate("""() => [[...document.querySelectorAll("tbody tr")].at(-1).getBoundingClientRect().bottom,
      document.querySelector(".side").getBoundingClientRect().top]""")
    )
    assert bar > 900
    assert last <= bar


def _line(page: Page) -> str:
    return page.locator("tbody tr").first.inner_text().replace("\n", " ")
