"""Parsing shared by the addresses of brokers and coordinators: nodes and query options."""

import re
from collections.abc import Collection
from urllib.parse import parse_qsl

import msgspec

from mainspring.core.model.base.errors import Invalid

_TLS_FILES = {"ssl_ca_certs", "ssl_certfile", "ssl_keyfile"}
_NODE = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[A-Za-z0-9_.-]+))(?::(?P<port>[0-9]{1,5}))?")


class Tls(msgspec.Struct, frozen=True, kw_only=True):
    """Files for TLS. Empty: the system's certificate authorities, and no client certificate."""

    authority: str = ""
    certificate: str = ""
    key: str = ""


def read_node(field: str, word: str, usual: int) -> tuple[str, int]:
    """Parse a host with its port, or with the default port."""
    found = _NODE.fullmatch(word)
    port = usual if found is None or found["port"] is None else int(found["port"])
    if found is None or not 1 <= port <= 65_535:
        raise Invalid(field, f"{word!r:.80} is not a host with its port", "for example 10.0.0.1:2379")
    return found["v6"] or found["host"], port


def read_options(
    field: str, rest: str, hint: str, *, tls: bool, others: Collection[str] = ()
) -> tuple[Tls | None, dict[str, str]]:
    """Parse the TLS files, if the scheme has TLS, and the ``others``. Unknown options are refused, not ignored."""
    options = dict(parse_qsl(rest, keep_blank_values=True))
    if unknown := options.keys() - {*others} - (_TLS_FILES if tls else set()):
        raise Invalid(field, f"has {min(unknown)!r:.40} at its end, which has no meaning", hint)
    if options.get("ssl_keyfile") and not options.get("ssl_certfile"):
        raise Invalid(field, "has 'ssl_keyfile' without the certificate it is for", "ssl_certfile=…&ssl_keyfile=…")
    authority, certificate, key = (options.pop(name, "") for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"))
    return Tls(authority=authority, certificate=certificate, key=key) if tls else None, options
