"""The pages of tenants, the audit log, keys and the system, and who may see them."""

import re

import pytest
from playwright.sync_api import Browser, Page, expect

from mainspring.core.model.access.access import Role
from tests.support.ui_site import Site
from tests.support.waiting import wait_until
from tests.ui.conftest import Watched, open_page
from tests.ui.looks import LONG, look_at
from tests.ui.test_sign_in import make_user_key, sign_in


@LONG
def test_administration_pages_are_complete_and_accessible(
    site: Site, ids: dict[str, str], browser: Browser, watched: list[Watched]
) -> None:
    key = site.ask("POST", "v1/keys", {"name": "looked at", "role": "viewer", "expiresIn": "30d"})["keyId"]
    site.ask("PUT", "v1/budgets/looked-at", {"unit": "attempts", "limit": 1})
    paths = ("tenants", "tenants/default", "audit", "audit?author=unknown", "keys", "keys/new", f"keys/{key}", "system")
    look_at(browser, site, watched, (*paths, "notifications"))


def test_a_tenant_has_quotas_and_budgets(site: Site, ids: dict[str, str], page: Page) -> None:
    page.goto("tenants")
    page.get_by_role("button", name="New tenant").click()
    dialog = page.locator("dialog[open]")
    dialog.get_by_label("Name").fill("globex")
    dialog.get_by_label("Running runs").fill("7")
    dialog.get_by_label("Run retention").select_option("long")
    dialog.get_by_role("button", name="Create tenant").click()
    expect(page).to_have_url(re.compile("/tenants/globex"))
    expect(page.get_by_label("Quotas").first).to_contain_text("7")
    expect(page.get_by_label("Quotas").first).to_contain_text("long")
    page.get_by_role("button", name="Budget").click()
    dialog = page.locator("dialog[open]")
    dialog.get_by_label("Name").fill("compute")
    dialog.get_by_label("Limit").fill("3600")
    dialog.get_by_label("When it is used up").select_option("pause")
    dialog.get_by_role("button", name="Save").click()
    budgets = page.get_by_label("Budgets")
    expect(budgets).to_contain_text("then pause")
    page.reload()
    page.get_by_role("button", name="Delete").first.click()
    page.get_by_role("button", name="Delete budget").click()
    expect(budgets).to_contain_text("No budget.")


def test_the_drop_button_drops_its_own_budget(site: Site, ids: dict[str, str], page: Page) -> None:
    budget = {"unit": "attempts", "limit": 1_000, "tenant": "initech"}
    site.ask("PUT", "v1/tenants", {"name": "initech"})
    site.ask("PUT", "v1/budgets/zeta", budget)
    page.goto("tenants/initech")
    expect(page.get_by_label("Budgets")).to_contain_text("zeta")
    site.ask("PUT", "v1/budgets/alpha", budget)
    page.evaluate("htmx.trigger('#live', 'live')")
    beside = page.locator(".change-head", has_text="alpha").get_by_role("button", name="Delete")
    beside.click()
    expect(page.get_by_role("heading", name="Delete budget alpha?")).to_be_visible()
    page.get_by_role("button", name="Delete budget").click()
    expect(beside).to_have_count(0)
    assert [one["name"] for one in site.ask("GET", "v1/budgets?tenant=initech")["items"]] == ["zeta"]


def test_a_tenant_shows_its_costs(site: Site, ids: dict[str, str], page: Page) -> None:
    wait_until(lambda: site.ask("GET", "v1/usage?by=tenant")["items"])
    page.goto("tenants")
    page.get_by_role("link", name="default").click()
    expect(page.get_by_label("By task")).to_contain_text("send_welcome")
    expect(page.locator(".chart canvas")).to_be_visible()


