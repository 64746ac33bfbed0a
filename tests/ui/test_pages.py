"""The pages of the dashboard: what all of them must do, and what each one is for."""

import json
import re
from datetime import UTC, datetime
from urllib.parse import quote
from zoneinfo import ZoneInfo

from playwright.sync_api import Browser, Page, Route, expect

from tests.support.ui_site import Site
from tests.support.ui_tasks import NASTY
from tests.support.waiting import wait_until
from tests.ui.conftest import Watched, open_page, serious_findings, trigger_refresh, wait_for_frames
from tests.ui.looks import LONG, look_at

PAGES = (
    "",
    "?range=24h",
    "runs",
    "runs?status=failed",
    "runs?text=nothing-like-it",
    "jobs",
    "jobs?kind=oneOff",
    "jobs/new",
    "tasks",
    "jobs/new?task=many_arguments",
    "workflows",
    "calendar",
    "calendar?view=day",
)
PAGES_BY_ID = (
    "runs/{failed}",
    "runs/{running}",
    "runs/{nasty}",
    "runs/{later}",
    "runs/{later}/parents",
    "runs/{later}/children",
    "jobs/{job}",
    "jobs/{job}/edit",
    "workflows/{workflow}",
    "workflows/{wide}",
)


@LONG
def test_every_page_is_complete_and_accessible(
    site: Site, ids: dict[str, str], browser: Browser, watched: list[Watched]
) -> None:
    look_at(browser, site, watched, [path.format(**ids) for path in (*PAGES, *PAGES_BY_ID)])


@LONG
def test_markup_in_user_data_is_shown_as_text(site: Site, ids: dict[str, str], page: Page) -> None:
    # Without a slash, so that it can also be the name of a queue.
    markup = NASTY.partition("<script>")[0]
    named = quote(markup, safe="")
    waiting = site.submit("send_welcome", {"user_id": 1}, queue=markup, tags=[markup])
    site.ask("PUT", f"v1/queues/{named}", {"concurrency": 3})
    site.ask("PUT", "v1/tenants", {"name": markup})
    site.ask(
        "PUT", "v1/budgets/markup", {"unit": "attempts", "limit": 1, "tenant": markup, "target": markup, "of": "task"}
    )
    key = site.ask("POST", "v1/keys", {"name": markup, "role": "viewer", "tenant": markup, "queues": [markup]})["keyId"]
    site.ask("PATCH", f"v1/jobs/{ids['nasty_job']}", {"priority": 2, "why": markup})
    site.ask("POST", "v1/dead-letters/replays", {"task": markup})
    group = site.ask("GET", f"v1/runs/{ids['nasty']}")["fingerprint"]
    # These pages certainly show it.
    for path in (
        f"runs?text={named}",
        f"runs?tag={named}",
        f"jobs?text={named}",
        f"workflows?text={named}",
        f"jobs/all?action=pause&text={named}",
        "dead-letters",
        f"dead-letters?task={named}&queue={named}",
        f"dead-letters/{group}?task=nasty",
        f"dead-letters/replay?fingerprint={group}",
        f"dead-letters/discard?fingerprint={group}",
        "audit",
        f"audit?target={ids['nasty_job']}",
        "queues",
        f"queues/{named}",
        "tenants",
        f"tenants/{named}",
        "keys",
        f"keys/{key}",
    ):
        answer = page.goto(path)
        assert answer is not None, path
        assert answer.status == 200, path
        assert page.title() != "owned", path
        assert page.locator("img, #content script").count() == 0, path
        shown = page.content().replace("&quot;", '"')
        assert "&lt;img src=x onerror=" in shown or 'value="<img src=x onerror=' in shown, path
    # No worker serves its queue, and the overview would report that in other tests.
    site.ask("POST", f"v1/runs/{waiting}/cancel")
    for path in (
        "",
        "workers",
        "notifications",
        "schedulers",
        "system",
        "runs",
        f"runs/{ids['nasty']}",
        "runs?text=onerror",
        "jobs?kind=oneOff",
        "jobs",
        f"jobs/{ids['nasty_job']}",
        f"jobs/{ids['nasty_job']}/edit",
        "workflows",
        f"workflows/{ids['nasty_workflow']}",
        "calendar",
        f"calendar?at={datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}&minutes=60",
    ):
        page.goto(path)
        assert page.title() != "owned", path
        assert page.locator("img, #content script").count() == 0, path
    page.goto(f"runs/{ids['nasty']}")
    expect(page.locator("h1")).to_contain_text("<img src=x onerror=")
    expect(page.locator("h1")).to_contain_text("{{7*7}}")
    expect(page.get_by_label("Error", exact=True).locator(".code")).to_contain_text("‹U+202E›")
    expect(page.get_by_label("Error", exact=True).locator(".code")).to_contain_text("<script>")
    expect(page.locator(".log")).to_contain_text("␇")


