"""Redis addresses in the settings: one server, the master of a Sentinel group, or a cluster."""

import re
from typing import Literal
from urllib.parse import unquote

import msgspec

from mainspring.core.model.base.addresses import Tls, read_node, read_options
from mainspring.core.model.base.errors import Invalid

_PORTS = {"": 6379, "sentinel": 26_379, "cluster": 6379}
_HINT = "redis://host:6379/0, redis+sentinel://host,host,host/master/0 or redis+cluster://host,host,host"
_SHAPE = re.compile(
    r"redis(?P<tls>s?)(?:\+(?P<kind>sentinel|cluster))?://(?:(?P<who>[^/@]*)@)?(?P<nodes>[^/?#]+)"
    r"(?P<path>/[^?#]*)?(?:\?(?P<options>[^#]*))?"
)
_MASTER = re.compile(r"[A-Za-z0-9_.-]{1,100}")


class RedisAddress(msgspec.Struct, frozen=True, kw_only=True):
    kind: Literal["server", "sentinel", "cluster"]
    #: The Sentinels, or some nodes of a cluster.
    nodes: tuple[tuple[str, int], ...]
    #: The name of the master in the Sentinels' configuration.
    master: str = ""
    database: int = 0
    username: str | None = None
    password: str | None = None
    #: None: no encryption.
    tls: Tls | None = None

    def __repr__(self) -> str:
        return f"RedisAddress({self.kind}, {self.nodes})"


def is_redis(text: str) -> bool:
    return text.startswith(("redis://", "rediss://", "redis+", "rediss+"))


def parse_redis(text: str, field: str) -> RedisAddress:
    found = _SHAPE.fullmatch(text)
    if found is None:
        # The message must not repeat the address: it could contain a password.
        raise Invalid(field, "is not the address of a Redis", _HINT)
    kind = found["kind"] or ""
    nodes = tuple(read_node(field, word.strip(), _PORTS[kind]) for word in found["nodes"].split(","))
    master, database = _read_path(field, kind, (found["path"] or "/").removeprefix("/"))
    if not kind and len(nodes) > 1:
        raise Invalid(field, "names several servers of Redis", _HINT)
    tls, _ = read_options(field, found["options"] or "", _HINT, tls=bool(found["tls"]))
    name, _, password = (found["who"] or "").partition(":")
    return RedisAddress(
        kind="server" if kind == "" else "sentinel" if kind == "sentinel" else "cluster",
        nodes=nodes,
        master=master,
        database=database,
        username=unquote(name) or None,
        password=unquote(password) or None,
        tls=tls,
    )


def _read_path(field: str, kind: str, path: str) -> tuple[str, int]:
    """Return the name of the master, and the number of the database."""
    master = ""
    if kind == "sentinel":
        master, _, path = path.partition("/")
        if not _MASTER.fullmatch(master):
            raise Invalid(field, "does not say what Sentinels call the master", _HINT)
    if kind == "cluster" and path:
        raise Invalid(field, "names a database, and a cluster has one alone", _HINT)
    if path and not (path.isascii() and path.isdecimal()):
        raise Invalid(field, f"{path!r:.80} is not the number of a database", _HINT)
    return master, int(path or 0)