def test_the_audit_log_is_filtered_and_shows_changes(site: Site, ids: dict[str, str], page: Page) -> None:
    job = site.job("vacuum_database")
    site.ask("PATCH", f"v1/jobs/{job}", {"priority": 2, "why": "it is not urgent"})
    page.goto("audit")
    page.get_by_label("Id or name").first.fill(job)
    expect(page).to_have_url(re.compile(job))
    row = page.locator("tbody tr", has_text="it is not urgent")
    expect(row).to_contain_text("jobs.put")
    expect(row.locator(".what-cell a.link")).to_have_text("vacuum_database")
    page.get_by_label("Action", exact=True).fill("keys")
    expect(page.get_by_text("No matching changes")).to_be_visible()
    page.get_by_label("Action", exact=True).fill("jobs.put")
    expect(row).to_have_count(1)
    page.get_by_label("From, ").fill("2099-01-01T00:00")
    expect(page.get_by_text("No matching changes")).to_be_visible()
    page.get_by_label("From, ").fill("2020-01-01T00:00")
    row.locator("summary:visible").click()
    expect(row.locator(".diff:visible")).to_contain_text("priority")
    row.locator(".what-cell a.link").click()
    expect(page.get_by_role("heading", name="vacuum_database")).to_be_visible()


def test_the_filters_of_the_audit_log_are_in_one_row(
    site: Site, ids: dict[str, str], browser: Browser, watched: list[Watched]
) -> None:
    page = open_page(browser, site, watched, width=1440)
    page.goto("audit")
    boxes = [page.get_by_label(name).first.bounding_box() for name in ("Author", "From, ", "Tenant")]
    assert len({box["y"] for box in boxes if box is not None}) == 1


def test_a_key_is_shown_once_and_revoked(site: Site, ids: dict[str, str], page: Page) -> None:
    page.goto("keys")
    page.get_by_role("link", name="New key").click()
    page.get_by_label("Name").fill("the nightly report")
    page.get_by_label("submitter").check()
    page.get_by_label("Queues").fill("mail, reports")
    page.get_by_role("button", name="Create key").click()
    text = page.locator("[data-key-text]").inner_text()
    assert text.startswith("ms_")
    page.get_by_role("link", name="Done").click()
    expect(page.locator("body")).not_to_contain_text(text)
    page.get_by_role("link", name="the nightly report").click()
    expect(page.get_by_label("Details")).to_contain_text("submitter")
    expect(page.get_by_label("Details")).to_contain_text("mail")
    page.get_by_role("button", name="Revoke key").first.click()
    page.locator("dialog[open]").get_by_role("button", name="Revoke key").click()
    expect(page.locator(".head .badge")).to_have_text("revoked")


def test_the_system_page_shows_health_checks_and_settings(site: Site, ids: dict[str, str], page: Page) -> None:
    page.goto("system")
    expect(page.locator("[data-findings]")).to_contain_text("schema: version")
    row = page.get_by_label("Settings").locator("tr", has_text=re.compile("^shards"))
    expect(row).to_be_visible()
    expect(row).to_contain_text("4")
    other = page.get_by_label("Settings").locator("tr", has_text="retention.ledger")
    expect(other).not_to_be_visible()
    page.get_by_text("defaults").last.click()
    expect(other).to_contain_text("90d")


@pytest.mark.xdist_group("ui-guarded")
def test_administration_pages_are_denied_to_an_operator_and_not_in_the_menu(
    guarded: Site, browser: Browser, watched: list[Watched]
) -> None:
    page = open_page(browser, guarded, watched)
    watched[0].allowed = ["403", "404"]
    page.goto("jobs")
    sign_in(page, make_user_key(guarded, Role.OPERATOR, "default")[1])
    sections = page.get_by_role("navigation", name="Sections")
    expect(sections.get_by_role("link", name="Workers")).to_be_visible()
    for name in ("Notifications", "Tenants", "Audit", "Keys", "System"):
        expect(sections.get_by_role("link", name=name)).to_have_count(0)
    for path in ("tenants", "audit", "keys", "system", "tenants/other", "notifications"):
        answer = page.goto(path)
        assert answer is not None
        assert answer.status in (403, 404), path
    # Every user may see the costs of their own tenant.
    answer = page.goto("tenants/default")
    assert answer is not None
    assert answer.status == 200
