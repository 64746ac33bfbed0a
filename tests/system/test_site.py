"""The documentation as a site: it builds without a warning, has a search, and loads nothing from other sites."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote, urljoin, urlsplit

import pytest
from playwright.sync_api import sync_playwright

from tools.links import ROOT, pages
from tools.site.sources import list_sections

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("site"), pytest.mark.timeout(900)]
NEEDED = ("sphinx", "myst_parser", "furo", "sphinx_copybutton", "sphinx_inline_tabs")
#: Elements whose attribute makes a browser load something.
LOADS = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "audio": "src",
    "video": "src",
    "embed": "src",
    "object": "data",
    "image": "href",
    "use": "href",
}
#: What people search for, and the page that must be first.
FIRST = {
    "authentication": "operate/authentication",
    "monitoring": "operate/monitoring",
    "rate limit": "guides/rate-limits",
    "deploy": "deploy/choosing-an-architecture",
    "troubleshoot": "operate/troubleshooting",
    "quickstart": "get-started/first-ten-minutes",
    "graceful shutdown": "concepts/workers-and-queues",
    "FAQ": "get-started/faq",
    "glossary": "concepts/glossary",
    "retry": "guides/retries",
    "backfill": "guides/explain",
    "dead letter": "guides/dead-letters",
    "priority": "concepts/workers-and-queues",
    "timeout": "guides/deadlines",
    "cron": "reference/schedules",
    "time zone": "reference/schedules",
    "exactly once": "guides/transactions",
    "idempotency": "guides/common-mistakes",
    "high availability": "operate/availability",
    "scaling": "operate/scaling",
}
#: Relations of links that a browser does not load.
NAMES = {"canonical", "next", "prev", "search", "index", "author", "license"}
_OUTSIDE = re.compile(r"(?:https?:)?//", re.IGNORECASE)
_IN_STYLES = re.compile(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        message = f"{', '.join(missing)} not installed: make docs does it"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    folder = tmp_path_factory.mktemp("docs") / "site"
    done = subprocess.run(
        [sys.executable, "-m", "tools.site.build", str(folder)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return folder


class Loading(HTMLParser):
    """Collects the addresses that a browser loads for a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "link" and not NAMES & set(given.get("rel", "").split()):
            self.found.append(given.get("href", ""))
        elif tag == "meta" and given.get("http-equiv", "").lower() == "refresh":
            self.found.append(given.get("content", "").rpartition("=")[2])
        elif tag in LOADS:
            self.found += [given[name] for name in (LOADS[tag], "srcset") if name in given]
        if "style" in given:
            self.found += find_in_styles(given["style"])


def find_in_styles(text: str) -> list[str]:
    return [first or second for first, second in _IN_STYLES.findall(text)]


def test_every_page_of_the_repository_is_in_the_site_and_its_navigation_once(site: Path) -> None:
    found = [page for group in list_sections(ROOT).values() for page in group]
    assert len(found) == len(set(found))
    assert set(found) == set(pages()) - {ROOT / "README.md", ROOT / "docs/README.md"}
    index = (site / "index.html").read_text()
    for page in found:
        path = page.relative_to(ROOT).with_suffix(".html")
        assert (site / path).is_file()
        assert f'href="{path.as_posix()}"' in index, path


def test_no_page_loads_anything_from_another_site(site: Path) -> None:
    read = 0
    for page in site.rglob("*.html"):
        loading = Loading()
        text = page.read_text()
        loading.feed(text)
        loading.found += [
            name for style in re.findall(r"<style[^>]*>(.*?)</style>", text, re.S) for name in find_in_styles(style)
        ]
        assert [name for name in loading.found if _OUTSIDE.match(name)] == [], page
        for name in loading.found:
            path = urlsplit(name).path
            if path and not name.startswith("data:"):
                assert (page.parent / path).resolve().is_file(), (page, name)
                read += 1
    assert read > 5 * len(pages())
    for style in site.rglob("*.css"):
        assert [name for name in find_in_styles(style.read_text()) if _OUTSIDE.match(name)] == [], style


def test_the_first_page_loads_less_than_300_kb(site: Path) -> None:
    loading = Loading()
    loading.feed((site / "index.html").read_text())
    files = {(site / urlsplit(name).path).resolve() for name in loading.found if urlsplit(name).path}
    assert sum(file.stat().st_size for file in (site / "index.html", *files)) < 300_000


def test_the_check_finds_a_font_from_another_site() -> None:
    loading = Loading()
    loading.feed('<link rel="stylesheet" href="https://fonts.example/a.css"><p style="background: url(//x.example/a)">')
    assert loading.found == ["https://fonts.example/a.css", "//x.example/a"]
    assert find_in_styles("@import 'https://x.example/a.css';") == ["https://x.example/a.css"]


def test_every_runbook_that_an_alert_links_to_exists(site: Path) -> None:
    text = (ROOT / "deploy" / "prometheus" / "alerts.rules.yml").read_text()
    names = re.findall(r"runbook_url: '\{\{ \$externalLabels\.runbooks \}\}/(.*)'", text)
    assert len(names) == text.count("- alert: ")
    for name in names:
        assert (site / "docs" / "operate" / "runbooks" / name).is_file(), name


def test_sequence_diagrams_are_rendered_as_pictures(site: Path) -> None:
    text = (site / "docs" / "design" / "sequence-diagrams.html").read_text()
    assert text.count('<svg class="sequence"') == 5
    assert "sequenceDiagram" not in text


class Quiet(SimpleHTTPRequestHandler):
    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        pass


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_a_browser_requests_only_the_site_and_its_search_finds_pages_by_their_titles(
    address: str, address_of: Callable[[str], str]
) -> None:
    asked: list[str] = []
    complaints: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=address_of("chromium"), args=["--no-sandbox"])
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        # The search reads its results for their summaries until the next page is opened.
        page.on("requestfailed", lambda request: complaints.append(f"{request.url}: {request.failure}"))
        for path in ("index.html", "docs/design/sequence-diagrams.html", "docs/reference/api.html"):
            page.goto(urljoin(address, path))
        page.goto(urljoin(address, "search.html?q=rendezvous"))
        page.wait_for_selector("ul.search a[href*='architecture']", timeout=120_000)
        found = {}
        for words in FIRST:
            page.goto(urljoin(address, f"search.html?q={quote(words)}"))
            page.wait_for_selector("ul.search li a", timeout=120_000)
            found[words] = str(page.locator("ul.search li a").first.get_attribute("href"))
        browser.close()
    assert {words: re.split(r"docs/|\.html", href)[1] for words, href in found.items()} == FIRST
    assert {urlsplit(url).netloc for url in asked if not url.startswith("data:")} == {urlsplit(address).netloc}
    assert [words for words in complaints if not words.endswith(": net::ERR_ABORTED")] == []
