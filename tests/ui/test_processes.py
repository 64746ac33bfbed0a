"""The pages of workers, schedulers and data centers."""

import re
from importlib import metadata

from playwright.sync_api import Browser, Page, expect

from tests.support.ui_site import Site
from tests.ui.conftest import Watched
from tests.ui.looks import LONG, look_at
from tests.ui.test_phone import check_facts


def register_worker(site: Site, name: str) -> str:
    """Register a remote worker that claims nothing."""
    body = {
        "name": name,
        "queues": ["nothing"],
        "tasks": ["t"],
        "labels": {"gpu": "a100"},
        "version": "7.7",
        "slots": 8,
        "leaseSeconds": 300,
    }
    return str(site.ask("POST", "v1/workers/register", body)["workerId"])


@LONG
def test_process_pages_are_complete_and_accessible(
    site: Site, ids: dict[str, str], browser: Browser, watched: list[Watched]
) -> None:
    worker = site.ask("GET", "v1/workers")["items"][0]["workerId"]
    paths = ("workers", f"workers/{worker}", "workers/999999", "schedulers", "datacenters")
    look_at(browser, site, watched, paths)


def test_a_worker_shows_its_runs_and_tasks(site: Site, ids: dict[str, str], page: Page) -> None:
    page.goto("workers")
    row = page.locator("tbody tr", has_text="reports").first
    expect(row).to_contain_text("alive")
    expect(row).to_contain_text(metadata.version("mainspring"))
    row.locator(".row-link").click()
    expect(page.get_by_label("Running")).to_contain_text("export_orders")
    expect(page.get_by_label("Tasks")).to_contain_text("charge_card")
    expect(page.get_by_label("Details")).to_contain_text("Heartbeat")


def test_a_worker_shows_its_used_slots(site: Site, ids: dict[str, str], page: Page) -> None:
    [worker] = [one for one in site.ask("GET", "v1/workers")["items"] if "reports" in one["queues"]]
    page.goto("workers")
    row = page.locator("tbody tr", has_text="reports").first
    expect(row).to_contain_text(re.compile(rf"[1-9]\d* / {worker['slots']}\b"))
    expect(row.get_by_label(re.compile(f"[1-9][0-9]* of {worker['slots']} slots"))).to_be_visible()
    guest = register_worker(site, "with room")
    page.goto(f"workers/{guest}")
    expect(page.get_by_label("Details")).to_contain_text("0 / 8")
    site.ask("POST", f"v1/workers/{guest}/leave")
    silent = site.ask("POST", "v1/workers/register", {"name": "silent", "queues": ["nothing"], "leaseSeconds": 300})[
        "workerId"
    ]
    page.goto(f"workers/{silent}")
    expect(page.get_by_label("Details")).to_contain_text("unknown")
    site.ask("POST", f"v1/workers/{silent}/leave")


def test_a_worker_is_drained_from_its_page(site: Site, ids: dict[str, str], page: Page) -> None:
    worker = register_worker(site, "a guest")
    page.goto(f"workers/{worker}")
    expect(page.get_by_label("Details")).to_contain_text("gpu=a100")
    page.get_by_role("button", name="Drain").first.click()
    page.locator("dialog[open]").get_by_role("button", name="Drain").click()
    expect(page.locator(".toast")).to_contain_text("It stops after its active runs")
    expect(page.locator(".head .badge")).to_have_text("draining")
    # The list warns of two versions at once.
    page.goto("workers")
    expect(page.locator(".health")).to_contain_text("7.7 (1)")
    site.ask("POST", f"v1/workers/{worker}/leave")
    page.goto(f"workers/{worker}")
    expect(page.get_by_text("This worker has left")).to_be_visible()


def test_schedulers_show_their_version_and_their_shards(site: Site, ids: dict[str, str], page: Page) -> None:
    page.goto("schedulers")
    row = page.get_by_label("Schedulers", exact=True).locator("tbody tr").first
    expect(row).to_contain_text(metadata.version("mainspring"))
    expect(row.locator("td").nth(5)).to_have_text("4")


def test_the_page_of_data_centers_is_empty_or_shows_all_facts_on_a_narrow_screen(
    site: Site, ids: dict[str, str], page: Page
) -> None:
    """In one test: a data center is known for a day."""
    page.goto("datacenters")
    expect(page.get_by_text("No data centers configured")).to_be_visible()
    site.ask("POST", "v1/workers/register", {"name": "far", "queues": ["far"], "datacenter": "narrow-eu"})
    assert check_facts(page, ["datacenters", "workers"]) == 2
    page.goto("datacenters")
    expect(page.locator("tbody tr", has_text="narrow-eu").get_by_text("last heartbeat")).to_be_visible()
