"""Dead letters: looked at by their error, replayed, discarded."""

import re

from playwright.sync_api import Browser, Page, expect

from tests.support.ui_site import Site
from tests.ui.conftest import Watched
from tests.ui.looks import LONG, look_at


def dead(site: Site, task: str) -> int:
    return sum(group["count"] for group in site.ask("GET", f"v1/dead-letters?task={task}")["items"])


def bury(site: Site, count: int, text: str) -> str:
    """Dead letters of an error of their own; its fingerprint."""
    runs = [site.submit("nasty", {"text": text}, maxRetries=0) for _ in range(count)]
    site.until(lambda: all(site.state(run) == "failed" for run in runs), "they did not fail")
    return str(site.ask("GET", f"v1/runs/{runs[0]}")["fingerprint"])


@LONG
def test_they_are_whole_and_accessible(
    site: Site, ids: dict[str, str], browser: Browser, watched: list[Watched]
) -> None:
    fingerprint = bury(site, 1, "a look at it")
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


def test_a_group_says_what_they_have_in_common(site: Site, ids: dict[str, str], page: Page) -> None:
    page.goto("dead-letters")
    expect(page.get_by_role("link", name="Discard all")).to_be_visible()
    page.get_by_label("Task").fill("charge_card")
    expect(page).to_have_url(re.compile("task=charge_card"))
    expect(page.get_by_role("link", name="Discard these")).to_have_attribute("href", re.compile("task=charge_card"))
    row = page.locator("tbody tr", has_text="card declined: insufficient funds")
    expect(row).to_have_count(1)
    row.locator(".row-link").click()
    expect(page.get_by_label("Error")).to_contain_text("PermissionError: card declined")
    expect(page.locator(".chart canvas")).to_be_visible()
    expect(page.get_by_label("Newest")).to_contain_text("payments")
    page.get_by_label("Runs").locator(".row-link").first.click()
    expect(page).to_have_url(re.compile("/runs/[0-9a-f]{32}"))


def test_a_replay_goes_by_its_canaries_and_is_followed(site: Site, ids: dict[str, str], page: Page) -> None:
    fingerprint = bury(site, 3, "to be replayed")
    page.goto(f"dead-letters/{fingerprint}?task=nasty")
    page.get_by_role("link", name="Replay").click()
    expect(page.get_by_role("heading", name="Replay 3 dead letters")).to_be_visible()
    page.get_by_label("Canaries").fill("1")
    page.get_by_label("Runs a second").fill("2.5")
    page.get_by_role("button", name="Replay 3 dead letters").click()
    expect(page).to_have_url(re.compile("/dead-letters/replays/"))
    # It fails as it did before: the rest stays where it is.
    expect(page.locator(".head .badge")).to_have_text("stopped")
    expect(page.locator(".health")).to_contain_text("failed")
    expect(page.get_by_label("Progress").first).to_contain_text("1 of 3 replayed")
    expect(page.get_by_label("Details")).to_contain_text("2.5 a second")


def test_a_replay_is_stopped_by_hand(site: Site, ids: dict[str, str], page: Page) -> None:
    fingerprint = bury(site, 3, "to be stopped")
    body = {"fingerprint": fingerprint, "perSecond": 0.01}
    replay = site.ask("POST", "v1/dead-letters/replays", body)["replayId"]
    page.goto(f"dead-letters/replays/{replay}")
    page.get_by_role("button", name="Stop").first.click()
    page.get_by_label("Why").fill("the wrong ones")
    page.get_by_role("button", name="Stop the replay").click()
    expect(page.locator(".toast")).to_contain_text("Stopped")
    expect(page.locator(".head .badge")).to_have_text("stopped")
    expect(page.locator(".health")).to_contain_text("the wrong ones")


def test_they_are_discarded_after_a_look(site: Site, ids: dict[str, str], page: Page) -> None:
    fingerprint = bury(site, 2, "to be discarded")
    page.goto(f"dead-letters/{fingerprint}?task=nasty")
    page.get_by_role("link", name="Discard").click()
    expect(page.get_by_label("What this would do")).to_contain_text("to be discarded")
    page.locator("input[name=why]").fill("done")
    page.get_by_role("button", name="Discard 2 dead letters").click()
    expect(page.locator(".toast")).to_contain_text("2 dead letters discarded")
    page.locator(".toast").get_by_role("button", name="Undo").click()
    expect(page.locator(".toast").last).to_contain_text("2 dead letters brought back")
    page.goto(f"dead-letters/discard?fingerprint={fingerprint}")
    page.get_by_role("button", name="Discard 2 dead letters").click()
    expect(page.locator(".toast")).to_contain_text("discarded")
    page.goto(f"dead-letters/{fingerprint}?task=nasty")
    expect(page.get_by_text("All of these were dealt with")).to_be_visible()
