"""The calendar: heat maps of upcoming ticks, the ticks of a slot, closed periods."""

import re

import pytest
from playwright.sync_api import Page, expect

from tests.support.ui_site import Site


def check_sum(page: Page) -> None:
    """Check that the rows add up to the number in the header."""
    expect(page.locator(".heat tbody tr").first).to_be_visible()
    rows = page.locator(".heat tbody .total").all_inner_texts()
    # Exactly at the beginning of a day or an hour there is one row less.
    assert len(rows) in (7, 8, 24, 25)
    header = page.get_by_label("Upcoming runs").locator(".note").inner_text().split(" runs of ")[0]
    assert sum(parse_number(text) for text in rows) == pytest.approx(parse_number(header), rel=0.01)


def parse_number(text: str) -> float:
    """Parse a number like 1,234 or 1.2k."""
    size = {"k": 1e3, "M": 1e6}.get(text[-1])
    return float(text.replace(",", "")) if size is None else float(text[:-1]) * size


def test_the_upcoming_week_is_in_the_time_zone_of_the_viewer(site: Site, ids: dict[str, str], page: Page) -> None:
    page.goto("calendar")
    expect(page.locator("[data-calendar-zone]")).to_have_attribute("data-calendar-zone", "Europe/Paris")
    check_sum(page)
    page.get_by_title("Time zone").click()
    expect(page.locator("[data-calendar-zone]")).to_have_attribute("data-calendar-zone", "UTC")


def test_a_slot_lists_its_ticks(site: Site, ids: dict[str, str], page: Page) -> None:
    page.goto("calendar?zone=UTC")
    cell = page.locator(".heat tbody tr").nth(2).locator("a").nth(5)
    cell.click()
    expect(page).to_have_url(re.compile("at="))
    slot = page.get_by_label("Schedules in this period")
    expect(slot).to_contain_text("sync_inventory")
    expect(slot).to_contain_text("1,800")
    page.keyboard.press("ArrowRight")
    following = page.locator(".heat tbody tr").nth(2).locator("a").nth(6)
    expect(following).to_be_focused()
    page.keyboard.press("Enter")
    expect(following).to_have_attribute("aria-current", "true")
    page.go_back()
    expect(cell).to_have_attribute("aria-current", "true")
    slot.get_by_role("link", name="sync_inventory").click()
    expect(page.locator("h1")).to_have_text("sync_inventory")


def test_the_upcoming_day_is_shown_by_the_minute(site: Site, ids: dict[str, str], page: Page) -> None:
    page.goto("calendar?view=day")
    rows = page.locator(".heat tbody tr")
    check_sum(page)
    expect(rows.nth(3)).to_contain_text(re.compile(r"1,8\d\d"))
    box = rows.nth(3).locator("a").bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] * 0.51, box["y"] + 8)
    expect(page.get_by_label("Schedules in this period")).to_contain_text(re.compile(r"for 5 minutes: 15\d runs"))


def test_closed_periods_are_shown(site: Site, ids: dict[str, str], page: Page) -> None:
    page.goto("calendar")
    closed = page.get_by_label("Closed periods")
    expect(closed).to_contain_text("tag frozen")
    expect(closed).to_contain_text("release")
    expect(closed.locator("li", has_text="weekend").locator("rect").first).to_be_attached()
