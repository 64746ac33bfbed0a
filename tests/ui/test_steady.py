"""Live lists do not move the rows you read: new rows are announced, and known rows stay where they are."""

import re
import uuid

import pytest
from playwright.sync_api import APIResponse, Browser, Page, Route, expect

from tests.support.ui_site import Site
from tests.ui.conftest import Watched, open_page, trigger_refresh, wait_for_frames

_ROWS = """() => [...document.querySelectorAll("tbody tr[data-row]")].map((row) => row.dataset.row)"""


def _name() -> str:
    """A name that no other test uses."""
    return f"steady {uuid.uuid4().hex[:8]}"


def _later(site: Site, name: str, count: int, **more: object) -> list[str]:
    """Submit runs that stay scheduled; newest first."""
    made = [site.submit("send_welcome", {"user_id": n}, delay="2h", name=name, **more) for n in range(count)]
    return made[::-1]


def _rows(page: Page) -> list[str]:
    found: list[str] = page.evaluate(_ROWS)
    return found


def _top(page: Page, run: str) -> float:
    top: float = page.evaluate("(run) => document.getElementById(`run-${run}`).getBoundingClientRect().top", run)
    return top


def _selected(page: Page) -> str:
    selected: str = page.evaluate("document.activeElement.closest('tr')?.dataset.row ?? ''")
    return selected


def test_the_selection_moves_along_the_same_rows_while_runs_arrive(site: Site, ids: dict[str, str], page: Page) -> None:
    name = _name()
    runs = _later(site, name, 3)
    page.goto(f"runs?text={name}")
    assert _rows(page) == runs
    page.keyboard.press("j")
    for step in (1, 2):
        page.keyboard.press("j")
        top = _top(page, runs[step])
        _later(site, name, 2)
        trigger_refresh(page)
        expect(page.get_by_role("button", name=f"{2 * step} new runs")).to_be_visible()
        assert (_selected(page), _top(page, runs[step]), _rows(page)) == (runs[step], top, runs)
    page.keyboard.press("k")
    assert _selected(page) == runs[1]
    page.get_by_role("button", name="4 new runs").click()
    expect(page.locator("tbody tr")).to_have_count(7)
    expect(page.get_by_role("button", name=re.compile("new run"))).to_have_count(0)
    assert _rows(page)[4:] == runs
    page.locator(f"#run-{runs[2]} .row-link").focus()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(f"/runs/{runs[2]}$"))


def test_a_run_that_leaves_the_filter_stays_in_its_row_with_its_new_state(
    site: Site, ids: dict[str, str], page: Page
) -> None:
    name = _name()
    runs = _later(site, name, 3)
    page.goto(f"runs?status=scheduled&text={name}")
    page.locator(f"#run-{runs[1]} .row-link").focus()
    site.ask("POST", f"v1/runs/{runs[0]}/cancel")
    site.ask("POST", f"v1/runs/{runs[1]}/cancel")
    trigger_refresh(page)
    expect(page.locator(f"#run-{runs[1]} .badge")).to_have_text("cancelled")
    assert (_selected(page), _rows(page)) == (runs[1], runs)
    page.reload()
    assert _rows(page) == runs[2:]


def test_ticked_rows_stay_ticked_while_runs_arrive_and_when_they_are_shown(
    site: Site, ids: dict[str, str], page: Page
) -> None:
    name = _name()
    runs = _later(site, name, 3)
    page.goto(f"runs?text={name}")
    page.locator(f"#run-{runs[1]} .pick").check()
    _later(site, name, 1)
    site.ask("POST", f"v1/runs/{runs[2]}/cancel")
    trigger_refresh(page)
    expect(page.locator(f"#run-{runs[2]} .badge")).to_have_text("cancelled")
    assert page.locator(".pick:checked").evaluate_all("boxes => boxes.map((box) => box.value)") == [runs[1]]
    page.get_by_role("button", name="1 new run").click()
    expect(page.locator("tbody tr")).to_have_count(4)
    assert page.locator(".pick:checked").evaluate_all("boxes => boxes.map((box) => box.value)") == [runs[1]]


def test_older_runs_follow_the_last_shown_row_although_new_ones_arrived(
    site: Site, ids: dict[str, str], page: Page
) -> None:
    name = _name()
    runs = _later(site, name, 52)
    page.goto(f"runs?text={name}")
    assert _rows(page) == runs[:50]
    _later(site, name, 51)
    trigger_refresh(page)
    expect(page.get_by_role("button", name="50+ new runs")).to_be_visible()
    assert _rows(page) == runs[:50]
    page.get_by_role("link", name="Older").click()
    expect(page.locator("tbody tr")).to_have_count(2)
    assert _rows(page) == runs[50:]


