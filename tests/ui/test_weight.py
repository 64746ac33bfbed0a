"""No page is heavy, even with an empty browser cache. ``tools/first_paint.py`` measures how fast pages appear."""

from playwright.sync_api import Browser

from tests.support.ui_site import Site
from tools.first_paint import PAGES, weigh

_HEAVIEST = 200_000


def test_no_page_is_heavy(site: Site, ids: dict[str, str], browser: Browser) -> None:
    # The size of a page does not depend on the store.
    paths = PAGES if site.embedded else PAGES[:1]
    sizes = {path: weigh(browser, site, path.format(**ids))[0] for path in paths}
    assert {path: size for path, size in sizes.items() if not 0 < size < _HEAVIEST} == {}
