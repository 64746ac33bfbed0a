"""The pages of workflows: search, graph, live updates, cancel, retry."""

import re
from typing import Any

from playwright.sync_api import Page, expect

from tests.support.ui_site import Site


def test_the_graph_of_a_workflow_shows_the_state_of_each_node(site: Site, ids: dict[str, str], page: Page) -> None:
    page.goto("workflows")
    row = page.locator("tr", has_text="nightly_close")
    expect(row.locator(".badge")).to_have_text("failed")
    row.locator(".row-link").click()
    expect(page.locator("h1")).to_have_text("nightly_close")
    expect(page.locator(".dag .node")).to_have_count(8)
    expect(page.locator(".dag .node.is-succeeded")).to_have_count(5)
    expect(page.locator(".dag .edges path")).to_have_count(8)
    expect(page.get_by_label("stock: failed")).to_be_visible()
    expect(page.locator(".gantt li")).to_have_count(6)
    expect(page.get_by_label("Nodes", exact=True)).to_contain_text("parent stock failed")
    failed = page.get_by_label("Nodes", exact=True).locator("tr", has_text="stock").first
    expect(failed.locator(".sub").first).to_have_text("RuntimeError: the warehouse did not answer")
    page.get_by_role("link", name="1 failed").click()
    expect(page.get_by_label("Nodes", exact=True).locator("tbody tr")).to_have_count(1)
    page.get_by_label("stock: failed").click()
    expect(page).to_have_url(re.compile("/runs/[0-9a-f]{32}"))
    expect(page.get_by_label("Error", exact=True).locator(".code")).to_contain_text("the warehouse did not answer")
    page.get_by_label("Details").get_by_role("link", name="nightly_close").click()
    expect(page).to_have_url(re.compile(f"/workflows/{ids['workflow']}"))


def test_a_wide_layer_is_drawn_as_one_box(site: Site, ids: dict[str, str], page: Page) -> None:
    page.goto(f"workflows/{ids['wide']}")
    expect(page.locator(".dag .node")).to_have_count(4)
    expect(page.locator(".dag")).to_contain_text("20 nodes")
    expect(page.locator(".head .badge")).to_have_text("running")


def test_the_graph_of_a_large_workflow_shows_its_relevant_nodes(site: Site, ids: dict[str, str], page: Page) -> None:
    fail: dict[str, dict[str, Any]] = {"first": {"fails": "no luck"}, "after it": {"after": ["first"]}}
    rest: dict[str, dict[str, Any]] = {f"later {number}": {"after": ["gate"]} for number in range(230)}
    workflow = site.workflow("a large one", gate={"seconds": 7_200}, **rest, **fail, end={"after": ["later 229"]})
    page.goto(f"workflows/{workflow}")
    expect(page.get_by_label("first: failed")).to_be_visible()
    expect(page.get_by_label("after it: skipped")).to_be_visible()
    expect(page.get_by_label("gate: running")).to_be_visible()
    graph = page.get_by_label("Graph", exact=True)
    expect(graph).to_contain_text("Showing 200 of 234 nodes")
    page.get_by_label("Show neighbors of first").click()
    expect(page.locator(".dag .node")).to_have_count(2)
    expect(graph).to_contain_text("the neighbors of first")
    graph.get_by_role("link", name="Failed, running and waiting").click()
    # The count of a state covers all nodes and links to all of them.
    page.get_by_role("link", name="231 blocked").click()
    expect(page.get_by_label("Nodes", exact=True).locator("tbody .badge").first).to_have_text("blocked")
    graph.get_by_role("link", name="All runs that are blocked").click()
    expect(page).to_have_url(re.compile("/runs[?]tag=workflow"))
    expect(page.locator("tbody tr")).to_have_count(50)
    expect(page.get_by_role("link", name="Older")).to_be_visible()
    site.ask("POST", f"v1/workflows/{workflow}/cancel")


def test_a_workflow_is_followed_cancelled_and_retried(site: Site, ids: dict[str, str], page: Page) -> None:
    workflow = site.workflow(
        "followed", first={"seconds": 0.2}, second={"seconds": 7_200, "after": ["first"]}, third={"after": ["second"]}
    )
    page.goto(f"workflows/{workflow}")
    expect(page.get_by_label("second: running")).to_be_visible()
    page.get_by_role("button", name="Cancel").first.click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel workflow").click()
    expect(page.locator(".toast")).to_contain_text("2 nodes cancelled")
    expect(page.locator(".head .badge")).to_have_text("cancelled")
    # Reload the page of the cancelled workflow.
    page.reload()
    page.get_by_role("button", name="Retry failed nodes").click()
    expect(page.locator(".toast").last).to_contain_text("2 nodes retried")
    expect(page.get_by_label("second: running")).to_be_visible()
    expect(page.get_by_label("first: succeeded")).to_be_visible()
    # The retried workflow can be cancelled again.
    page.get_by_role("button", name="Cancel").first.click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel workflow").click()
    expect(page.locator(".head .badge")).to_have_text("cancelled")
