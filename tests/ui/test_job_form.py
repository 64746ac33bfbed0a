"""The job form: it validates while the user types and previews the result."""

import re
import uuid

from playwright.sync_api import Page, expect

from tests.support.ui_site import Site
from tests.ui.conftest import Watched, serious_findings


def test_the_form_validates_while_the_user_types_and_creates_a_schedule(
    site: Site, ids: dict[str, str], page: Page
) -> None:
    name = f"made_{uuid.uuid4().hex[:8]}"
    page.goto("jobs")
    page.get_by_role("link", name="New job").click()
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_label("Task", exact=True).fill("send_welcome")
    page.get_by_label("user_id", exact=True).fill("1")
    page.get_by_label("Expression", exact=True).fill("30 25 * * *")
    preview = page.get_by_label("Preview", exact=True)
    expect(preview).to_contain_text("25 is out of range")
    expect(page.get_by_label("Expression", exact=True)).to_have_attribute("aria-invalid", "true")
    page.get_by_label("Expression", exact=True).fill("30 2 * * *")
    page.get_by_label("Time zone").fill("Europe/Paris")
    expect(preview).to_contain_text("Every day at 02:30 (Europe/Paris)")
    expect(preview.locator("tbody tr")).to_have_count(6)
    expect(page.get_by_label("Notes")).to_contain_text("02:30 does not exist: runs once, at 03:00")
    expect(page.get_by_label("Expression", exact=True)).not_to_have_attribute("aria-invalid", "true")
    page.get_by_label("user_id", exact=True).fill("ada")
    expect(preview).to_contain_text("is not a number")
    page.get_by_label("user_id", exact=True).fill("1")
    expect(preview).to_contain_text("Every day at 02:30")
    page.get_by_role("button", name="Create job").click()
    expect(page).to_have_url(re.compile("/jobs/[0-9a-f]{32}$"))
    expect(page.locator("h1")).to_have_text(name)
    expect(page.get_by_label("Details")).to_contain_text("Europe/Paris")


def test_every_invalid_field_is_marked(site: Site, ids: dict[str, str], page: Page) -> None:
    page.goto("jobs/new")
    page.get_by_label("Name", exact=True).fill("much_is_wrong")
    # The fields of the arguments follow the task; the payload is one of them.
    with page.expect_response(lambda answer: "jobs/new?task=not_registered" in answer.url):
        page.get_by_label("Task", exact=True).fill("not_registered")
    expect(page.locator(".htmx-request")).to_have_count(0)
    page.get_by_label("Payload", exact=True).fill("{not json")
    page.get_by_label("Expression", exact=True).fill("30 25 * * *")
    page.get_by_text("Retries, limits and owner").click()
    page.get_by_label("Retries", exact=True).fill("many")
    page.get_by_label("Priority", exact=True).fill("11")
    page.get_by_label("Time zone").fill("Europe/Nowhere")
    for label, words in (
        ("Payload", "is not JSON"),
        ("Expression", "25 is out of range"),
        ("Time zone", "Europe/Nowhere"),
        ("Retries", "is not a whole number"),
        ("Priority", "must be at most 10"),
    ):
        field = page.locator(".field", has=page.get_by_label(label, exact=True))
        expect(field.locator(".field-wrong")).to_contain_text(words)
        expect(page.get_by_label(label, exact=True)).to_have_attribute("aria-invalid", "true")
    assert serious_findings(page) == []
    page.get_by_label("Payload", exact=True).fill("{}")
    expect(page.locator(".field-wrong")).to_have_count(4)


def test_a_refused_form_keeps_its_input(site: Site, ids: dict[str, str], page: Page, watched: list[Watched]) -> None:
    watched[0].allowed = ["409"]
    page.goto("jobs/new")
    page.get_by_label("Name", exact=True).fill("weekly_report")
    page.get_by_label("Task", exact=True).fill("weekly_report")
    page.get_by_role("button", name="hourly").click()
    expect(page.get_by_label("Expression", exact=True)).to_have_value("0 * * * *")
    expect(page.get_by_label("Preview", exact=True)).to_contain_text("Every hour")
    page.get_by_role("button", name="Create job").click()
    expect(page.locator(".toast.is-bad")).to_contain_text("here is a job of this name")
    expect(page.get_by_label("Name", exact=True)).to_have_value("weekly_report")


