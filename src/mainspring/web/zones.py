"""The time zone of the viewer, which the dashboard's scripts keep in a cookie."""

from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from urllib.parse import unquote
from zoneinfo import ZoneInfo

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.schedules.cron import load_zone

_COOKIE = "mainspring_zone"


def read_zone(headers: Mapping[str, str]) -> ZoneInfo:
    """Return the zone of the cookie. UTC if there is none, or an unknown one."""
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get(_COOKIE)
        return load_zone(unquote(cookie.value) if cookie else "UTC")
    except (CookieError, Invalid):
        return load_zone("UTC")
