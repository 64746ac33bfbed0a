"""``python -m tools.first_paint``: what a browser that was never there loads of each page, and when it shows something.

On an embedded store, over loopback: what is measured is the page, not the network.
"""

import os
import sys
import tempfile
import time

from playwright.sync_api import Browser, sync_playwright

from tests.support.processes import free_port
from tests.support.ui_site import Site
from tools.services import ServiceUnavailable, ensure

PAGES = (
    "",
    "runs",
    "runs/{failed}",
    "jobs",
    "jobs/{job}",
    "jobs/new",
    "workflows/{workflow}",
    "calendar",
    "dead-letters",
    "queues",
    "workers",
    "tenants/default",
    "audit",
    "system",
)
_MEASURED = """() => {
    const loaded = [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")];
    const paint = performance.getEntriesByName("first-contentful-paint")[0];
    return [loaded.reduce((sum, one) => sum + one.transferSize, 0), paint ? paint.startTime : null];
}"""


def weigh(browser: Browser, site: Site, path: str) -> tuple[int, float]:
    """Bytes over the wire with headers, and milliseconds until the first paint."""
    context = browser.new_context(base_url=site.url)
    try:
        page = context.new_page()
        page.goto(path)
        # Not wait_for_function: what that asks a second time the page's own policy forbids.
        until = time.monotonic() + 20
        while not page.evaluate("performance.getEntriesByName('first-contentful-paint').length"):
            if time.monotonic() > until:
                raise TimeoutError(f"{path} shows nothing")
            page.wait_for_timeout(20)
        size, paint = page.evaluate(_MEASURED)
        return int(size), float(paint)
    finally:
        context.close()


def main() -> None:
    try:
        chromium = ensure("chromium")
    except ServiceUnavailable as error:
        sys.exit(str(error))
    with tempfile.TemporaryDirectory() as scratch:
        site = Site(f"{scratch}/mainspring.db", free_port())
        site.start()
        try:
            ids = site.seed()
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
                print(f"load {os.getloadavg()[0]:.1f}; bytes, first paint in ms")
                for path in PAGES:
                    size, paint = weigh(browser, site, path.format(**ids))
                    print(f"{path or 'overview':24} {size:8,} {paint:6.0f}", flush=True)
                browser.close()
        finally:
            site.stop()


if __name__ == "__main__":
    main()
