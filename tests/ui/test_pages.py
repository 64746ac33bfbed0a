"""What every page must do, and what each of them is for."""

import json
import re
from datetime import UTC, datetime
from urllib.parse import quote
from zoneinfo import ZoneInfo

from playwright.sync_api import Browser, Page, Route, expect

from tests.support.ui_site import Site
from tests.support.ui_tasks import NASTY
from tests.ui.conftest import Watched, open_page, serious_findings
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
    "workflows",
    "calendar",
    "calendar?view=day",
)
OF_IDS = (
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
def test_every_page_is_whole_and_accessible(
    site: Site, ids: dict[str, str], browser: Browser, watched: list[Watched]
) -> None:
    look_at(browser, site, watched, [path.format(**ids) for path in (*PAGES, *OF_IDS)])


@LONG
def test_what_others_wrote_is_shown_as_text(site: Site, ids: dict[str, str], page: Page) -> None:
    # Without a slash: so it may be the name of a queue, too.
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
    # What is certain to show some of it.
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
    # Nobody serves its queue, which other tests would be told of.
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


def test_the_overview_says_how_it_goes(site: Site, ids: dict[str, str], page: Page) -> None:
    page.goto("")
    # What cannot be charged has failed for good.
    expect(page.locator(".health")).to_contain_text(re.compile(r"\d+ dead letters? in the last hour"))
    expect(page.locator(".tile", has_text="Lateness")).to_contain_text("p50")
    expect(page.locator(".chart canvas")).to_have_count(4)
    expect(page.get_by_label("Late", exact=True)).to_be_visible()
    expect(page.get_by_label("Failing most")).to_contain_text("card declined: insufficient funds")
    coming = page.get_by_label("Coming up")
    expect(coming).to_contain_text("sync_inventory")
    coming.locator(".row-link").first.click()
    expect(page.get_by_label("What fires then")).to_contain_text("sync_inventory")


def test_runs_are_found_by_what_stands_in_the_address(site: Site, ids: dict[str, str], page: Page) -> None:
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


def test_the_keyboard_leads_everywhere(site: Site, ids: dict[str, str], page: Page) -> None:
    page.goto("")
    page.keyboard.press("g")
    page.keyboard.press("r")
    expect(page).to_have_url(re.compile("/runs$"))
    # A list that nothing is added to meanwhile.
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


def test_a_new_run_appears_by_itself(site: Site, ids: dict[str, str], page: Page) -> None:
    with page.expect_response(re.compile("/live$")):
        page.goto("runs?text=brand-new")
    expect(page.get_by_text("No run is like that")).to_be_visible()
    site.submit("send_welcome", {"user_id": 3}, name="brand-new")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody .badge")).to_have_text("succeeded")


def test_a_running_run_is_followed_and_cancelled(site: Site, ids: dict[str, str], page: Page) -> None:
    run = site.submit("export_orders", {"pages": 400})
    page.goto(f"runs/{run}")
    expect(page.locator(".log .line").nth(3)).to_be_visible()
    expect(page.locator(".log .ansi-fg-yellow").first).to_be_visible()
    page.get_by_label("Search the lines shown").fill("no line says this")
    expect(page.locator(".log .line:visible")).to_have_count(0)
    page.get_by_label("Search the lines shown").fill("")
    expect(page.locator(".log .line:visible").nth(3)).to_be_visible()
    page.get_by_role("button", name="Cancel").first.click()
    page.get_by_role("button", name="Cancel the run").click()
    expect(page.locator(".toast")).to_contain_text(re.compile("stopped|cancelled"))
    expect(page.locator(".head .badge")).to_have_text("cancelled")


def test_a_log_is_followed_on_when_the_server_was_away(
    site: Site, ids: dict[str, str], page: Page, watched: list[Watched]
) -> None:
    watched[0].allowed = ["503", "Response Status Error Code"]
    refused = iter(range(2))

    def now_and_then(route: Route) -> None:
        if next(refused, None) is None:
            route.continue_()
        else:
            route.fulfill(status=503, headers={"hx-reswap": "none"}, body="")

    page.route(re.compile(r"/log\?after="), now_and_then)
    run = site.submit("export_orders", {"pages": 400})
    page.goto(f"runs/{run}")
    expect(page.locator(".log .line").nth(12)).to_be_visible()
    assert next(refused, None) is None
    site.ask("POST", f"v1/runs/{run}/cancel")
    page.unroute_all()


def test_a_failed_run_runs_again_with_another_payload(
    site: Site, ids: dict[str, str], page: Page, watched: list[Watched]
) -> None:
    watched[0].allowed = ["400"]
    page.goto(f"runs/{ids['failed']}")
    expect(page.get_by_label("Error", exact=True).locator(".code")).to_contain_text("PermissionError")
    expect(page.locator(".timeline rect.is-error")).to_have_count(2)
    expect(page.get_by_label("Result")).to_contain_text("Nothing")
    page.get_by_role("button", name="Run again").first.click()
    page.locator("dialog[open]").get_by_role("button", name="Back").click()
    expect(page.locator("dialog[open]")).to_have_count(0)
    page.get_by_role("button", name="Run again").first.click()
    box = page.get_by_label("Payload").last
    box.fill("{not json")
    page.locator("dialog[open]").get_by_role("button", name="Run again").click()
    # At the field, and not in a corner.
    expect(page.locator("dialog[open] .field-wrong")).to_contain_text("is not JSON")
    expect(box).to_have_attribute("aria-invalid", "true")
    expect(box).to_be_focused()
    expect(page.locator(".toast")).to_have_count(0)
    box.fill(json.dumps({"order": 4711}))
    page.locator("dialog[open]").get_by_role("button", name="Run again").click()
    expect(page.get_by_text("Replay of")).to_be_visible()
    expect(page.get_by_label("Payload").first).to_contain_text("4711")


def test_every_attempt_says_what_went_wrong(site: Site, ids: dict[str, str], page: Page) -> None:
    run = site.submit("settle_day", {"fails": ["the ledger is locked", "<b>no</b> balance"]})
    site.until(lambda: site.state(run) == "succeeded", "it did not succeed")
    page.goto(f"runs/{run}")
    first, second = (page.locator("tr", has_text=words) for words in ("the ledger is locked", "<b>no</b> balance"))
    expect(first.locator("summary")).to_have_text("RuntimeError: the ledger is locked")
    expect(second.locator("summary")).to_have_text("RuntimeError: <b>no</b> balance")
    expect(page.locator("tr", has_text="success")).to_have_count(1)
    expect(page.locator(".timeline rect.is-error")).to_have_count(2)
    expect(page.locator(".timeline rect.is-success")).to_have_count(1)
    first.locator("summary").click()
    expect(first.locator("pre")).to_contain_text("Traceback")
    # Also after the page was asked for anew.
    with page.expect_response(re.compile(f"/runs/{run}$")):
        page.evaluate("htmx.trigger('#live', 'live')")
    page.wait_for_timeout(300)
    expect(first.locator("pre")).to_be_visible()
    expect(second.locator("pre")).to_be_hidden()
    assert serious_findings(page) == []


def test_when_it_was_made_and_when_it_is_tried_next_are_two_times(site: Site, ids: dict[str, str], page: Page) -> None:
    run = site.submit("settle_day", {"fails": ["locked"]}, retry={"firstDelay": "1h", "maxDelay": "1h"})
    site.until(lambda: site.ask("GET", f"v1/runs/{run}")["attempts"], "it did not fail")
    found = site.ask("GET", f"v1/runs/{run}")
    assert found["scheduledFor"] > found["attempts"][0]["endTime"]
    page.goto(f"runs/{run}")
    details = page.get_by_label("Details")
    expect(details.locator("dt", has_text="Next try").locator("+ dd time")).to_have_attribute(
        "datetime", found["scheduledFor"]
    )
    expect(details.locator("dt", has_text="Made").locator("+ dd time")).to_have_attribute(
        "datetime", found["createdAt"]
    )
    expect(details.locator("dt", has_text="Due")).to_have_count(0)
    expect(page.get_by_label("Timeline")).to_contain_text("since it was made")
    site.ask("POST", f"v1/runs/{run}/cancel")
    page.goto(f"runs/{ids['failed']}")
    expect(details.locator("dt", has_text="Last try")).to_have_count(1)


def test_a_schedule_is_paused_resumed_and_run_now(site: Site, ids: dict[str, str], page: Page) -> None:
    page.goto("jobs")
    row = page.locator("tr", has_text="sync_inventory")
    expect(row).to_contain_text("every 2 seconds")
    expect(row.locator(".strip > *").first).to_be_attached()
    row.locator(".row-link").click()
    page.get_by_role("button", name="Pause").first.click()
    page.locator("dialog[open]").get_by_label("Why").fill("stock-taking")
    page.locator("dialog[open]").get_by_role("button", name="Pause").click()
    expect(page.locator(".toast")).to_contain_text("Paused")
    expect(page.locator(".health")).to_contain_text("stock-taking")
    page.locator(".toast").get_by_role("button", name="Undo").click()
    expect(page.locator(".head .badge")).to_have_text("scheduled")
    page.get_by_role("button", name="Run now").first.click()
    expect(page.locator("dialog[open]").get_by_role("button", name="Back")).to_be_visible()
    page.locator("dialog[open]").get_by_role("button", name="Run now").click()
    expect(page).to_have_url(re.compile("/runs/"))
    expect(page.get_by_role("link", name="sync_inventory")).to_be_visible()


def test_a_job_is_cancelled_after_a_look_and_for_a_reason(site: Site, ids: dict[str, str], page: Page) -> None:
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
    expect(dialog).to_contain_text("The schedule ends, with 2 waiting runs.")
    assert serious_findings(page) == []
    dialog.get_by_label("Why").fill("nobody reads it")
    dialog.get_by_role("button", name="Cancel the job").click()
    expect(page.locator(".toast")).to_contain_text("The job is cancelled, with 2 waiting runs")
    expect(page.locator(".head .badge")).to_have_text("cancelled")
    [entry] = site.ask("GET", f"v1/audit?target={job}&action=jobs.cancel")["items"]
    assert entry["why"] == "nobody reads it"


def test_what_was_done_is_told_though_its_button_is_gone(site: Site, ids: dict[str, str], page: Page) -> None:
    job = site.job("vacuum_database")
    site.ask("POST", f"v1/jobs/{job}/pause")
    page.goto(f"jobs/{job}")
    # As a refresh does that comes between the click and the answer.
    page.evaluate("const form = document.querySelector('form[action$=resume]'); form.requestSubmit(); form.remove()")
    expect(page.locator("#toasts .toast")).to_contain_text("Resumed")


def test_a_version_is_restored(site: Site, ids: dict[str, str], page: Page) -> None:
    job = site.job("weekly_report")
    site.ask("PATCH", f"v1/jobs/{job}", {"cronExpression": "0 0 10 * * TUE", "why": "moved"})
    page.goto(f"jobs/{job}")
    expect(page.locator(".diffs").first).to_contain_text("0 0 10 * * TUE")
    page.get_by_role("button", name="Restore").last.click()
    expect(page.locator(".toast")).to_contain_text("is restored")
    expect(page.get_by_label("Details")).to_contain_text("every Monday at 09:30")


def test_many_are_cancelled_after_a_look(site: Site, ids: dict[str, str], page: Page) -> None:
    for user in range(3):
        site.submit("send_welcome", {"user_id": user}, delay="2h", name="to be cancelled")
    page.goto("runs?status=scheduled&text=to+be+cancelled")
    page.get_by_role("link", name="Cancel all of these").click()
    expect(page.get_by_role("heading", name="Cancel 3 runs")).to_be_visible()
    page.get_by_role("button", name="Cancel 3 runs").click()
    expect(page.locator(".toast")).to_contain_text("3 runs cancelled")


def test_times_are_in_the_zone_of_the_viewer(site: Site, ids: dict[str, str], page: Page) -> None:
    page.goto(f"runs/{ids['failed']}")
    due = page.locator(".kv time").first
    expect(due).to_contain_text(re.compile("GMT[+][12]|CES?T"))
    page.get_by_title("Zone of all times").click()
    expect(due).to_contain_text("UTC")


def test_why_a_run_waits_is_told_in_the_zone_of_the_viewer(site: Site, ids: dict[str, str], page: Page) -> None:
    page.goto(f"runs/{ids['later']}")
    why = page.get_by_label("Why is it not running?")
    expect(why).to_contain_text(re.compile(r"it is not due: [-0-9]{10} [:0-9]{8} (GMT[+]\d|CES?T), in \d"))
    # Once.
    expect(why.locator("time")).to_have_count(1)
    expect(why).not_to_contain_text("until")
    page.get_by_title("Zone of all times").click()
    expect(why.locator("time")).to_contain_text("UTC")


def test_where_a_run_is_and_how_it_ended_is_told(site: Site, ids: dict[str, str], page: Page) -> None:
    page.goto(f"runs/{ids['running']}")
    where = page.get_by_label("Where it is")
    expect(where).to_contain_text("it runs on")
    expect(where).to_contain_text("at longest until")
    page.goto(f"runs/{ids['failed']}")
    expect(page.get_by_label("How it ended")).to_contain_text("mainspring runs retry")
    page.goto(f"runs/{ids['succeeded']}")
    expect(page.get_by_label("How it ended")).to_contain_text("it has ended: succeeded")


def test_a_list_says_how_long_ago_and_when_and_in_which_zone(site: Site, ids: dict[str, str], page: Page) -> None:
    run = site.submit("send_welcome", {"user_id": 5}, name="dated", delay="2h")
    due = datetime.fromisoformat(site.ask("GET", f"v1/runs/{run}")["scheduledFor"])
    page.goto("runs?text=dated")
    # What a phone shows instead stands in the row as well.
    shown, zone = page.locator("tbody .when:visible"), page.locator("th [data-zone]:visible")
    expect(zone).to_have_text(re.compile("GMT[+][12]|CES?T"))
    expect(shown).to_contain_text("in 1h 59m")
    expect(shown).to_contain_text(f"{due.astimezone(ZoneInfo('Europe/Paris')):%H:%M}")
    page.get_by_title("Zone of all times").click()
    expect(zone).to_have_text("UTC")
    expect(shown).to_contain_text(f"{due:%H:%M}")
    site.ask("POST", f"v1/runs/{run}/cancel")


def test_a_phone_leads_to_the_zone_and_to_the_help(
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
    page.get_by_role("button", name="Keyboard and version").click()
    expect(page.get_by_role("heading", name="Keyboard")).to_be_visible()


def test_a_missing_page_looks_like_the_others(site: Site, ids: dict[str, str], browser: Browser) -> None:
    context = browser.new_context(base_url=site.url)
    page = context.new_page()
    answer = page.goto("runs/00000000000000000000000000000000")
    assert answer is not None
    assert answer.status == 404
    expect(page.get_by_role("heading", name="Not found")).to_be_visible()
    expect(page.get_by_role("link", name="Runs")).to_be_visible()
    context.close()


def test_what_can_be_done_changes_with_the_run_that_is_watched(site: Site, ids: dict[str, str], page: Page) -> None:
    run = site.submit("export_orders", {"pages": 400})
    site.until(lambda: site.state(run) == "running", "it does not run")
    with page.expect_response(re.compile("/live$")):
        page.goto(f"runs/{run}")
    expect(page.locator(".head").get_by_role("button", name="Cancel")).to_be_visible()
    site.ask("POST", f"v1/runs/{run}/cancel")
    page.get_by_role("button", name="Run again").click()
    expect(page.get_by_role("heading", name="Run it again?")).to_be_visible()
    box = page.locator("dialog[open]").get_by_label("Payload")
    box.fill('{"pages": 1}')
    # What comes meanwhile waits: what was typed stays.
    with page.expect_response(re.compile(f"/runs/{run}$")):
        page.evaluate("htmx.trigger('#live', 'live')")
    expect(page.get_by_role("heading", name="Run it again?")).to_be_visible()
    expect(box).to_have_value('{"pages": 1}')
    page.locator("dialog[open]").get_by_role("button", name="Run again").click()
    expect(page.get_by_text("Replay of")).to_be_visible()


def test_kinds_of_jobs_lead_on_with_what_was_typed(site: Site, ids: dict[str, str], page: Page) -> None:
    page.goto("jobs")
    page.get_by_label("Search by name, task or id").fill("a welcome")
    expect(page.get_by_text("No job is like that")).to_be_visible()
    page.get_by_role("link", name="One-off").click()
    expect(page.locator("tbody tr")).to_have_count(1)


def test_what_is_asked_for_anew_leaves_room_for_dialogs(site: Site, ids: dict[str, str], page: Page) -> None:
    page.goto("runs")
    for _ in range(2):
        with page.expect_response(re.compile("/runs$")):
            page.evaluate("htmx.trigger('#live', 'live')")
    expect(page.locator("#dialogs")).to_have_count(1)


def test_what_was_asked_for_by_what_is_gone_changes_nothing(site: Site, ids: dict[str, str], page: Page) -> None:
    page.goto("runs")
    with page.expect_response(re.compile("/runs$")) as answer:
        page.evaluate("() => { const live = htmx.find('#live'); htmx.trigger(live, 'live'); live.remove(); }")
    answer.value.finished()
    page.wait_for_timeout(300)
    expect(page.locator("#live")).to_have_count(0)
