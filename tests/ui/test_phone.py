"""On a phone every list has the same information as on a wide screen."""

import re

from playwright.sync_api import Browser, Page, expect

from tests.support.ui_site import Site
from tests.support.waiting import wait_until
from tests.ui.conftest import Watched, open_page
from tests.ui.looks import LONG
from tools.screenshots import show_whole

#: The facts of each row: its visible words, times and pictures. Cells hidden at this width are not visible.
_FACTS = r"""() => [...document.querySelectorAll("main tbody tr")].map((row) => {
  const visible = (element) => element.checkVisibility();
  const words = [];
  const walk = document.createTreeWalker(row, NodeFilter.SHOW_TEXT);
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    if (!visible(node.parentElement) || node.parentElement.closest("time")) continue;
    words.push(...node.textContent.split(/[\s,:·/]+/));
  }
  const times = [...row.querySelectorAll("time")].filter(visible).map((time) => time.dateTime);
  const pictures = [...row.querySelectorAll(".strip, .spark, .shares")].filter(visible)
    .map((picture) => `picture ${picture.tagName} ${picture.classList[0] ?? ""}`);
  return [...words.filter((word) => word && word !== "–"), ...times, ...pictures];
})"""
#: Elements that do not fit: cells beyond the edge of their panel, and replacement lines that are cut.
_CUT = """() => [...document.querySelectorAll("main tbody td, main thead th, main .show-s, main .show-m")]
  .filter((element) => element.checkVisibility() && element.closest(".panel"))
  .filter((element) => {
    const edge = element.closest(".panel").getBoundingClientRect().right;
    const isCut = element.matches(".sub") && element.scrollWidth > element.clientWidth + 1;
    return isCut || element.getBoundingClientRect().right > edge + 1;
  })
  .map((element) => element.textContent.trim())"""
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
    expect(page.get_by_role("button", name="Retry selected")).to_be_visible()
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
    row = page.get_by_label("Blocked runs").locator("tr", has_text="one phone")
    expect(row.get_by_text("blocked by")).to_be_visible()
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


@LONG
def test_no_fact_of_a_row_is_missing_on_a_narrow_screen(
    site: Site, ids: dict[str, str], browser: Browser, watched: list[Watched]
) -> None:
    page = open_page(browser, site, watched, width=1440)
    assert check_facts(page, narrow_paths(site, ids)) > 15


def check_facts(page: Page, paths: list[str]) -> int:
    """Compare the facts of the rows of pages at several widths. Return how many of the pages have rows."""
    missing: dict[str, list[str]] = {}
    with_rows = 0
    for path in paths:
        page.set_viewport_size({"width": 1440, "height": 900})
        page.goto(path)
        expect(page.locator(".htmx-request")).to_have_count(0)
        # A copy has no refreshes: all widths show the same data.
        page.evaluate("document.body.replaceWith(document.body.cloneNode(true))")
        page.evaluate("document.querySelectorAll('[data-live]').forEach((element) => delete element.dataset.live)")
        wide = page.evaluate(_FACTS)
        with_rows += bool(wide)
        for width in (900, 390):
            page.set_viewport_size({"width": width, "height": 844})
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{path} at {width}"
            if cut := page.evaluate(_CUT):
                missing[f"{path} at {width}, cut"] = cut
            for before, after in zip(wide, page.evaluate(_FACTS), strict=True):
                if lost := [fact for fact in before if fact not in after]:
                    missing.setdefault(f"{path} at {width}", lost)
    assert missing == {}, "\n".join(f"{path}: {lost}" for path, lost in missing.items())
    return with_rows


def narrow_paths(site: Site, ids: dict[str, str]) -> list[str]:
    """Pages with tables, with something in each of them."""
    site.ask("PUT", "v1/tenants", {"name": "narrow", "quotas": {"jobs": 100, "running": 20, "queued": 7}})
    key = site.ask("POST", "v1/keys", {"name": "narrow", "role": "submitter", "tenant": "narrow", "expiresIn": "90d"})
    [group] = site.ask("GET", "v1/dead-letters?task=charge_card&limit=1")["items"]
    replay = site.ask("POST", "v1/dead-letters/replays", {"fingerprint": group["fingerprint"], "perSecond": 0.01})
    worker = site.ask("GET", "v1/workers")["items"][0]["workerId"]
    return [
        "", "runs", "runs?status=failed", "runs?status=running", f"runs/{ids['failed']}", "jobs", "jobs?kind=oneOff",
        f"jobs/{ids['job']}", "workflows", f"workflows/{ids['workflow']}", "calendar", "dead-letters",
        f"dead-letters/{group['fingerprint']}?task=charge_card", f"dead-letters/replays/{replay['replayId']}",
        "dead-letters/discard?task=charge_card", "queues", "queues/reports", "workers", f"workers/{worker}",
        "schedulers", "tenants", "tenants/default", "tenants/narrow", "audit", "keys",
        f"keys/{key['keyId']}", "notifications", "system", "jobs/all?action=pause", "runs/cancel-all?status=scheduled",
        "tasks",
    ]  # fmt: skip
