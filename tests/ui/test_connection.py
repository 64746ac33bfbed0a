"""Pages while the server cannot be reached, and while a toast or the bulk bar is in use."""

import re

from playwright.sync_api import Page, expect

from mainspring.http.operation import DEFAULT_TIMEOUT
from tests.support.ui_site import Site
from tests.ui.conftest import Watched, wait_for_frames


def allow_failed_requests(watched: list[Watched]) -> None:
    watched[-1].allowed += [
        "ERR_FAILED",
        "ERR_INTERNET_DISCONNECTED",
        "htmx:sendError",
        "htmx:afterRequest",
        "htmx:timeout",
        "Response Status Error Code",
        "Failed to load resource",
    ]


def test_a_page_says_since_when_it_is_disconnected_and_recovers(
    site: Site, ids: dict[str, str], page: Page, watched: list[Watched]
) -> None:
    allow_failed_requests(watched)
    page.goto("queues")
    bar = page.locator("#disconnected")
    expect(bar).to_be_hidden()
    page.route("**/*", lambda route: route.abort())
    page.evaluate("htmx.trigger('#live', 'live')")
    expect(bar).to_have_text(re.compile(r"^Disconnected since \d\d:\d\d:\d\d – retrying$"))
    expect(page.locator("#live")).to_have_css("filter", "grayscale(1)")
    page.unroute("**/*")
    # It retries without being asked.
    expect(bar).to_be_hidden()
    expect(page.locator("#live")).to_have_css("filter", "none")


def test_an_action_without_an_answer_is_explained_and_its_dialog_closed(
    site: Site, ids: dict[str, str], page: Page, watched: list[Watched]
) -> None:
    allow_failed_requests(watched)
    page.goto("queues/payments")
    page.get_by_role("button", name="Pause").first.click()
    page.route("**/*", lambda route: route.abort())
    page.locator("dialog[open]").get_by_role("button", name="Pause").click()
    expect(page.locator(".toast.is-bad")).to_contain_text("The server did not answer")
    expect(page.locator("dialog[open]")).to_have_count(0)
    expect(page.locator("#disconnected")).to_be_visible()
    page.unroute("**/*")


def answer_as_a_proxy(page: Page) -> None:
    page.route("**/*", lambda route: route.fulfill(status=502, content_type="text/html", body="<h1>Bad Gateway</h1>"))


def test_a_page_stays_when_a_proxy_answers_for_the_server(
    site: Site, ids: dict[str, str], page: Page, watched: list[Watched]
) -> None:
    allow_failed_requests(watched)
    page.goto("queues")
    answer_as_a_proxy(page)
    page.evaluate("htmx.trigger('#live', 'live')")
    expect(page.locator("#disconnected")).to_be_visible()
    expect(page.locator("#live tbody tr").first).to_be_visible()
    page.unroute("**/*")
    expect(page.locator("#disconnected")).to_be_hidden()


def test_an_action_that_a_proxy_answers_is_explained_and_its_dialog_closed(
    site: Site, ids: dict[str, str], page: Page, watched: list[Watched]
) -> None:
    allow_failed_requests(watched)
    page.goto("queues/payments")
    page.get_by_role("button", name="Pause").first.click()
    answer_as_a_proxy(page)
    page.locator("dialog[open]").get_by_role("button", name="Pause").click()
    expect(page.locator(".toast.is-bad")).to_contain_text("The server did not answer")
    expect(page.locator("dialog[open]")).to_have_count(0)
    expect(page.get_by_role("heading", name="payments")).to_be_visible()
    page.unroute("**/*")


def test_a_server_without_its_store_counts_as_disconnected(
    site: Site, ids: dict[str, str], page: Page, watched: list[Watched]
) -> None:
    """The figures of the page are then as old as without a server."""
    allow_failed_requests(watched)
    page.goto("queues")
    page.route("**/*", lambda route: route.fulfill(status=503, headers={"hx-reswap": "none"}))
    page.evaluate("htmx.trigger('#live', 'live')")
    expect(page.locator("#disconnected")).to_be_visible()
    page.unroute("**/*")
    expect(page.locator("#disconnected")).to_be_hidden()


def test_a_server_that_never_answers_counts_as_disconnected(
    site: Site, ids: dict[str, str], page: Page, watched: list[Watched]
) -> None:
    allow_failed_requests(watched)
    page.goto("queues")
    # The server times out earlier and reports it.
    assert page.evaluate("htmx.config.timeout") > DEFAULT_TIMEOUT * 1000
    page.evaluate("htmx.config.timeout = 1")
    page.route("**/*", lambda route: None)
    page.evaluate("htmx.trigger('#live', 'live')")
    expect(page.locator("#disconnected")).to_be_visible()
    page.unroute("**/*")


def test_the_bulk_bar_is_in_view_below_a_long_list(site: Site, ids: dict[str, str], page: Page) -> None:
    page.goto("runs")
    assert page.locator("tbody tr").count() > 20
    page.locator(".pick").first.check()
    expect(page.locator(".picked")).to_be_in_viewport(ratio=1)


#: Keeps the pending lifetimes of toasts with a button, so that a test can let them end.
_LIFETIMES = """
const [schedule, cancel] = [window.setTimeout, window.clearTimeout];
window.lifetimes = new Map();
window.setTimeout = (action, delay, ...rest) => {
  const timer = schedule(action, delay, ...rest);
  if (delay === 20000) window.lifetimes.set(timer, action);
  return timer;
};
window.clearTimeout = (timer) => { window.lifetimes.delete(timer); cancel(timer); };
"""


def test_an_undo_toast_stays_under_the_pointer_and_with_the_focus(site: Site, ids: dict[str, str], page: Page) -> None:
    page.add_init_script(_LIFETIMES)
    page.goto("queues/payments")
    page.evaluate("""() => document.getElementById("toasts").insertAdjacentHTML("beforeend",
      "<div class='toast'><p>Paused.</p><button class='button'>Undo</button></div>")""")
    toast = page.locator(".toast")
    page.wait_for_function("lifetimes.size === 1")
    toast.hover()
    page.wait_for_function("lifetimes.size === 0")
    toast.get_by_role("button").focus()
    page.mouse.move(0, 0)
    wait_for_frames(page)
    assert page.evaluate("lifetimes.size") == 0
    page.evaluate("document.activeElement.blur()")
    page.wait_for_function("lifetimes.size === 1")
    page.evaluate("for (const end of lifetimes.values()) end()")
    expect(toast).to_have_count(0)
