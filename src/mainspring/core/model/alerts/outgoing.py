"""Checks of outgoing HTTP requests made for users, applied at submission and again before sending."""

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from mainspring.core.model.base.errors import Invalid

MAX_URL = 8 * 1024
MAX_HEADERS = 16 * 1024

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
#: These headers frame the message or address the next hop. Conflicting values allow request smuggling.
_OURS = frozenset({"accept-encoding", "connection", "content-length", "expect", "host", "keep-alive"}) | frozenset(
    {"te", "trailer", "transfer-encoding", "upgrade"}
)


def check_url(text: str, field: str = "url") -> None:
    """Refuse a URL that can never be called. The sender checks it again and may refuse more."""
    if len(text) > MAX_URL:
        raise Invalid(field, f"has {len(text)} characters", f"at most {MAX_URL}")
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise Invalid(field, f"cannot be read: {error}") from None
    if parts.scheme not in ("http", "https"):
        raise Invalid(field, "is not HTTP", "http:// or https://")
    if "@" in parts.netloc:
        raise Invalid(field, "holds credentials", "send them in a header")
    if not parts.netloc:
        raise Invalid(field, "names no host")


def checked_headers(headers: Mapping[str, str], field: str = "headers") -> dict[str, str]:
    checked: dict[str, str] = {}
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise Invalid(field, f"{name[:40]!r} is not a name of a header")
        if not _HEADER_VALUE.fullmatch(value):
            raise Invalid(field, f"the value of {name[:40]} holds what a header cannot hold", "one line of text")
        if name.lower() in _OURS or name.lower().startswith("proxy-"):
            raise Invalid(field, f"{name} is not yours to set")
        if name.lower() in (known.lower() for known in checked):
            raise Invalid(field, f"{name} is there twice")
        checked[name] = value
    if sum(len(name) + len(value) for name, value in checked.items()) > MAX_HEADERS:
        raise Invalid(field, "are too long", f"at most {MAX_HEADERS} characters together")
    return checked
