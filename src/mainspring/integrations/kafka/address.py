"""How Kafka is reached, as it is written in the settings: ``kafka://user:password@host:9092,host:9092/topic?option=…``."""

from collections.abc import Collection, Mapping
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from mainspring.core.model.base.addresses import read_node
from mainspring.core.model.base.errors import Invalid

SCHEME = "kafka://"
_PORT = 9092
_HINT = "kafka://host:9092,host:9092"
#: What a client can be told about safety. Whatever else stood there would be heard of when a process has started.
_SAFETY = {
    "security_protocol",
    "sasl_mechanism",
    "ssl_ca_location",
    "ssl_certificate_location",
    "ssl_key_location",
    "ssl_key_password",
}


class KafkaServer(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster of Kafka, and how it is spoken to."""

    nodes: tuple[tuple[str, int], ...]
    #: Behind the hosts: a topic where one is meant.
    path: str = ""
    #: By the names of the client's own options.
    safety: Mapping[str, str]
    #: What the user of this address has options for.
    options: Mapping[str, str]

    def __repr__(self) -> str:
        # Not its options: there may be a password among them.
        return f"KafkaServer(nodes={self.nodes!r}, path={self.path!r})"


def read_kafka(text: str, field: str, options: Collection[str] = ()) -> KafkaServer:
    """``options``: what may stand at its end besides what every client can be told."""
    # Not in its words: it could hold a password.
    if not text.startswith(SCHEME):
        raise Invalid(field, "is not Kafka", _HINT)
    place, _, rest = text.removeprefix(SCHEME).partition("?")
    hosts, _, path = place.partition("/")
    who, at, hosts = hosts.rpartition("@")
    if not hosts or urlsplit(text).fragment:
        raise Invalid(field, "names no server of Kafka", _HINT)
    nodes = tuple(read_node(field, word.strip(), _PORT) for word in hosts.split(","))
    safety, own = {}, {}
    for name, value in parse_qsl(rest, keep_blank_values=True):
        if name in _SAFETY:
            safety[name.replace("_", ".")] = value
        elif name in options:
            own[name] = value
        else:
            raise Invalid(field, f"has {name!r:.40} at its end, which has no meaning", _HINT)
    if at:
        user, colon, password = who.partition(":")
        if not (user and colon):
            raise Invalid(field, "has a user without a password", "kafka://user:password@host:9092")
        safety |= {"sasl.username": unquote(user), "sasl.password": unquote(password)}
        safety.setdefault("sasl.mechanism", "SCRAM-SHA-512")
        safety.setdefault("security.protocol", "SASL_SSL")
    return KafkaServer(nodes=nodes, path=path, safety=safety, options=own)
