"""Bulk actions: preview, apply, undo."""

from typing import Any

from playwright.sync_api import Browser, Page, expect

from tests.support.ui_site import Site
from tests.ui.conftest import Watched
from tests.ui.looks import LONG, look_at


def create_schedules(site: Site, tag: str, count: int) -> list[str]:
    body = {"task": "send_welcome", "payload": {"user_id": 1}, "every": "1d", "tags": [tag]}
    return [str(site.ask("POST", "v1/jobs", {**body, "name": f"{tag} {n}"})["jobId"]) for n in range(count)]


def list_runs(site: Site, text: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = site.ask("GET", f"v1/runs?text={text.replace(' ', '+')}")["items"]
    return items


def read_states(site: Site, jobs: list[str]) -> set[str]:
    return {site.ask("GET", f"v1/jobs/{job}")["status"] for job in jobs}


@LONG
def test_the_bulk_page_is_complete_and_accessible(
    site: Site, ids: dict[str, str], browser: Browser, watched: list[Watched]
) -> None:
    look_at(browser, site, watched, ("jobs/all?action=pause", "jobs/all?action=cancel&tag=unknown"))


def test_schedules_are_paused_after_a_preview_and_undo_resumes_only_those(
    site: Site, ids: dict[str, str], page: Page
) -> None:
    jobs = create_schedules(site, "together", 3)
    site.ask("POST", f"v1/jobs/{jobs[0]}/pause")
    page.goto("jobs?tag=together")
    page.get_by_role("link", name="Pause matching").click()
    expect(page.get_by_role("heading", name="Pause 2 schedules")).to_be_visible()
    expect(page.get_by_label("Preview")).to_contain_text("together 2")
    page.get_by_role("button", name="Pause 2 schedules").click()
    expect(page.locator(".toast")).to_contain_text("2 schedules paused")
    assert read_states(site, jobs) == {"paused"}
    page.locator(".toast").get_by_role("button", name="Undo").click()
    expect(page.locator(".toast", has_text="2 schedules resumed")).to_be_visible()
    # The toast with the Undo button disappears when it is used.
    assert page.locator(".toast").count() == 1
    # A schedule that was paused before stays paused.
    assert read_states(site, jobs[:1]) == {"paused"}
    assert read_states(site, jobs[1:]) == {"scheduled"}


def test_schedules_are_cancelled_after_a_preview(site: Site, ids: dict[str, str], page: Page) -> None:
    jobs = create_schedules(site, "to be gone", 2)
    page.goto("jobs?tag=to+be+gone")
    page.get_by_role("link", name="Cancel matching").click()
    page.get_by_role("button", name="Cancel 2 schedules").click()
    expect(page.locator(".toast")).to_contain_text("2 schedules cancelled")
    assert read_states(site, jobs) == {"cancelled"}


def test_only_selected_schedules_are_paused(site: Site, ids: dict[str, str], page: Page) -> None:
    jobs = create_schedules(site, "ticked", 3)
    page.goto("jobs?tag=ticked")
    pause, resume = (page.get_by_role("button", name=f"{word} selected") for word in ("Pause", "Resume"))
    expect(pause).to_be_hidden()
    for number in (0, 1):
        page.get_by_label(f"Select ticked {number}").check()
    expect(resume).to_be_hidden()
    pause.click()
    expect(page.get_by_role("heading", name="Pause 2 schedules")).to_be_visible()
    would = page.get_by_label("Preview")
    expect(would).to_contain_text("ticked 1")
    expect(would).not_to_contain_text("ticked 2")
    page.get_by_role("textbox", name="Reason").fill("a look at ticks")
    page.get_by_role("button", name="Pause 2 schedules").click()
    expect(page.locator(".toast")).to_contain_text("2 schedules paused")
    assert [read_states(site, [job]) for job in jobs] == [{"paused"}, {"paused"}, {"scheduled"}]
    assert site.ask("GET", f"v1/jobs/{jobs[0]}")["pauseReason"] == "a look at ticks"
    page.goto("jobs?tag=ticked")
    page.get_by_label("Select all", exact=True).check()
    resume.click()
    expect(page.get_by_role("heading", name="Resume 2 schedules")).to_be_visible()
    expect(page.get_by_text("1 other selected job is skipped")).to_be_visible()


def test_selected_one_off_jobs_are_cancelled(site: Site, ids: dict[str, str], page: Page) -> None:
    runs = [site.submit("send_welcome", {"user_id": user}, delay="2h", name="one of two") for user in range(2)]
    page.goto("jobs?kind=oneOff&text=one+of+two")
    page.get_by_label(runs[0][-8:]).check()
    page.get_by_role("button", name="Cancel selected").click()
    page.get_by_role("button", name="Cancel 1 run").click()
    expect(page.locator(".toast")).to_contain_text("1 run cancelled")
    assert [site.state(run) for run in runs] == ["cancelled", "scheduled"]


def test_only_selected_runs_are_cancelled(site: Site, ids: dict[str, str], page: Page) -> None:
    runs = [site.submit("send_welcome", {"user_id": user}, delay="2h", name="one of three") for user in range(3)]
    page.goto("runs?text=one+of+three")
    button = page.get_by_role("button", name="Cancel selected")
    expect(button).to_be_hidden()
    for run in runs[:2]:
        page.get_by_label(run[-8:]).check()
    button.click()
    expect(page.get_by_role("heading", name="Cancel 2 runs")).to_be_visible()
    page.get_by_role("button", name="Cancel 2 runs").click()
    expect(page.locator(".toast")).to_contain_text("2 runs cancelled")
    assert [site.state(run) for run in runs] == ["cancelled", "cancelled", "scheduled"]
    page.goto("runs?text=one+of+three")
    page.get_by_label("Select all", exact=True).check()
    expect(page.locator(".pick:checked")).to_have_count(3)
    button.click()
    expect(page.get_by_role("heading", name="Cancel 1 run")).to_be_visible()
    expect(page.get_by_label("Preview")).to_contain_text("2 other selected runs are skipped")


def test_only_selected_runs_are_retried(site: Site, ids: dict[str, str], page: Page) -> None:
    about = {"delay": "2h", "name": "again and again"}
    ended = [site.submit("send_welcome", {"user_id": user}, **about) for user in range(3)]
    waiting = site.submit("send_welcome", {"user_id": 9}, **about)
    for run in ended:
        site.ask("POST", f"v1/runs/{run}/cancel")
    page.goto("runs?text=again+and+again")
    button = page.get_by_role("button", name="Retry selected")
    page.get_by_label(waiting[-8:]).check()
    expect(page.get_by_role("button", name="Cancel selected")).to_be_visible()
    expect(button).to_be_hidden()
    for run in ended[:2]:
        page.get_by_label(run[-8:]).check()
    button.click()
    expect(page.get_by_role("heading", name="Retry 2 runs")).to_be_visible()
    expect(page.get_by_label("Preview")).to_contain_text("1 other selected run is skipped")
    # The preview has changed nothing.
    assert {one["runId"] for one in list_runs(site, "again and again")} == {*ended, waiting}
    asked = page.url
    page.get_by_role("button", name="Retry 2 runs").click()
    # The list shows a toast.
    expect(page.get_by_role("heading", name="Runs", exact=True)).to_be_visible()
    expect(page.locator(".toast")).to_contain_text("2 runs retried")
    made = [one for one in list_runs(site, "again and again") if one["runId"] not in {*ended, waiting}]
    assert sorted(one["replayOf"] for one in made) == sorted(ended[:2])
    # The same request again creates no more runs.
    page.goto(asked)
    page.get_by_role("button", name="Retry 2 runs").click()
    expect(page.locator(".toast")).to_contain_text("2 had been retried before")
    assert len(list_runs(site, "again and again")) == 6