def test_the_overview_shows_failures_charts_and_upcoming_ticks(site: Site, ids: dict[str, str], page: Page) -> None:
    page.goto("")
    # The failed charges are dead letters.
    expect(page.locator(".health")).to_contain_text(re.compile(r"\d+ dead letters? in the last hour"))
    expect(page.locator(".tile", has_text="Lateness")).to_contain_text("p50")
    expect(page.locator(".chart canvas")).to_have_count(4)
    expect(page.get_by_label("Late runs", exact=True)).to_be_visible()
    expect(page.get_by_label("Top failures")).to_contain_text("card declined: insufficient funds")
    coming = page.get_by_label("Coming up")
    expect(coming).to_contain_text("sync_inventory")
    coming.locator(".row-link").first.click()
    expect(page.get_by_label("Schedules in this period")).to_contain_text("sync_inventory")


def test_a_search_for_runs_is_kept_in_the_url(site: Site, ids: dict[str, str], page: Page) -> None:
    page.goto("runs")
    page.keyboard.press("/")
    page.keyboard.type("a welcome")
    expect(page).to_have_url(re.compile(r"text=a\+welcome|text=a%20welcome"))
    expect(page.locator("tbody tr")).to_have_count(1)
    page.reload()
    expect(page.locator("tbody tr")).to_have_count(1)
    page.go_back()
    expect(page.get_by_label("Search by name, task or id")).to_have_value("")
    page.get_by_role("link", name=re.compile("^Failed")).click()
    expect(page.locator("tbody .badge").first).to_have_text("failed")


