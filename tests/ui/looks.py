"""What every page must be: complete, no wider than the screen, accessible."""

from collections.abc import Iterable

import pytest
from playwright.sync_api import Browser, expect

from tests.support.ui_site import Site
from tests.ui.conftest import Watched, open_page, serious_findings

_WIDE, _NARROW = 1440, 390
#: For tests that open many pages.
LONG = pytest.mark.timeout(600)


def look_at(browser: Browser, site: Site, watched: list[Watched], paths: Iterable[str]) -> None:
    """Check each page wide and light, then narrow and dark.

    The look of a page does not depend on the store, so axe checks it on only one of them.
    """
    found: dict[str, list[str]] = {}
    page = open_page(browser, site, watched, width=_WIDE)
    for path in paths:
        page.emulate_media(color_scheme="light")
        page.set_viewport_size({"width": _WIDE, "height": 900})
        answer = page.goto(path)
        assert answer is not None, path
        assert answer.status == 200, path
        expect(page.locator("h1")).to_be_visible()
        assert page.title() != "owned", path
        if not site.embedded:
            continue
        for width, scheme in ((_WIDE, "light"), (_NARROW, "dark")):
            if scheme == "dark":
                page.emulate_media(color_scheme="dark")
                page.set_viewport_size({"width": width, "height": 844})
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{path} is wider than {width}"
            # The same elements in other colors and another layout.
            if problems := serious_findings(page, again=scheme == "dark"):
                found[f"{path} at {width}"] = problems
    assert not found, found
