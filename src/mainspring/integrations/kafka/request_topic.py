"""Where requests for jobs come from besides the API, as it is written in the settings."""

import hashlib
import hmac

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.events.record_mapping import is_topic
from mainspring.integrations.kafka.address import KafkaServer, read_kafka
from mainspring.integrations.kafka.topics import read_partitions

#: Beside a request: whom it is for.
TENANT_HEADER = "mainspring-tenant"
#: Beside a request: the id that its job is to have.
RUN_HEADER = "mainspring-job"
#: Beside a request that an API has accepted: who has submitted it, and the seal that says so.
AUTHOR_HEADER = "mainspring-author"
SEAL_HEADER = "mainspring-seal"
#: Beside a request: the trace that it belongs to, as everybody calls it.
TRACE_HEADER = "traceparent"
#: Beside one that was refused: why, as JSON.
PROBLEM_HEADER = "mainspring-problem"
#: What may stand at the end of the address.
OPTIONS = ("partitions",)
_DEAD = "-dead"


class Voucher:
    """Seals who has submitted a request, so that others who write to the log cannot say that it was somebody else.

    A seal is of the whole request with the id of its job: who sends one again makes the same job, which is there.
    """

    def __init__(self, key: bytes) -> None:
        self._key = hashlib.blake2b(key, digest_size=32, person=b"mainspring asks").digest()

    def seal(self, author: str, tenant: str, run: str, body: bytes) -> bytes:
        sealed = hashlib.blake2b(key=self._key, digest_size=16)
        sealed.update(msgspec.json.encode((author, tenant, run)))
        sealed.update(body)
        return sealed.hexdigest().encode()

    def holds(self, seal: bytes, author: str, tenant: str, run: str, body: bytes) -> bool:
        return hmac.compare_digest(seal, self.seal(author, tenant, run, body))


class RequestTopic(msgspec.Struct, frozen=True, kw_only=True):
    server: KafkaServer
    #: Empty: there are only topics of other programs.
    name: str
    partitions: int


def read_request_topic(text: str, field: str, *, required: bool = True) -> RequestTopic:
    server = read_kafka(text, field, OPTIONS)
    if (server.path or required) and not is_topic(server.path):
        raise Invalid(field, "names no topic", "kafka://host:9092/job-requests")
    return RequestTopic(server=server, name=server.path, partitions=read_partitions(server, field))


def dead_topic(topic: str) -> str:
    """The topic that keeps the rejected records of a topic."""
    return topic + _DEAD
