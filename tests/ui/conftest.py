"""The dashboard in a real browser, on the real API.

A console error, a violation of the content security policy or a request to another host fails any test.
"""

import asyncio
import uuid
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Playwright, expect, sync_playwright

from tests.support.databases import create_database, drop_database, migrated_template, with_database
from tests.support.processes import free_port
from tests.support.ui_site import SITE_SHARDS, Site
from tests.support.waiting import DEADLINE_SECONDS

#: Evaluated by the browser's own tools, because the content security policy allows no other script.
AXE = (resources.files("axe_playwright_python") / "axe.min.js").read_text()
#: Only a test that fails ever waits that long.
_DEADLINE_MS = 1_000 * DEADLINE_SECONDS
expect.set_options(timeout=_DEADLINE_MS)
#: Toasts disappear after some seconds. A busy machine may need longer to read one or to click its button.
_KEEP_TOASTS = """
const schedule = window.setTimeout;
const lifetimes = [7000, 12000, 20000];
window.setTimeout = (action, delay, ...rest) =>
  schedule(action, lifetimes.includes(delay) ? 3600000 : delay, ...rest);
"""


class _Chromium:
    """One browser for all tests of a process. Its context keeps what it has loaded.

    It is closed before the next test that does not use it: while it is open, an event loop runs in this thread, and no
    asynchronous test can run.
    """

    def __init__(self) -> None:
        self._playwright: Playwright | None = None
        self._browser: Browser | None = None
        self.contexts: dict[tuple[str, int, bool], BrowserContext] = {}

    def open(self, path: str) -> Browser:
        if self._browser is None:
            self._playwright = sync_playwright().start()
            self._browser = self._playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        return self._browser

    def close(self) -> None:
        self.contexts.clear()
        browser, playwright = self._browser, self._playwright
        self._browser = self._playwright = None
        try:
            if browser is not None:
                browser.close()
        finally:
            if playwright is not None:
                playwright.stop()


_chromium = _Chromium()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Iterator[None]:
    try:
        return (yield)
    finally:
        if nextitem is None or "browser" not in getattr(nextitem, "fixturenames", ()):
            _chromium.close()


@pytest.fixture(autouse=True)
def _no_task_outlives_its_test() -> None:
    """Playwright has an event loop of its own that is running in this thread, so no other can run in parallel."""


@pytest.fixture
def browser(address_of: Callable[[str], str]) -> Browser:
    return _chromium.open(address_of("chromium"))


def _run_in_thread(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run it in another thread, because the browser's event loop may run in this one."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, coroutine).result()


#: All tests of a store run in one process, so that its site and browser start only once.
_STORES = [
    pytest.param("sqlite", marks=pytest.mark.xdist_group("ui-sqlite")),
    pytest.param("postgres", marks=[pytest.mark.postgres, pytest.mark.xdist_group("ui-postgres")]),
]


@pytest.fixture(scope="session", params=_STORES)
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site without authentication."""
    if request.param == "sqlite":
        yield from _served(Site(str(tmp_path_factory.mktemp("ui") / "mainspring.db"), free_port()))
        return
    dsn = request.getfixturevalue("postgres_dsn")
    name = f"ui_{uuid.uuid4().hex}"
    _run_in_thread(_copy_template(dsn, name))
    try:
        yield from _served(Site(with_database(dsn, name), free_port()))
    finally:
        _run_in_thread(drop_database(dsn, name))


async def _copy_template(dsn: str, name: str) -> None:
    """Create a database that already has the schema."""
    await create_database(dsn, name, await migrated_template(dsn, SITE_SHARDS))


def _served(site: Site) -> Iterator[Site]:
    site.start()
    yield site
    site.stop()


@pytest.fixture(scope="session")
def ids(site: Site) -> dict[str, str]:
    return site.seed()


class Watched:
    """A page, and the errors that its console and its requests report."""

    def __init__(self, page: Page, origin: str) -> None:
        self.page = page
        self.complaints: list[str] = []
        #: Parts of errors that the test causes on purpose.
        self.allowed: list[str] = []
        page.on("console", lambda message: self._log(message.type, message.text))
        page.on("pageerror", lambda error: self.complaints.append(f"script error: {error}"))
        page.on(
            "request", lambda request: None if request.url.startswith((origin, "data:")) else self._foreign(request.url)
        )

    def _log(self, kind: str, text: str) -> None:
        if kind in ("error", "warning") and not any(words in text for words in self.allowed):
            self.complaints.append(f"console {kind}: {text}")

    def _foreign(self, url: str) -> None:
        self.complaints.append(f"a request to {url}")


@pytest.fixture
def watched(browser: Browser) -> Iterator[list[Watched]]:
    pages: list[Watched] = []
    yield pages
    for one in pages:
        if one.page.context in _chromium.contexts.values():
            # Other tests share the context.
            one.page.evaluate("localStorage.clear()")
            one.page.close()
        else:
            one.page.context.close()
    assert [complaint for one in pages for complaint in one.complaints] == []


def trigger_refresh(page: Page) -> None:
    """Make the page refresh its live part, and wait until it has."""
    page.evaluate("""() => new Promise((done) => {
      document.addEventListener("htmx:afterSettle", done, { once: true });
      htmx.trigger("#live", "live");
    })""")


def wait_for_frames(page: Page) -> None:
    """Wait until the page has handled everything that was pending: timers up to 50 ms, scroll events, a repaint."""
    page.evaluate("""() => new Promise((done) => setTimeout(
      () => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))), 50))""")


@pytest.fixture
def page(browser: Browser, site: Site, watched: list[Watched]) -> Page:
    return open_page(browser, site, watched)


def open_page(browser: Browser, site: Site, watched: list[Watched], *, width: int = 1280, dark: bool = False) -> Page:
    """Open a blank page. Of a site with sign-in each page has its own browser context, without cookies."""
    context = _chromium.contexts.get((site.url, width, dark))
    if context is None:
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            base_url=site.url,
            timezone_id="Europe/Paris",
        )
        context.set_default_timeout(_DEADLINE_MS)
        context.add_init_script(_KEEP_TOASTS)
        if not site.guarded:
            _chromium.contexts[site.url, width, dark] = context
    made = context.new_page()
    watched.append(Watched(made, site.url))
    return made


#: Rules of axe that depend on colors and layout.
_LAYOUT_RULES = ["color-contrast", "link-in-text-block", "scrollable-region-focusable"]
#: Rows of a table are alike: check only the first ones of a long table.
_CUT = "document.querySelectorAll('tbody tr:nth-child(n+13)').forEach((row) => row.remove())"


def serious_findings(page: Page, *, again: bool = False) -> list[str]:
    """Return the serious findings of axe. ``again``: axe has checked this page before, in another layout."""
    if not again:
        page.evaluate(f"{_CUT}; {AXE}; undefined")
    options = {"resultTypes": ["violations"], "preload": False, **({"runOnly": _LAYOUT_RULES} if again else {})}
    report = page.evaluate("(options) => axe.run(document, options)", options)
    return [
        f"{one['id']}: {one['nodes'][0]['html'][:160]}"
        for one in report["violations"]
        if one["impact"] in ("serious", "critical")
    ]


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site with sign-in."""
    folder: Path = tmp_path_factory.mktemp("guarded")
    yield from _served(Site(str(folder / "mainspring.db"), free_port(), auth=True))