@pytest.mark.parametrize("width", [1280, 390])
def test_an_announcement_moves_nothing(
    width: int, site: Site, ids: dict[str, str], browser: Browser, watched: list[Watched]
) -> None:
    name = _name()
    runs = _later(site, name, 30)
    page = open_page(browser, site, watched, width=width)
    page.goto(f"runs?text={name}")
    page.locator(f"#run-{runs[20]}").scroll_into_view_if_needed()
    top = _top(page, runs[20])
    _later(site, name, 1)
    trigger_refresh(page)
    button = page.get_by_role("button", name="1 new run")
    expect(button).to_be_in_viewport()
    wait_for_frames(page)
    assert _top(page, runs[20]) == top
    assert page.evaluate("scrollY") > 0
    button.click()
    expect(page.locator("tbody tr")).to_have_count(31)
    # The new ones are in view.
    expect(page.locator("tbody tr").first).to_be_in_viewport()


def test_workflows_jobs_and_audit_entries_are_announced(site: Site, ids: dict[str, str], page: Page) -> None:
    name = _name()
    body = {"task": "send_welcome", "payload": {"user_id": 1}, "every": "1d", "tags": [name]}
    cases = (
        (
            f"workflows?text={name}",
            "workflow",
            lambda number: site.workflow(f"{name} {number}", only={"seconds": 0}),
        ),
        (
            f"jobs?tag={name}",
            "job",
            lambda number: site.ask("POST", "v1/jobs", {**body, "name": f"{name} {number}"}),
        ),
        (
            f"jobs?kind=oneOff&text={name}",
            "job",
            lambda number: _later(site, name, 1),
        ),
        (
            "audit?action=queues.set",
            "change",
            lambda number: site.ask("PUT", "v1/queues/steady", {"concurrency": number + 1}),
        ),
    )
    for path, word, make in cases:
        for number in range(2):
            make(number)
        page.goto(path)
        before = _rows(page)
        assert len(before) >= 2, path
        page.locator(".row-link, .table a").first.focus()
        make(2)
        make(3)
        trigger_refresh(page)
        expect(page.get_by_role("button", name=f"2 new {word}s")).to_be_visible()
        assert _rows(page) == before, path
        page.get_by_role("button", name=f"2 new {word}s").click()
        expect(page.locator("tbody tr[data-row]")).to_have_count(len(before) + 2)


def test_queues_keep_their_order_while_their_load_changes(site: Site, ids: dict[str, str], page: Page) -> None:
    quiet, busy = f"a-{uuid.uuid4().hex[:8]}", f"z-{uuid.uuid4().hex[:8]}"
    for queue, count in ((quiet, 1), (busy, 2)):
        for _ in range(count):
            site.ask("POST", "v1/jobs", {"task": "unserved", "queue": queue})
    page.goto("queues")
    before = _rows(page)
    assert before.index(busy) < before.index(quiet)
    for _ in range(4):
        site.ask("POST", "v1/jobs", {"task": "unserved", "queue": quiet})
    trigger_refresh(page)
    expect(page.locator(f"#queue-{quiet} td.num").first).to_have_text("5")
    assert _rows(page) == before
    page.reload()
    after = _rows(page)
    assert after.index(quiet) < after.index(busy)
    for queue in (quiet, busy):
        site.ask("POST", "v1/bulk", {"action": "cancel", "target": "runs", "queue": queue})


def test_every_row_that_can_be_selected_has_an_id(site: Site, ids: dict[str, str], page: Page) -> None:
    for path in (
        "", "runs", f"runs/{ids['failed']}", "jobs", "jobs?kind=oneOff", f"jobs/{ids['job']}", "workflows",
        f"workflows/{ids['workflow']}", "dead-letters", "queues", "queues/reports", "workers", "schedulers", "tenants",
    ):  # fmt: skip
        page.goto(path)
        missing = page.locator("tr:has(.row-link):not([id])").evaluate_all("rows => rows.map((row) => row.outerHTML)")
        assert missing == [], path
        names = page.locator("tr[id]").evaluate_all("rows => rows.map((row) => row.id)")
        assert len(names) == len(set(names)), path


def test_a_refresh_on_its_way_does_not_take_back_the_rows_that_a_click_has_shown(
    site: Site, ids: dict[str, str], page: Page
) -> None:
    name = _name()
    _later(site, name, 2)
    page.goto(f"runs?text={name}")
    _later(site, name, 1)
    trigger_refresh(page)
    held: list[tuple[Route, APIResponse]] = []

    def hold_refreshes(route: Route) -> None:
        if "mainspring-rows" in route.request.headers:
            held.append((route, route.fetch()))
        else:
            route.continue_()

    page.route("**/runs?*", hold_refreshes)
    with page.expect_request(lambda request: "mainspring-rows" in request.headers):
        page.evaluate("() => htmx.trigger('#live', 'live')")
    page.get_by_role("button", name="1 new run").click()
    expect(page.locator("tbody tr")).to_have_count(3)
    route, answer = held[0]
    with page.expect_response("**/runs?*"):
        route.fulfill(response=answer)
    wait_for_frames(page)
    expect(page.locator("tbody tr")).to_have_count(3)