def test_pages_and_rows_are_reached_by_keyboard(site: Site, ids: dict[str, str], page: Page) -> None:
    page.goto("")
    page.keyboard.press("g")
    page.keyboard.press("r")
    expect(page).to_have_url(re.compile("/runs$"))
    # A list that gets no new rows meanwhile.
    page.goto("runs?status=failed&text=charge_card")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    first = page.locator(".row-link").first
    expect(first).to_be_focused()
    page.keyboard.press("?")
    expect(page.get_by_role("heading", name="Keyboard")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/runs/[0-9a-f]{32}"))


def test_a_new_run_appears_without_a_reload(site: Site, ids: dict[str, str], page: Page) -> None:
    with page.expect_response(re.compile("/live$")):
        page.goto("runs?text=brand-new")
    expect(page.get_by_text("No matching runs")).to_be_visible()
    site.submit("send_welcome", {"user_id": 3}, name="brand-new")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody .badge")).to_have_text("succeeded")


def test_the_log_of_a_running_run_is_followed_until_it_is_cancelled(
    site: Site, ids: dict[str, str], page: Page
) -> None:
    run = site.submit("export_orders", {"pages": 20_000})
    page.goto(f"runs/{run}")
    expect(page.locator(".log .line").nth(3)).to_be_visible()
    expect(page.locator(".log .ansi-fg-yellow").first).to_be_visible()
    page.get_by_label("Search the lines shown").fill("no line says this")
    expect(page.locator(".log .line:visible")).to_have_count(0)
    page.get_by_label("Search the lines shown").fill("")
    expect(page.locator(".log .line:visible").nth(3)).to_be_visible()
    page.get_by_role("button", name="Cancel").first.click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel run").click()
    expect(page.locator(".toast")).to_contain_text(re.compile("stopping|cancelled"))
    expect(page.locator(".head .badge")).to_have_text("cancelled")


def test_a_log_is_followed_after_the_server_was_unavailable(
    site: Site, ids: dict[str, str], page: Page, watched: list[Watched]
) -> None:
    watched[0].allowed = ["503", "Response Status Error Code"]
    refused = iter(range(2))

    def refuse_first(route: Route) -> None:
        if next(refused, None) is None:
            route.continue_()
        else:
            route.fulfill(status=503, headers={"hx-reswap": "none"}, body="")

    page.route(re.compile(r"/log\?after="), refuse_first)
    run = site.submit("export_orders", {"pages": 20_000})
    page.goto(f"runs/{run}")
    expect(page.locator(".log .line").nth(12)).to_be_visible()
    assert next(refused, None) is None
    site.ask("POST", f"v1/runs/{run}/cancel")
    page.unroute_all()


def test_a_failed_run_is_retried_with_another_payload(
    site: Site, ids: dict[str, str], page: Page, watched: list[Watched]
) -> None:
    watched[0].allowed = ["400"]
    page.goto(f"runs/{ids['failed']}")
    expect(page.get_by_label("Error", exact=True).locator(".code")).to_contain_text("PermissionError")
    expect(page.locator(".timeline rect.is-error")).to_have_count(2)
    expect(page.get_by_label("Result")).to_contain_text("No result")
    page.get_by_role("button", name="Retry run").first.click()
    page.locator("dialog[open]").get_by_role("button", name="Back").click()
    expect(page.locator("dialog[open]")).to_have_count(0)
    page.get_by_role("button", name="Retry run").first.click()
    box = page.get_by_label("Payload").last
    box.fill("{not json")
    page.locator("dialog[open]").get_by_role("button", name="Retry run").click()
    # The error is at the field, not in a toast.
    expect(page.locator("dialog[open] .field-wrong")).to_contain_text("is not JSON")
    expect(box).to_have_attribute("aria-invalid", "true")
    expect(box).to_be_focused()
    expect(page.locator(".toast")).to_have_count(0)
    box.fill(json.dumps({"order": 4711}))
    page.locator("dialog[open]").get_by_role("button", name="Retry run").click()
    expect(page.get_by_text("Replay of")).to_be_visible()
    expect(page.get_by_label("Payload").first).to_contain_text("4711")


def test_every_attempt_shows_its_error(site: Site, ids: dict[str, str], page: Page) -> None:
    run = site.submit("settle_day", {"fails": ["the ledger is locked", "<b>no</b> balance"]})
    site.wait_for_state(run, "succeeded")
    page.goto(f"runs/{run}")
    first, second = (page.locator("tr", has_text=words) for words in ("the ledger is locked", "<b>no</b> balance"))
    expect(first.locator("summary")).to_have_text("RuntimeError: the ledger is locked")
    expect(second.locator("summary")).to_have_text("RuntimeError: <b>no</b> balance")
    expect(page.locator("tr", has_text="success")).to_have_count(1)
    expect(page.locator(".timeline rect.is-error")).to_have_count(2)
    expect(page.locator(".timeline rect.is-success")).to_have_count(1)
    first.locator("summary").click()
    expect(first.locator("pre")).to_contain_text("Traceback")
    # It stays open after a refresh.
    trigger_refresh(page)
    expect(first.locator("pre")).to_be_visible()
    expect(second.locator("pre")).to_be_hidden()
    assert serious_findings(page) == []


def test_a_run_shows_its_creation_time_and_its_next_attempt(site: Site, ids: dict[str, str], page: Page) -> None:
    run = site.submit("settle_day", {"fails": ["locked"]}, retry={"firstDelay": "1h", "maxDelay": "1h"})
    wait_until(lambda: site.ask("GET", f"v1/runs/{run}")["attempts"])
    found = site.ask("GET", f"v1/runs/{run}")
    assert found["scheduledFor"] > found["attempts"][0]["endTime"]
    page.goto(f"runs/{run}")
    details = page.get_by_label("Details")
    expect(details.locator("dt", has_text="Next attempt").locator("+ dd time")).to_have_attribute(
        "datetime", found["scheduledFor"]
    )
    expect(details.locator("dt", has_text="Created").locator("+ dd time")).to_have_attribute(
        "datetime", found["createdAt"]
    )
    expect(details.locator("dt", has_text="Due")).to_have_count(0)
    expect(page.get_by_label("Timeline")).to_contain_text("since it was created")
    site.ask("POST", f"v1/runs/{run}/cancel")
    page.goto(f"runs/{ids['failed']}")
    expect(details.locator("dt", has_text="Last attempt")).to_have_count(1)


def test_a_schedule_is_paused_resumed_and_run_now(site: Site, ids: dict[str, str], page: Page) -> None:
    page.goto("jobs")
    row = page.locator("tr", has_text="sync_inventory")
    expect(row).to_contain_text("every 2 seconds")
    expect(row.locator(".strip > *").first).to_be_attached()
    row.locator(".row-link").click()
    page.get_by_role("button", name="Pause").first.click()
    page.locator("dialog[open]").get_by_label("Reason").fill("stock-taking")
    page.locator("dialog[open]").get_by_role("button", name="Pause").click()
    expect(page.locator(".toast")).to_contain_text("Job paused")
    expect(page.locator(".health")).to_contain_text("stock-taking")
    page.locator(".toast").get_by_role("button", name="Undo").click()
    expect(page.locator(".head .badge")).to_have_text("scheduled")
    page.get_by_role("button", name="Run now").first.click()
    expect(page.locator("dialog[open]").get_by_role("button", name="Back")).to_be_visible()
    page.locator("dialog[open]").get_by_role("button", name="Run now").click()
    expect(page).to_have_url(re.compile("/runs/"))
    expect(page.get_by_role("link", name="sync_inventory")).to_be_visible()


def test_cancel_of_a_job_shows_its_effect_and_stores_the_reason(site: Site, ids: dict[str, str], page: Page) -> None:
    body = {
        "task": "send_welcome",
        "payload": {"user_id": 1},
        "every": "1d",
        "name": "to be cancelled",
        "queue": "held",
    }
    job = site.ask("POST", "v1/jobs", body)["jobId"]
    for _ in range(2):
        site.ask("POST", f"v1/jobs/{job}/run")
    page.goto(f"jobs/{job}")
    page.locator(".head").get_by_role("button", name="Cancel").click()
    dialog = page.locator("dialog[open]")
    expect(dialog).to_contain_text("The schedule ends; 2 waiting runs cancelled.")
    assert serious_findings(page) == []
    dialog.get_by_label("Reason").fill("it is not needed")
    dialog.get_by_role("button", name="Cancel job").click()
    expect(page.locator(".toast")).to_contain_text("Job cancelled; 2 waiting runs cancelled.")
    expect(page.locator(".head .badge")).to_have_text("cancelled")
    [entry] = site.ask("GET", f"v1/audit?target={job}&action=jobs.cancel")["items"]
    assert entry["why"] == "it is not needed"


def test_a_toast_appears_even_if_the_button_is_gone(site: Site, ids: dict[str, str], page: Page) -> None:
    job = site.job("vacuum_database")
    site.ask("POST", f"v1/jobs/{job}/pause")
    page.goto(f"jobs/{job}")
    # A refresh between the click and the response removes the form like this.
    page.evaluate("const form = document.querySelector('form[action$=resume]'); form.requestSubmit(); form.remove()")
    expect(page.locator("#toasts .toast")).to_contain_text("Job resumed")


def test_an_old_version_of_a_job_is_restored(site: Site, ids: dict[str, str], page: Page) -> None:
    job = site.job("weekly_report")
    site.ask("PATCH", f"v1/jobs/{job}", {"cronExpression": "0 0 10 * * TUE", "why": "moved"})
    page.goto(f"jobs/{job}")
    expect(page.locator(".diffs").first).to_contain_text("0 0 10 * * TUE")
    page.get_by_role("button", name="Restore").last.click()
    expect(page.locator(".toast")).to_contain_text("restored")
    expect(page.get_by_label("Details")).to_contain_text("every Monday at 09:30")


def test_many_runs_are_cancelled_after_a_preview(site: Site, ids: dict[str, str], page: Page) -> None:
    for user in range(3):
        site.submit("send_welcome", {"user_id": user}, delay="2h", name="to be cancelled")
    page.goto("runs?status=scheduled&text=to+be+cancelled")
    page.get_by_role("link", name="Cancel all matching").click()
    expect(page.get_by_role("heading", name="Cancel 3 runs")).to_be_visible()
    page.get_by_role("button", name="Cancel 3 runs").click()
    expect(page.locator(".toast")).to_contain_text("3 runs cancelled")


def test_times_are_in_the_time_zone_of_the_viewer(site: Site, ids: dict[str, str], page: Page) -> None:
    page.goto(f"runs/{ids['failed']}")
    due = page.locator(".kv time").first
    expect(due).to_contain_text(re.compile("GMT[+][12]|CES?T"))
    page.get_by_title("Time zone").click()
    expect(due).to_contain_text("UTC")


def test_the_reason_why_a_run_waits_is_in_the_time_zone_of_the_viewer(
    site: Site, ids: dict[str, str], page: Page
) -> None:
    page.goto(f"runs/{ids['later']}")
    why = page.get_by_label("Why is it not running?")
    expect(why).to_contain_text(re.compile(r"Due at [-0-9]{10} [:0-9]{8} (GMT[+]\d|CES?T), in \d"))
    expect(why.locator("time")).to_have_count(1)
    expect(why).not_to_contain_text("Until")
    page.get_by_title("Time zone").click()
    expect(why.locator("time")).to_contain_text("UTC")


def test_a_run_shows_its_current_status_and_its_outcome(site: Site, ids: dict[str, str], page: Page) -> None:
    page.goto(f"runs/{ids['running']}")
    where = page.get_by_label("Current status")
    expect(where).to_contain_text("Running on")
    expect(where).to_contain_text("Times out at")
    page.goto(f"runs/{ids['failed']}")
    expect(page.get_by_label("Outcome")).to_contain_text("mainspring runs retry")
    page.goto(f"runs/{ids['succeeded']}")
    expect(page.get_by_label("Outcome")).to_contain_text("Succeeded")


def test_a_list_shows_relative_and_absolute_times_with_their_zone(site: Site, ids: dict[str, str], page: Page) -> None:
    run = site.submit("send_welcome", {"user_id": 5}, name="dated", delay="2h")
    due = datetime.fromisoformat(site.ask("GET", f"v1/runs/{run}")["scheduledFor"])
    page.goto("runs?text=dated")
    # The row also has the hidden text for narrow screens.
    shown, zone = page.locator("tbody .when:visible"), page.locator("th [data-zone]:visible")
    expect(zone).to_have_text(re.compile("GMT[+][12]|CES?T"))
    expect(shown).to_contain_text(re.compile(r"in 1h 5\dm"))
    expect(shown).to_contain_text(f"{due.astimezone(ZoneInfo('Europe/Paris')):%H:%M}")
    page.get_by_title("Time zone").click()
    expect(zone).to_have_text("UTC")
    expect(shown).to_contain_text(f"{due:%H:%M}")
    site.ask("POST", f"v1/runs/{run}/cancel")


def test_a_phone_has_the_time_zone_and_the_help_in_its_menu(
    site: Site, ids: dict[str, str], browser: Browser, watched: list[Watched]
) -> None:
    page = open_page(browser, site, watched, width=390)
    page.goto(f"runs/{ids['failed']}")
    due = page.locator(".kv time").first
    expect(due).to_contain_text(re.compile("GMT[+][12]|CES?T"))
    page.get_by_role("button", name="More").click()
    page.get_by_role("button", name="Times: Local").click()
    expect(due).to_contain_text("UTC")
    expect(page.get_by_role("button", name="Times: UTC")).to_be_visible()
    assert serious_findings(page) == []
    page.get_by_role("button", name="Shortcuts and version").click()
    expect(page.get_by_role("heading", name="Keyboard")).to_be_visible()


def test_a_missing_page_has_the_navigation(site: Site, ids: dict[str, str], page: Page, watched: list[Watched]) -> None:
    watched[0].allowed = ["404"]
    answer = page.goto("runs/00000000000000000000000000000000")
    assert answer is not None
    assert answer.status == 404
    expect(page.get_by_role("heading", name="Not found")).to_be_visible()
    expect(page.get_by_role("link", name="Runs")).to_be_visible()


def test_the_actions_of_a_run_change_with_its_state(site: Site, ids: dict[str, str], page: Page) -> None:
    run = site.submit("export_orders", {"pages": 20_000})
    site.wait_for_state(run, "running")
    with page.expect_response(re.compile("/live$")):
        page.goto(f"runs/{run}")
    expect(page.locator(".head").get_by_role("button", name="Cancel")).to_be_visible()
    site.ask("POST", f"v1/runs/{run}/cancel")
    page.get_by_role("button", name="Retry run").click()
    expect(page.get_by_role("heading", name="Retry this run?")).to_be_visible()
    box = page.locator("dialog[open]").get_by_label("Payload")
    box.fill('{"pages": 1}')
    # A refresh waits while a dialog is open: the typed text stays.
    with page.expect_response(re.compile(f"/runs/{run}$")):
        page.evaluate("htmx.trigger('#live', 'live')")
    expect(page.get_by_role("heading", name="Retry this run?")).to_be_visible()
    expect(box).to_have_value('{"pages": 1}')
    page.locator("dialog[open]").get_by_role("button", name="Retry run").click()
    expect(page.get_by_text("Replay of")).to_be_visible()


def test_switching_the_kind_of_jobs_keeps_the_search(site: Site, ids: dict[str, str], page: Page) -> None:
    page.goto("jobs")
    page.get_by_label("Search by name, task or id").fill("a welcome")
    expect(page.get_by_text("No matching jobs")).to_be_visible()
    page.get_by_role("link", name="One-off").click()
    expect(page.locator("tbody tr")).to_have_count(1)


def test_a_refresh_keeps_the_container_of_dialogs(site: Site, ids: dict[str, str], page: Page) -> None:
    page.goto("runs")
    for _ in range(2):
        with page.expect_response(re.compile("/runs$")):
            page.evaluate("htmx.trigger('#live', 'live')")
    expect(page.locator("#dialogs")).to_have_count(1)


def test_a_late_response_for_a_removed_element_changes_nothing(site: Site, ids: dict[str, str], page: Page) -> None:
    page.goto("runs")
    with page.expect_response(re.compile("/runs$")) as answer:
        page.evaluate("() => { const live = htmx.find('#live'); htmx.trigger(live, 'live'); live.remove(); }")
    answer.value.finished()
    wait_for_frames(page)
    expect(page.locator("#live")).to_have_count(0)
