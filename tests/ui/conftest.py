"""The dashboard in a real browser, on the real API. A console error, a violation of the content security policy or a
request to anywhere else fails any test."""

import asyncio
import hashlib
import uuid
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Playwright, expect, sync_playwright

from mainspring.adapters.store.postgres import PostgresStore
from mainspring.adapters.store.postgres.database import PACKAGE
from tests.api.conftest import free_port
from tests.conftest import create_database, drop_database, make_template, with_database
from tests.support.ui_site import SITE_SHARDS, Site

#: Run in the page as the browser's own tools are: the policy of the page lets no script in.
AXE = (resources.files("axe_playwright_python") / "axe.min.js").read_text()
#: As everything that a page is asked: beside other tests a browser waits for a processor, too.
expect.set_options(timeout=20_000)
#: The first of each store makes a whole Mainspring with what is to be seen in it, and starts a browser.
_SECONDS = 240


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_SECONDS))


class _Chromium:
    """One for all tests of a process that use it, and closed before another test: while it is there, a loop runs in
    this thread, and no asynchronous test can. What it has loaded once it keeps, as a browser does."""

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


@pytest.fixture
def browser(address_of: Callable[[str], str]) -> Browser:
    return _chromium.open(address_of("chromium"))


def _apart(coroutine: Coroutine[Any, Any, None]) -> None:
    """In a thread of its own, for the same reason."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, coroutine).result()


#: One process for each store: a site and a browser are not started twice.
_STORES = [
    pytest.param("sqlite", marks=pytest.mark.xdist_group("ui-sqlite")),
    pytest.param("postgres", marks=[pytest.mark.postgres, pytest.mark.xdist_group("ui-postgres")]),
]


@pytest.fixture(scope="session", params=_STORES)
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Without authentication: everybody is local."""
    if request.param == "sqlite":
        yield from _served(Site(str(tmp_path_factory.mktemp("ui") / "mainspring.db"), free_port()))
        return
    dsn = request.getfixturevalue("postgres_dsn")
    name = f"ui_{uuid.uuid4().hex}"
    _apart(_copy_template(dsn, name))
    try:
        yield from _served(Site(with_database(dsn, name), free_port()))
    finally:
        _apart(drop_database(dsn, name))


async def _copy_template(dsn: str, name: str) -> None:
    """With its schema made."""

    async def prepare(address: str) -> None:
        store = PostgresStore(address, shards=SITE_SHARDS)
        await store.open()
        await store.close()

    migrations = sorted(resources.files(PACKAGE).joinpath("migrations").iterdir(), key=lambda entry: entry.name)
    digest = hashlib.sha256(b"".join(entry.read_bytes() for entry in migrations)).hexdigest()[:12]
    await create_database(dsn, name, await make_template(dsn, f"template_ui_{digest}", prepare))


def _served(site: Site) -> Iterator[Site]:
    site.start()
    yield site
    site.stop()


@pytest.fixture(scope="session")
def ids(site: Site) -> dict[str, str]:
    return site.seed()


class Watched:
    """A page, and what it complained about."""

    def __init__(self, page: Page, origin: str) -> None:
        self.page = page
        self.complaints: list[str] = []
        #: What a test does wrong on purpose.
        self.allowed: list[str] = []
        page.on("console", lambda said: self._heard(said.type, said.text))
        page.on("pageerror", lambda error: self.complaints.append(f"script error: {error}"))
        page.on("request", lambda asked: None if asked.url.startswith((origin, "data:")) else self._foreign(asked.url))

    def _heard(self, kind: str, text: str) -> None:
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
            # The choices of a viewer end with the test.
            one.page.evaluate("localStorage.clear()")
            one.page.close()
        else:
            one.page.context.close()
    assert [complaint for one in pages for complaint in one.complaints] == []


@pytest.fixture
def page(browser: Browser, site: Site, watched: list[Watched]) -> Page:
    return open_page(browser, site, watched)


def open_page(browser: Browser, site: Site, watched: list[Watched], *, width: int = 1280, dark: bool = False) -> Page:
    """Where one signs in, of a browser that has never been there."""
    context = _chromium.contexts.get((site.url, width, dark))
    if context is None:
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            base_url=site.url,
            timezone_id="Europe/Paris",
        )
        context.set_default_timeout(20_000)
        if not site.guarded:
            _chromium.contexts[site.url, width, dark] = context
    made = context.new_page()
    watched.append(Watched(made, site.url))
    return made


#: What depends on colours and places.
_OF_LOOKS = ["color-contrast", "link-in-text-block", "scrollable-region-focusable"]
#: Rows of a table are alike: of long ones the first are looked at.
_CUT = "document.querySelectorAll('tbody tr:nth-child(n+13)').forEach((row) => row.remove())"


def serious_findings(page: Page, *, again: bool = False) -> list[str]:
    """What axe says against it; ``again``: it was asked about this page before, which looks otherwise now."""
    if not again:
        page.evaluate(f"{_CUT}; {AXE}; undefined")
    options = {"resultTypes": ["violations"], "preload": False, **({"runOnly": _OF_LOOKS} if again else {})}
    report = page.evaluate("(options) => axe.run(document, options)", options)
    return [
        f"{one['id']}: {one['nodes'][0]['html'][:160]}"
        for one in report["violations"]
        if one["impact"] in ("serious", "critical")
    ]


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Where one signs in."""
    folder: Path = tmp_path_factory.mktemp("guarded")
    yield from _served(Site(str(folder / "mainspring.db"), free_port(), auth=True))
