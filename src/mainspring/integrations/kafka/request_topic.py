"""The address of the topic with job requests, and the headers of its records."""

import hashlib
import hmac

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.events.record_mapping import is_topic
from mainspring.integrations.kafka.address import KafkaAddress, parse_kafka
from mainspring.integrations.kafka.topics import read_partitions

#: Header of a request: the tenant.
TENANT_HEADER = "mainspring-tenant"
#: Header of a request: the id of its job.
RUN_HEADER = "mainspring-job"
#: Headers of a request that an API accepted: the author, and the signature that proves the author.
AUTHOR_HEADER = "mainspring-author"
SIGNATURE_HEADER = "mainspring-signature"
#: Header of a request: its trace, in the W3C format.
TRACE_HEADER = "traceparent"
#: Header of a rejected request: the reason as JSON.
PROBLEM_HEADER = "mainspring-problem"
#: The allowed options of the address.
OPTIONS = ("partitions",)
_DEAD = "-dead"


class RequestSigner:
    """Signs the author of a request with a keyed hash, so that other writers to the topic cannot forge the author.

    The signature covers the whole request and the id of its job, so a replayed request creates no second job.
    """

    def __init__(self, key: bytes) -> None:
        self._key = hashlib.blake2b(key, digest_size=32, person=b"mainspring asks").digest()

    def sign(self, author: str, tenant: str, run: str, body: bytes) -> bytes:
        digest = hashlib.blake2b(key=self._key, digest_size=16)
        digest.update(msgspec.json.encode((author, tenant, run)))
        digest.update(body)
        return digest.hexdigest().encode()

    def verify(self, signature: bytes, author: str, tenant: str, run: str, body: bytes) -> bool:
        return hmac.compare_digest(signature, self.sign(author, tenant, run, body))


class RequestTopic(msgspec.Struct, frozen=True, kw_only=True):
    server: KafkaAddress
    #: Empty: only topics of other programs are read.
    name: str
    partitions: int


def read_request_topic(text: str, field: str, *, required: bool = True) -> RequestTopic:
    server = parse_kafka(text, field, OPTIONS)
    if (server.path or required) and not is_topic(server.path):
        raise Invalid(field, "names no topic", "kafka://host:9092/job-requests")
    return RequestTopic(server=server, name=server.path, partitions=read_partitions(server, field))


def name_dead_topic(topic: str) -> str:
    """Return the name of the dead-letter topic of a topic."""
    return topic + _DEAD
