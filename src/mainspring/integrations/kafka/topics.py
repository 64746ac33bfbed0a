"""The names of Kafka topics for hints."""

import hashlib
import re

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.cluster.hints import Hint
from mainspring.core.model.runs.rank import IDLE
from mainspring.integrations.kafka.address import KafkaAddress

#: The allowed options of a broker's address.
OPTIONS = ("topics", "retries", "dead", "partitions")
#: The last priority of each band.
_BANDS = (3, 6, IDLE)
#: The priority of a hint without one.
_USUAL = 5
#: The word for any data center.
_ANYWHERE = "any"
_ALLOWED = re.compile(r"[A-Za-z0-9._-]{1,64}")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,180}")
_PARTITIONS = 12
_MOST_PARTITIONS = 1_000


class TopicNames(msgspec.Struct, frozen=True, kw_only=True):
    """Templates of topic names, with ``{queue}``, ``{priority}`` (p1, p2, p3: 1–3, 4–6, 7–10) and
    ``{datacenter}``.

    Queues whose topics have the same name share them.
    """

    first: str = "run-queue"
    #: For runs that were attempted before.
    again: str = "retry-queue"
    #: For runs that failed finally.
    dead: str = "dead-letter-queue"
    partitions: int = _PARTITIONS

    @property
    def by_datacenter(self) -> bool:
        return "{datacenter}" in self.first

    def of(self, hint: Hint) -> str:
        template = self.first if hint.attempt <= 1 else self.again
        return _fill(template, hint.queue, _find_band(hint.priority), hint.datacenter)

    def served(self, queue: str, datacenter: str) -> list[str]:
        """Return the topics that a worker reads, the most urgent first."""
        bands = range(1, len(_BANDS) + 1) if "{priority}" in self.first + self.again else (1,)
        datacenters = (datacenter, "") if datacenter else ("",)
        return list(
            dict.fromkeys(
                _fill(template, queue, band, name)
                for band in bands
                for template in (self.first, self.again)
                for name in datacenters
            )
        )


def read_topics(server: KafkaAddress, field: str) -> TopicNames:
    options = server.options
    if server.path:
        raise Invalid(field, f"{server.path!r:.80} has no meaning behind the servers", "?topics=… names the topics")
    names = TopicNames(
        first=options.get("topics", "run-queue"),
        again=options.get("retries", "retry-queue"),
        dead=options.get("dead", "dead-letter-queue"),
        partitions=read_partitions(server, field),
    )
    for template in (names.first, names.again, names.dead):
        allowed = template if template == names.dead else _fill(template, "q", 1, "d")
        if not _TOPIC.fullmatch(allowed):
            hint = "letters, digits, . _ - and {queue}, {priority}, {datacenter}"
            raise Invalid(field, f"{template!r:.80} is not a name of topics", hint)
    return names


def read_partitions(server: KafkaAddress, field: str) -> int:
    """Return the number of partitions for topics that are created here."""
    text = server.options.get("partitions", str(_PARTITIONS))
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= _MOST_PARTITIONS:
        raise Invalid(field, f"{text!r:.40} is not a number of partitions", f"1 to {_MOST_PARTITIONS}")
    return int(text)


def _find_band(priority: int) -> int:
    return next(band for band, last in enumerate(_BANDS, 1) if (priority or _USUAL) <= last or last == IDLE)


def _fill(template: str, queue: str, band: int, datacenter: str) -> str:
    return (
        template.replace("{queue}", _encode_name(queue))
        .replace("{priority}", f"p{band}")
        .replace("{datacenter}", _encode_name(datacenter or _ANYWHERE))
    )


def _encode_name(word: str) -> str:
    """Return the word, or its digest if it cannot be a part of a topic's name."""
    return word if _ALLOWED.fullmatch(word) else hashlib.blake2b(word.encode(), digest_size=16).hexdigest()
