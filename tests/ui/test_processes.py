"""Workers, schedulers, data centres."""

import re
from importlib import metadata

from playwright.sync_api import Browser, Page, expect

from tests.support.ui_site import Site
from tests.ui.conftest import Watched
from tests.ui.looks import LONG, look_at


def a_guest(site: Site, name: str) -> str:
    """A worker over HTTP, which takes nothing."""
    body = {
        "name": name,
        "queues": ["nothing"],
        "tasks": ["t"],
        "labels": {"gpu": "a100"},
        "version": "7.7",
        "slots": 8,
    }
    return str(site.ask("POST", "v1/workers/register", body)["workerId"])


@LONG
def test_they_are_whole_and_accessible(
    site: Site, ids: dict[str, str], browser: Browser, watched: list[Watched]
) -> None:
    worker = site.ask("GET", "v1/workers")["items"][0]["workerId"]
    paths = ("workers", f"workers/{worker}", "workers/999999", "schedulers", "datacenters")
    look_at(browser, site, watched, paths)


def test_a_worker_says_what_it_runs(site: Site, ids: dict[str, str], page: Page) -> None:
    page.goto("workers")
    row = page.locator("tbody tr", has_text="reports").first
    expect(row).to_contain_text("alive")
    expect(row).to_contain_text(metadata.version("mainspring"))
    row.locator(".row-link").click()
    expect(page.get_by_label("Running")).to_contain_text("export_orders")
    expect(page.get_by_label("Knows")).to_contain_text("charge_card")
    expect(page.get_by_label("Details")).to_contain_text("Heartbeat")


def test_a_worker_says_how_much_of_its_slots_it_uses(site: Site, ids: dict[str, str], page: Page) -> None:
    [worker] = [one for one in site.ask("GET", "v1/workers")["items"] if "reports" in one["queues"]]
    page.goto("workers")
    row = page.locator("tbody tr", has_text="reports").first
    expect(row).to_contain_text(re.compile(rf"[1-9]\d* / {worker['slots']}\b"))
    expect(row.get_by_label(re.compile(f"[1-9][0-9]* of {worker['slots']} slots"))).to_be_visible()
    guest = a_guest(site, "with room")
    page.goto(f"workers/{guest}")
    expect(page.get_by_label("Details")).to_contain_text("0 / 8")
    site.ask("POST", f"v1/workers/{guest}/leave")
    silent = site.ask("POST", "v1/workers/register", {"name": "silent", "queues": ["nothing"]})["workerId"]
    page.goto(f"workers/{silent}")
    expect(page.get_by_label("Details")).to_contain_text("it does not say how many it has")
    site.ask("POST", f"v1/workers/{silent}/leave")


def test_a_worker_is_drained(site: Site, ids: dict[str, str], page: Page) -> None:
    worker = a_guest(site, "a guest")
    page.goto(f"workers/{worker}")
    expect(page.get_by_label("Details")).to_contain_text("gpu=a100")
    page.get_by_role("button", name="Drain").first.click()
    page.locator("dialog[open]").get_by_role("button", name="Drain").click()
    expect(page.locator(".toast")).to_contain_text("then it leaves")
    expect(page.locator(".head .badge")).to_have_text("leaving")
    # Two versions at once are told.
    page.goto("workers")
    expect(page.locator(".health")).to_contain_text("7.7 (1)")
    site.ask("POST", f"v1/workers/{worker}/leave")
    page.goto(f"workers/{worker}")
    expect(page.get_by_text("This worker has left")).to_be_visible()


def test_schedulers_say_their_version_and_their_shards(site: Site, ids: dict[str, str], page: Page) -> None:
    page.goto("schedulers")
    row = page.get_by_label("Schedulers", exact=True).locator("tbody tr").first
    expect(row).to_contain_text(metadata.version("mainspring"))
    expect(row.locator("td").nth(5)).to_have_text("4")


def test_where_nobody_says_where_they_are_it_is_told_how(site: Site, ids: dict[str, str], page: Page) -> None:
    page.goto("datacenters")
    expect(page.get_by_text("Nobody says where they are")).to_be_visible()
