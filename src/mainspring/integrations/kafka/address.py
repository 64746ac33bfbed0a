"""Kafka addresses in the settings: ``kafka://user:password@host:9092,host:9092/topic?option=…``."""

from collections.abc import Collection, Mapping
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from mainspring.core.model.base.addresses import read_node
from mainspring.core.model.base.errors import Invalid

SCHEME = "kafka://"
_PORT = 9092
_HINT = "kafka://host:9092,host:9092"
#: Security options of clients. Other options are refused here, so that errors show up before a process starts.
_SAFETY = {
    "security_protocol",
    "sasl_mechanism",
    "ssl_ca_location",
    "ssl_certificate_location",
    "ssl_key_location",
    "ssl_key_password",
}


class KafkaAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a Kafka cluster, with its security options."""

    nodes: tuple[tuple[str, int], ...]
    #: The path after the hosts: a topic, where one is expected.
    path: str = ""
    #: Security options by the names of the client library.
    safety: Mapping[str, str]
    #: Options of the component that uses the address.
    options: Mapping[str, str]

    def __repr__(self) -> str:
        # The options are omitted, because they may contain a password.
        return f"KafkaServer(nodes={self.nodes!r}, path={self.path!r})"


def parse_kafka(text: str, field: str, options: Collection[str] = ()) -> KafkaAddress:
    """Parse an address. ``options``: the allowed options besides the security options."""
    # Errors must not repeat the address: it could contain a password.
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
    return KafkaAddress(nodes=nodes, path=path, safety=safety, options=own)