def test_a_one_off_job_is_created_for_later(site: Site, ids: dict[str, str], page: Page) -> None:
    page.goto("jobs/new")
    page.get_by_label("Task", exact=True).fill("send_welcome")
    page.get_by_label("user_id", exact=True).fill("5")
    page.get_by_text("Once later").click()
    expect(page.get_by_label("Expression", exact=True)).to_be_hidden()
    expect(page.get_by_text("Bounds and calendars")).to_be_hidden()
    page.get_by_label("At, in UTC").fill("2090-01-01T10:00:00")
    expect(page.get_by_label("Preview", exact=True)).to_contain_text("2090-01-01")
    page.get_by_role("button", name="Create job").click()
    expect(page).to_have_url(re.compile("/runs/[0-9a-f]{32}$"))
    expect(page.locator(".head .badge")).to_have_text("scheduled")


def test_a_form_for_a_task_has_a_field_for_each_argument(
    site: Site, ids: dict[str, str], page: Page, watched: list[Watched]
) -> None:
    watched[0].allowed = ["400"]
    page.goto("tasks?text=many_arguments")
    page.get_by_role("link", name="New job: many_arguments").click()
    expect(page.locator("#of-task")).to_contain_text("Every kind of argument.")
    expect(page.locator("#of-task")).to_contain_text("queue reports, priority 8, 9 retries, timeout 2m")
    expect(page.get_by_label("Payload", exact=True)).to_have_count(0)
    page.get_by_text("Now", exact=True).click()
    preview = page.get_by_label("Preview", exact=True)
    expect(preview).to_contain_text("Required: count")
    page.get_by_label("count", exact=True).fill("ten")
    expect(page.locator(".field", has=page.get_by_label("count", exact=True))).to_contain_text("is not a number")
    page.get_by_role("button", name="Create job").click()
    expect(page.locator(".toast")).to_have_text("count: is not a number · for example 3")
    page.get_by_label("count", exact=True).fill("10")
    page.get_by_label("title", exact=True).fill("a [title]")
    page.get_by_label("color (optional)", exact=True).select_option("blue")
    page.get_by_label("loud (optional)", exact=True).select_option("true")
    page.get_by_label("sizes (optional)", exact=True).fill("[1, 2]")
    expect(preview).to_contain_text("once")
    assert serious_findings(page) == []
    page.get_by_role("button", name="Create job").click()
    expect(page).to_have_url(re.compile("/runs/[0-9a-f]{32}$"))
    job = site.ask("GET", f"v1/jobs/{page.url.rpartition('/')[2]}")
    assert job["payload"] == {"count": 10, "title": "a [title]", "color": "blue", "loud": True, "sizes": [1, 2]}
    assert (job["queue"], job["priority"], job["maxRetries"], job["timeout"]) == ("reports", 8, 9, "2m")


def test_input_survives_a_change_of_the_task(site: Site, ids: dict[str, str], page: Page) -> None:
    def choose(task: str) -> None:
        with page.expect_response(lambda answer: f"jobs/new?task={task}" in answer.url):
            page.get_by_label("Task", exact=True).fill(task)

    page.goto("jobs/new")
    payload, argument = page.get_by_label("Payload", exact=True), page.get_by_label("user_id", exact=True)
    choose("not_registered")
    payload.fill('{"user_id": 7}')
    choose("not_registered_either")
    expect(payload).to_have_value('{"user_id": 7}')
    choose("send_welcome")
    expect(payload).to_have_count(0)
    argument.fill("8")
    choose("not_registered")
    expect(payload).to_have_value('{"user_id": 7}')
    payload.fill("")
    choose("send_welcome")
    expect(argument).to_have_value("8")
    choose("not_registered")
    expect(argument).to_have_count(0)
    # An empty payload has its default again.
    expect(payload).to_have_value("{}")


def test_tasks_are_listed_with_their_options(site: Site, ids: dict[str, str], page: Page) -> None:
    page.goto("tasks")
    row = page.locator("tr", has=page.get_by_role("link", name="many_arguments", exact=True))
    for words in ("Every kind of argument.", "reports", "8", "9", "2m"):
        expect(row).to_contain_text(words)
    row.get_by_role("link", name="many_arguments", exact=True).click()
    expect(page).to_have_url(re.compile(r"/runs\?task=many_arguments$"))


