"""``make screenshots``: every page of the dashboard, wide and narrow, light and dark, with something going on.

python -m tools.screenshots [FOLDER] [PAGE …]
"""

import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from mainspring.config.sections.events import NotificationsSection
from tests.support.processes import free_port
from tests.support.ui_site import Site
from tools.services import ServiceUnavailable, ensure

#: Long enough for a few bars in every strip and chart.
_LIVED_SECONDS = 30
_NARROW = 390
_SIZES = ((1440, 900), (_NARROW, 844))
#: So that a week has a shape.
_SCHEDULES = {
    "stream_prices": "* * 8-17 * * MON-FRI",
    "settle_payments": "0 */15 6-22 * * *",
    "send_digests": "*/2 0-30 7 * * MON-FRI",
    "rebuild_search": "0 30 2 * * *",
    "close_the_books": "*/3 * 23 * * *",
}
_PAGES = {
    "overview": "",
    "runs": "runs",
    "run-failed": "runs/{failed}",
    "run-running": "runs/{running}",
    "run-scheduled": "runs/{later}",
    "runs-cancel-all": "runs/cancel-all?status=scheduled",
    "runs-retry-all": "runs/retry-all?status=failed",
    "jobs": "jobs",
    "jobs-one-off": "jobs?kind=oneOff",
    "jobs-pause-all": "jobs/all?action=pause",
    "jobs-cancel-some": "jobs/all?action=cancel&text=send",
    "job": "jobs/{job}",
    "job-new": "jobs/new",
    "job-edit": "jobs/{job}/edit",
    "workflows": "workflows",
    "workflow": "workflows/{workflow}",
    "workflow-running": "workflows/{wide}",
    "calendar": "calendar",
    "calendar-day": "calendar?view=day",
    "dead-letters": "dead-letters",
    "dead-letter-group": "dead-letters/{fingerprint}?task=charge_card",
    "replay": "dead-letters/replay?task=charge_card",
    "replay-under-way": "dead-letters/replays/{replay}",
    "discard": "dead-letters/discard?task=charge_card",
    "queues": "queues",
    "queue": "queues/reports",
    "workers": "workers",
    "worker": "workers/{worker}",
    "schedulers": "schedulers",
    "datacenters": "datacenters",
    "notifications": "notifications",
    "tenants": "tenants",
    "tenant": "tenants/default",
    "audit": "audit",
    "keys": "keys",
    "key": "keys/{key}",
    "new-key": "keys/new",
    "system": "system",
    "nothing-found": "runs?text=nothing-like-it",
    "missing": "nowhere",
}
_ROOT = Path(__file__).parents[1]
#: Tracebacks name the folder of the checkout.
_HIDE_FOLDER = """(folder) => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) texts.currentNode.data = texts.currentNode.data.replaceAll(folder, "/srv/shop");
}"""
#: Where one has to sign in.
_GUARDED = {"sign-in": "sign-in?to=runs"}
#: Gathered for longer than the pictures take: nothing is sent.
_NOTIFICATIONS = NotificationsSection(
    channels={
        "ops": ("slack", "secret=SLACK_URL", "group=1h", "quiet=22:00-07:00", "zone=Europe/Paris"),
        "mail": ("email", "server=localhost", "from=jobs@shop.example", "to=owner", "domain=shop.example", "group=1h"),
    },
    rules={
        "payments": ("on=dead", "on=recovered", "to=ops", "task=charge*", "urgent"),
        "everything": ("on=dead", "to=ops"),
    },
)


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".screenshots")
    wanted = sys.argv[2:] or [*_PAGES, *_GUARDED]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        chromium = ensure("chromium")
    except ServiceUnavailable as error:
        sys.exit(str(error))
    with tempfile.TemporaryDirectory() as scratch:
        site = Site(f"{scratch}/mainspring.db", free_port(), notifications=_NOTIFICATIONS)
        guarded = Site(f"{scratch}/guarded.db", free_port(), auth=True)
        # The last to start is the one that the application submits to.
        guarded.start()
        site.start()
        try:
            ids = {**site.seed(nasty=False), **_more(site)}
            for name, expression in _SCHEDULES.items():
                said = {"task": "send_welcome", "queue": "mail", "payload": {"user_id": 1}, "timezone": "Europe/Paris"}
                site.ask("POST", "v1/jobs", {**said, "name": name, "cronExpression": expression})
            time.sleep(_LIVED_SECONDS)
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
                for name in wanted:
                    if name in _GUARDED:
                        _take(browser, guarded, folder, name, _GUARDED[name])
                    else:
                        _take(browser, site, folder, name, _PAGES[name].format(**ids))
                browser.close()
        finally:
            guarded.stop()
            site.stop()
    print(f"{len(wanted) * 4} pictures in {folder}")


def _more(site: Site) -> dict[str, str]:
    """Something for the pages of operations; the ids of what they show."""
    for pages in range(4):
        site.submit("export_orders", {"pages": 300 + pages}, limits=[{"key": "exports", "most": 2}])
    site.ask("PUT", "v1/queues/reports", {"concurrency": 8, "fair": True, "shares": {"acme": 3}, "retries": "100/m"})
    site.ask("PUT", "v1/tenants", {"name": "acme", "quotas": {"jobs": 100, "running": 20}})
    site.ask("PUT", "v1/budgets/compute", {"unit": "wall", "limit": 60})
    said = {"name": "the shop", "role": "submitter", "tenant": "acme", "expiresIn": "90d"}
    key = site.ask("POST", "v1/keys", said)["keyId"]
    [group] = site.ask("GET", "v1/dead-letters?task=charge_card")["items"]
    # So slow that it is still under way when its picture is taken.
    slow = {"fingerprint": group["fingerprint"], "perSecond": 0.01}
    return {
        "key": key,
        "replay": site.ask("POST", "v1/dead-letters/replays", slow)["replayId"],
        "fingerprint": group["fingerprint"],
        "worker": site.ask("GET", "v1/workers")["items"][0]["workerId"],
    }


def _take(browser: Browser, site: Site, folder: Path, name: str, path: str) -> None:
    for width, height in _SIZES:
        for theme in ("light", "dark"):
            context = browser.new_context(
                viewport={"width": width, "height": height},
                color_scheme="dark" if theme == "dark" else "light",
                base_url=site.url,
            )
            page = context.new_page()
            page.goto(path)
            page.wait_for_timeout(600)
            show_whole(page)
            page.evaluate(_HIDE_FOLDER, str(_ROOT))
            page.screenshot(path=folder / f"{name}-{width}-{theme}.png", full_page=True)
            context.close()


def show_whole(page: Page) -> None:
    """On a screen as high as the page: the bar of a phone stays at its end, and covers nothing in the middle."""
    size = page.viewport_size
    if size is not None and size["width"] <= _NARROW:
        high = page.evaluate("document.documentElement.scrollHeight")
        page.set_viewport_size({**size, "height": max(high, size["height"])})


if __name__ == "__main__":
    main()
