"""Dead letters: grouped by error, replayed, discarded."""

import re

from playwright.sync_api import Browser, Page, expect

from tests.support.ui_site import Site
from tests.ui.conftest import Watched
from tests.ui.looks import LONG, look_at


def make_dead_letters(site: Site, count: int, text: str) -> str:
    """Make dead letters with the same error, and return its fingerprint."""
    runs = [site.submit("nasty", {"text": text}, maxRetries=0) for _ in range(count)]
    for run in runs:
        site.wait_for_state(run, "failed")
    return str(site.ask("GET", f"v1/runs/{runs[0]}")["fingerprint"])


@LONG
def test_dead_letter_pages_are_complete_and_accessible(
    site: Site, ids: dict[str, str], browser: Browser, watched: list[Watched]
) -> None:
    fingerprint = make_dead_letters(site, 1, "a look at it")
    nasty = site.ask("GET", f"v1/runs/{ids['nasty']}")["fingerprint"]
    replay = site.ask("POST", "v1/dead-letters/replays", {"task": "no-such-task", "canaries": 1})["replayId"]
    paths = (
        "dead-letters",
        "dead-letters?task=no-such-task",
        f"dead-letters/{fingerprint}?task=nasty",
        f"dead-letters/{nasty}?task=nasty",
        "dead-letters/0123456789abcdef",
        f"dead-letters/replay?fingerprint={fingerprint}",
        f"dead-letters/discard?fingerprint={fingerprint}",
        f"dead-letters/replays/{replay}",
    )
    look_at(browser, site, watched, paths)


def test_a_group_shows_its_error_trend_and_runs(site: Site, ids: dict[str, str], page: Page) -> None:
    page.goto("dead-letters")
    expect(page.get_by_role("link", name="Discard all")).to_be_visible()
    page.get_by_label("Task").fill("charge_card")
    expect(page).to_have_url(re.compile("task=charge_card"))
    expect(page.get_by_role("link", name="Discard matching")).to_have_attribute("href", re.compile("task=charge_card"))
    row = page.locator("tbody tr", has_text="card declined: insufficient funds")
    expect(row).to_have_count(1)
    row.locator(".row-link").click()
    expect(page.get_by_label("Error")).to_contain_text("PermissionError: card declined")
    expect(page.locator(".chart canvas")).to_be_visible()
    expect(page.get_by_label("Newest")).to_contain_text("payments")
    page.get_by_label("Runs").locator(".row-link").first.click()
    expect(page).to_have_url(re.compile("/runs/[0-9a-f]{32}"))


def test_a_replay_stops_when_its_canary_fails(site: Site, ids: dict[str, str], page: Page) -> None:
    fingerprint = make_dead_letters(site, 3, "to be replayed")
    page.goto(f"dead-letters/{fingerprint}?task=nasty")
    page.get_by_role("link", name="Replay").click()
    expect(page.get_by_role("heading", name="Replay 3 dead letters")).to_be_visible()
    page.get_by_label("Canaries").fill("1")
    page.get_by_label("Runs per second").fill("2.5")
    page.get_by_role("button", name="Replay 3 dead letters").click()
    expect(page).to_have_url(re.compile("/dead-letters/replays/"))
    # The canary fails again, so the others are not replayed.
    expect(page.locator(".head .badge")).to_have_text("stopped")
    expect(page.locator(".health")).to_contain_text("failed")
    expect(page.get_by_label("Progress").first).to_contain_text("1 of 3 replayed")
    expect(page.get_by_label("Details")).to_contain_text("2.5 per second")


def test_a_replay_is_stopped_by_the_user(site: Site, ids: dict[str, str], page: Page) -> None:
    fingerprint = make_dead_letters(site, 3, "to be stopped")
    body = {"fingerprint": fingerprint, "perSecond": 0.0001}
    replay = site.ask("POST", "v1/dead-letters/replays", body)["replayId"]
    page.goto(f"dead-letters/replays/{replay}")
    page.get_by_role("button", name="Stop").first.click()
    page.get_by_label("Reason").fill("the wrong ones")
    page.locator("dialog[open]").get_by_role("button", name="Stop replay").click()
    expect(page.locator(".toast")).to_contain_text("Replay stopped")
    expect(page.locator(".head .badge")).to_have_text("stopped")
    expect(page.locator(".health")).to_contain_text("the wrong ones")


def test_dead_letters_are_discarded_after_a_preview_and_brought_back(
    site: Site, ids: dict[str, str], page: Page
) -> None:
    fingerprint = make_dead_letters(site, 2, "to be discarded")
    page.goto(f"dead-letters/{fingerprint}?task=nasty")
    page.get_by_role("link", name="Discard").click()
    expect(page.get_by_label("Preview")).to_contain_text("to be discarded")
    page.locator("input[name=why]").fill("done")
    page.get_by_role("button", name="Discard 2 dead letters").click()
    expect(page.locator(".toast")).to_contain_text("2 dead letters discarded")
    page.locator(".toast").get_by_role("button", name="Undo").click()
    expect(page.locator(".toast").last).to_contain_text("2 dead letters restored")
    page.goto(f"dead-letters/discard?fingerprint={fingerprint}")
    page.get_by_role("button", name="Discard 2 dead letters").click()
    expect(page.locator(".toast")).to_contain_text("discarded")
    page.goto(f"dead-letters/{fingerprint}?task=nasty")
    expect(page.get_by_text("No dead letters left")).to_be_visible()
