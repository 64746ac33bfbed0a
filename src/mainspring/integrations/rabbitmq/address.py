"""How a broker of AMQP is reached, as it is written in the settings, and what queues are made in it."""

import re
from collections.abc import Mapping
from typing import Literal
from urllib.parse import unquote

import msgspec

from mainspring.core.model.base.addresses import Tls, read_node, read_options
from mainspring.core.model.base.errors import Invalid

SCHEMES = ("amqp://", "amqps://")
_PORTS = {"amqp": 5672, "amqps": 5671}
_HINT = "amqp://user:password@host:5672,host:5672/vhost?kind=quorum"
_SHAPE = re.compile(
    r"(?P<scheme>amqps?)://(?:(?P<who>[^/@]*)@)?(?P<nodes>[^/?#@]+)(?:/(?P<vhost>[^/?#]*))?(?:\?(?P<rest>[^#]*))?"
)
_LONGEST_VHOST = 127
#: Whom a broker knows when it is new, and lets in from its own machine alone.
_ANYBODY = "guest:guest"
#: AMQP allows 255 bytes; what stands for a placeholder has 64 at most.
_TEMPLATE = re.compile(r"[A-Za-z0-9_.:@-]{1,60}")
_PLACEHOLDERS = re.compile(r"\{(?:store|queue|priority)\}")
_TEMPLATE_HINT = "letters, digits, . _ : @ - and {queue}, {priority}, {store}, as in {queue}.priority.{priority}"

Kind = Literal["classic", "quorum"]
_KINDS: Mapping[str, Kind] = {"classic": "classic", "quorum": "quorum"}


class Broker(msgspec.Struct, frozen=True, kw_only=True):
    nodes: tuple[tuple[str, int], ...]
    user: str
    password: str
    vhost: str = "/"
    #: None: in the clear.
    tls: Tls | None = None
    #: What queues are made: classic ones with priorities, on one node, or quorum queues, on several.
    kind: Kind = "classic"
    #: A template of the queues' names; empty: names of our own.
    queues: str = ""

    @property
    def by_queue(self) -> bool:
        """Whether each queue of ours has queues of its own in the broker."""
        return not self.queues or "{queue}" in self.queues

    @property
    def by_priority(self) -> bool:
        """Whether each priority has a queue of its own."""
        return "{priority}" in self.queues

    def __repr__(self) -> str:
        return f"Broker({self.kind}, {self.nodes})"


def read_broker(text: str, field: str) -> Broker:
    found = _SHAPE.fullmatch(text)
    if found is None:
        # Not what was written: it may hold a password.
        raise Invalid(field, "is no address of RabbitMQ", _HINT)
    scheme = found["scheme"]
    name, colon, password = (found["who"] or _ANYBODY).partition(":")
    if not (name and colon):
        raise Invalid(field, "has a user without a password", _HINT)
    vhost = unquote(found["vhost"] or "") or "/"
    if len(vhost) > _LONGEST_VHOST:
        raise Invalid(field, "has a name of a virtual host that is too long", f"at most {_LONGEST_VHOST} characters")
    tls, options = read_options(field, found["rest"] or "", _HINT, tls=scheme == "amqps", others=["kind", "queues"])
    kind = _KINDS.get(options.get("kind", "classic"))
    if kind is None:
        raise Invalid(field, f"{options['kind']!r:.40} is not a kind of queues", "classic or quorum")
    queues = options.get("queues", "")
    if queues and not _TEMPLATE.fullmatch(_PLACEHOLDERS.sub("x", queues)):
        raise Invalid(field, f"{queues!r:.80} is not a template of queue names", _TEMPLATE_HINT)
    return Broker(
        nodes=tuple(read_node(field, word.strip(), _PORTS[scheme]) for word in found["nodes"].split(",")),
        user=unquote(name),
        password=unquote(password),
        vhost=vhost,
        tls=tls,
        kind=kind,
        queues=queues,
    )