def test_a_schedule_is_changed_compared_and_restored(site: Site, ids: dict[str, str], page: Page) -> None:
    name = f"changed_{uuid.uuid4().hex[:8]}"
    schedule = {"task": "not_registered", "name": name, "cronExpression": "0 4 * * *", "calendars": ["weekend"]}
    schedule["retention"] = "audit"
    job = site.ask("POST", "v1/jobs", {**schedule, "payload": {"user_id": 1, "how": "by mail"}})["jobId"]
    page.goto(f"jobs/{job}")
    page.get_by_role("link", name="Edit").click()
    expect(page.get_by_label("Changes", exact=True)).to_contain_text("None yet")
    expect(page.get_by_label("weekend")).to_be_checked()
    page.get_by_text("Interval").click()
    page.get_by_label("Every", exact=True).fill("90m")
    page.get_by_label("Payload", exact=True).fill('{"user_id": 2, "how": "by mail"}')
    changes = page.get_by_label("Changes", exact=True)
    expect(changes).to_contain_text("1h30m")
    expect(changes).to_contain_text('"user_id": 2')
    page.get_by_label("weekend").uncheck()
    expect(page.get_by_label("Retention")).to_have_value("audit")
    page.get_by_label("Retention").select_option("tenant default")
    page.get_by_label("Reason for the change").fill("more often")
    expect(changes).to_contain_text("calendars")
    page.get_by_role("button", name="Save as version 2").click()
    expect(page).to_have_url(re.compile(f"/jobs/{job}$"))
    assert "retention" not in site.ask("GET", f"v1/jobs/{job}")
    versions = page.get_by_label("Versions", exact=True)
    expect(versions).to_contain_text("more often")
    expect(versions.locator(".is").first).to_be_visible()
    versions.get_by_role("button", name="Restore").click()
    expect(page.locator(".toast").last).to_contain_text("Version 1 restored")
    expect(page.get_by_label("Details")).to_contain_text("every day at 04:00")
    expect(page.get_by_label("Details")).to_contain_text("audit")
    found = site.ask("GET", f"v1/jobs/{job}")
    assert (found["payload"], found["calendars"]) == ({"user_id": 1, "how": "by mail"}, ["weekend"])


def test_a_job_that_was_changed_meanwhile_is_not_overwritten(
    site: Site, ids: dict[str, str], page: Page, watched: list[Watched]
) -> None:
    watched[0].allowed = ["409"]
    name = f"raced_{uuid.uuid4().hex[:8]}"
    job = site.ask("POST", "v1/jobs", {"task": "not_registered", "name": name, "every": "1h"})["jobId"]
    page.goto(f"jobs/{job}/edit")
    site.ask("PATCH", f"v1/jobs/{job}", {"every": "2h"})
    page.get_by_label("Every", exact=True).fill("3h")
    expect(page.get_by_label("Preview", exact=True)).to_contain_text("the job has version 2 by now")
    page.get_by_role("button", name="Save as version 2").click()
    expect(page.locator(".toast.is-bad")).to_contain_text("version 2 by now")


def test_copy_fills_the_form_from_another_job(site: Site, ids: dict[str, str], page: Page) -> None:
    page.goto(f"jobs/{site.job('weekly_report')}")
    page.get_by_role("link", name="Copy").click()
    expect(page.get_by_label("Expression", exact=True)).to_have_value("0 30 9 * * MON")
    expect(page.get_by_label("Name", exact=True)).to_have_value("")
    expect(page.get_by_label("Preview", exact=True)).to_contain_text("Required: Name")


def test_a_one_off_job_can_be_edited_until_it_starts(
    site: Site, ids: dict[str, str], page: Page, watched: list[Watched]
) -> None:
    watched[0].allowed = ["409"]
    run = site.submit("send_welcome", {"user_id": 1}, delay="2h", name="to be changed", tags=["kept"])
    page.goto(f"runs/{run}")
    page.get_by_role("link", name="Edit").click()
    expect(page.get_by_label("Expression", exact=True)).to_be_hidden()
    page.get_by_label("At, in UTC").fill("2099-01-02T03:04:05")
    expect(page.get_by_label("Preview", exact=True).locator("time").first).to_have_attribute(
        "datetime", re.compile("2099-01-02T03:04:05")
    )
    page.get_by_label("Payload", exact=True).fill('{"user_id": 2}')
    page.get_by_role("button", name="Save").click()
    expect(page).to_have_url(re.compile(f"/runs/{run}$"))
    job = site.ask("GET", f"v1/jobs/{run}")
    assert (job["payload"], job["tags"], job["name"]) == ({"user_id": 2}, ["kept"], "to be changed")
    assert job["scheduleTime"].startswith("2099-01-02T03:04:05")
    page.goto(f"jobs/{run}/edit")
    page.get_by_text("Now", exact=True).click()
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".head .badge")).to_have_text("succeeded")
    expect(page.get_by_role("link", name="Edit")).to_have_count(0)
    answer = page.goto(f"jobs/{run}/edit")
    assert answer is not None
    assert answer.status == 409
