"""RabbitMQ addresses in the settings, and the kinds of queues that they select."""

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
#: The default user of a new broker, which is accepted on its own machine only.
_ANYBODY = "guest:guest"
#: AMQP allows 255 bytes; a placeholder is replaced by at most 64.
_TEMPLATE = re.compile(r"[A-Za-z0-9_.:@-]{1,60}")
_PLACEHOLDERS = re.compile(r"\{(?:store|queue|priority)\}")
_TEMPLATE_HINT = "letters, digits, . _ : @ - and {queue}, {priority}, {store}, as in {queue}.priority.{priority}"

Kind = Literal["classic", "quorum"]
_KINDS: Mapping[str, Kind] = {"classic": "classic", "quorum": "quorum"}


class RabbitMqAddress(msgspec.Struct, frozen=True, kw_only=True):
    nodes: tuple[tuple[str, int], ...]
    user: str
    password: str
    vhost: str = "/"
    #: None: no encryption.
    tls: Tls | None = None
    #: The kind of queues: classic ones with priorities on one node, or replicated quorum queues.
    kind: Kind = "classic"
    #: A template of the queues' names; empty: Mainspring's own names.
    queues: str = ""

    @property
    def by_queue(self) -> bool:
        """Whether each Mainspring queue has its own queues in the broker."""
        return not self.queues or "{queue}" in self.queues

    @property
    def by_priority(self) -> bool:
        """Whether each priority has its own queue."""
        return "{priority}" in self.queues

    def __repr__(self) -> str:
        return f"Broker({self.kind}, {self.nodes})"


def parse_rabbitmq(text: str, field: str) -> RabbitMqAddress:
    found = _SHAPE.fullmatch(text)
    if found is None:
        # The message must not repeat the address: it could contain a password.
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
    return RabbitMqAddress(
        nodes=tuple(read_node(field, word.strip(), _PORTS[scheme]) for word in found["nodes"].split(",")),
        user=unquote(name),
        password=unquote(password),
        vhost=vhost,
        tls=tls,
        kind=kind,
        queues=queues,
    )
