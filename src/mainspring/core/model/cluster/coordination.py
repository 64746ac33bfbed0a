"""The coordinator that assigns shards to schedulers, as configured in the settings."""

import re
from urllib.parse import unquote

import msgspec

from mainspring.core.model.base.addresses import Tls, read_node, read_options
from mainspring.core.model.base.errors import Invalid

#: The store coordinates; no other service is needed.
STORE = "store"
_PORTS = {"redis": 6379, "rediss": 6379, "etcd": 2379, "etcds": 2379, "zookeeper": 2181, "zookeepers": 2281}
#: The schemes with TLS, and the kinds of coordinator that they select.
_WITH_TLS = {"rediss": "redis", "etcds": "etcd", "zookeepers": "zookeeper"}
_HINT = "store, redis://host:6379/0, etcd://host:2379,host:2379 or zookeeper://host:2181,host:2181"
_SHAPE = re.compile(
    r"(?P<scheme>[a-z]+)://(?:(?P<who>[^/@]*)@)?(?P<nodes>[^/?#]+)(?:/(?P<root>[^?#]*))?(?P<rest>[?#].*)?"
)
_ROOT = re.compile(r"[A-Za-z0-9_.-]{1,100}(/[A-Za-z0-9_.-]{1,100}){0,9}")


class CoordinatorAddress(msgspec.Struct, frozen=True, kw_only=True):
    """A coordinator outside the store, and how to connect to it."""

    kind: str
    url: str
    nodes: tuple[tuple[str, int], ...]
    #: The prefix of all keys; for Redis the database number.
    root: str = ""
    credentials: tuple[str, str] | None = None
    #: None: no encryption.
    tls: Tls | None = None


def read_coordination(text: str, field: str = "coordination") -> CoordinatorAddress | None:
    """Parse the setting. None: the store itself coordinates."""
    if text == STORE:
        return None
    found = _SHAPE.fullmatch(text)
    if found is None or found["scheme"] not in _PORTS:
        # The error omits the value: it may contain a password.
        raise Invalid(field, "names no known coordinator", _HINT)
    scheme = found["scheme"]
    kind = _WITH_TLS.get(scheme, scheme)
    nodes = tuple(read_node(field, word.strip(), _PORTS[scheme]) for word in found["nodes"].split(","))
    root, who = found["root"] or "", found["who"]
    tls, _ = read_options(field, (found["rest"] or "").removeprefix("?"), _HINT, tls=scheme != kind)
    if kind == "redis":
        if len(nodes) > 1:
            raise Invalid(field, "names several servers of Redis", "one: redis://host:6379/0")
        if root and not (root.isascii() and root.isdecimal()):
            raise Invalid(field, f"{root!r:.80} is not the number of a database", "for example redis://host:6379/0")
        return CoordinatorAddress(kind=kind, url=text, nodes=nodes, tls=tls)
    if root and not _ROOT.fullmatch(root):
        raise Invalid(
            field, f"{root!r:.80} cannot be what its keys are filed under", "for example etcd://host:2379/production"
        )
    name, colon, password = (who or "").partition(":")
    if who is not None and not (name and colon):
        raise Invalid(field, "has a user without a password", f"{scheme}://user:password@host:{_PORTS[scheme]}")
    credentials = (unquote(name), unquote(password)) if who is not None else None
    return CoordinatorAddress(
        kind=kind, url=text, nodes=nodes, root=root or "mainspring", credentials=credentials, tls=tls
    )
