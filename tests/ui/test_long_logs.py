"""A run with a long log: the page shows its last lines first, and follows new ones."""

import re

from playwright.sync_api import Page, expect

from mainspring.core.model.base.ids import RunId
from mainspring.core.ports.storage.catalog import LogReport
from tests.support.ui_site import Site
from tests.ui.conftest import wait_for_frames


class Printing:
    """A run whose log lines the test writes."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.id = site.submit("print_nothing", {"seconds": 7_200})
        site.wait_for_state(self.id, "running")
        assert site.node is not None
        self._store = site.node.runtime.store
        [view] = site.do(self._store.runs([RunId(self.id)]))
        self._fence = view.fence
        self._printed = 0

    def lines(self, count: int, in_a_piece: int = 1) -> None:
        texts = [f"line {number}" for number in range(self._printed, self._printed + count)]
        self._printed += count
        pieces = ["\n".join(texts[at : at + in_a_piece]) for at in range(0, count, in_a_piece)]
        for at in range(0, len(pieces), 1_000):
            reports = [LogReport(run=RunId(self.id), fence=self._fence, text=text) for text in pieces[at : at + 1_000]]
            assert all(self._site.do(self._store.append_log(reports)))

    def stop(self) -> None:
        self._site.ask("POST", f"v1/runs/{self.id}/cancel")


def numbers(page: Page) -> list[int]:
    texts: list[str] = page.locator(".log .line").all_text_contents()
    return [int(text.rpartition("line ")[2]) for text in texts]


def test_a_long_log_begins_at_its_end(site: Site, page: Page) -> None:
    run = Printing(site)
    run.lines(6_000)
    page.goto(f"runs/{run.id}")
    expect(page.locator(".log .line").last).to_contain_text("line 5999")
    page.locator(".log").scroll_into_view_if_needed()
    expect(page.locator(".log .line").last).to_be_in_viewport()
    assert numbers(page) == list(range(5_500, 6_000))
    run.lines(300)
    expect(page.locator(".log .line").last).to_contain_text("line 6299")
    expect(page.locator(".log .line").last).to_be_in_viewport()
    # In the time zone of the browser.
    expect(page.locator(".log time").last).to_have_attribute("title", re.compile("GMT[+][12]|CES?T"))
    assert page.request.get(f"runs/{run.id}/log.txt").text().count("\n") == 6_300
    run.stop()


def test_a_button_loads_earlier_lines(site: Site, page: Page) -> None:
    run = Printing(site)
    run.lines(1_200)
    page.goto(f"runs/{run.id}")
    earlier = page.get_by_role("button", name="Earlier lines")
    earlier.click()
    expect(page.locator(".log .line")).to_have_count(1_000)
    # The lines that were in view stay in view.
    expect(page.locator(".log .line", has_text="line 700")).to_be_in_viewport()
    expect(page.locator(".log .line").first).not_to_be_in_viewport()
    earlier.click()
    expect(page.locator(".log .line")).to_have_count(1_200)
    expect(earlier).to_be_hidden()
    assert numbers(page) == list(range(1_200))
    run.stop()


def test_a_very_long_log_drops_its_oldest_lines(site: Site, page: Page) -> None:
    run = Printing(site)
    run.lines(10)
    page.goto(f"runs/{run.id}")
    expect(page.locator(".log .line")).to_have_count(10)
    expect(page.get_by_role("button", name="Earlier lines")).to_be_hidden()
    run.lines(7_000)
    expect(page.locator(".log .line").last).to_contain_text("line 7009")
    wait_for_frames(page)
    found = numbers(page)
    assert 4_000 < len(found) <= 5_000
    assert found == list(range(found[0], 7_010))
    page.get_by_role("button", name="Earlier lines").click()
    expect(page.locator(".log .line")).to_have_count(len(found) + 500)
    run.lines(10)
    expect(page.locator(".log .line").last).to_contain_text("line 7019")
    # Lines that the user asked for stay.
    assert numbers(page) == list(range(found[0] - 500, 7_020))
    run.stop()


def test_a_log_follows_its_end_until_the_user_scrolls_up(site: Site, page: Page) -> None:
    run = Printing(site)
    run.lines(100)
    page.goto(f"runs/{run.id}")
    expect(page.locator(".log .line")).to_have_count(100)
    page.locator(".log").scroll_into_view_if_needed()
    # The browser reports a scroll later, and lines may have been added by then.
    page.locator(".log").evaluate("""(log) => {
      const more = () => log.querySelector(".lines").append(...Array.from({ length: 50 }, () => {
        const line = log.querySelector(".line").cloneNode(true);
        line.textContent = "another";
        return line;
      }));
      more();
      log.scrollTop = log.scrollHeight;
      more();
    }""")
    wait_for_frames(page)
    run.lines(1)
    expect(page.locator(".log .line", has_text="line 100")).to_be_in_viewport()
    page.locator(".log").hover()
    page.mouse.wheel(0, -300)
    expect(page.locator(".log .line", has_text="line 100")).not_to_be_in_viewport()
    run.lines(1)
    expect(page.locator(".log .line", has_text="line 101")).to_be_attached()
    wait_for_frames(page)
    expect(page.locator(".log .line", has_text="line 101")).not_to_be_in_viewport()
    # A short search result does not count as being at the end.
    search = page.get_by_label("Search the lines shown")
    search.fill("line 7")
    expect(page.locator(".log .line:visible")).to_have_count(11)
    search.fill("")
    expect(page.locator(".log .line:visible")).to_have_count(202)
    wait_for_frames(page)
    expect(page.locator(".log .line", has_text="line 101")).not_to_be_in_viewport()
    page.locator(".log").hover()
    page.mouse.wheel(0, 10_000)
    expect(page.locator(".log .line", has_text="line 101")).to_be_in_viewport()
    run.lines(20)
    expect(page.locator(".log .line", has_text="line 121")).to_be_in_viewport()
    run.stop()


def test_log_chunks_of_many_lines_do_not_multiply_the_lines_shown(site: Site, page: Page) -> None:
    run = Printing(site)
    run.lines(4_000, in_a_piece=200)
    page.goto(f"runs/{run.id}")
    expect(page.locator(".log .line").last).to_contain_text("line 3999")
    assert numbers(page) == list(range(3_400, 4_000))
    run.lines(2_000, in_a_piece=200)
    expect(page.locator(".log .line").last).to_contain_text("line 5999")
    assert numbers(page) == list(range(3_400, 6_000))
    run.stop()


def test_the_search_counts_the_lines_shown(site: Site, page: Page) -> None:
    run = Printing(site)
    run.lines(800)
    page.goto(f"runs/{run.id}")
    search = page.get_by_label("Search the lines shown")
    search.fill("line 79")
    expect(page.locator(".log .line:visible")).to_have_count(10)
    expect(page.get_by_text("10 of 500 lines shown")).to_be_visible()
    run.lines(2)
    expect(page.get_by_text("10 of 502 lines shown")).to_be_visible()
    search.fill("line 801")
    expect(page.locator(".log .line:visible")).to_have_count(1)
    search.fill("")
    expect(page.locator(".log .line:visible")).to_have_count(502)
    run.stop()
