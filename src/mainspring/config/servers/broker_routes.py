"""Reads the broker of each queue from the settings."""

import re
from collections.abc import Collection, Mapping

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.cluster.coordination import STORE
from mainspring.core.model.runs.names import check_queue
from mainspring.integrations.kafka.address import SCHEME, parse_kafka
from mainspring.integrations.kafka.topics import OPTIONS, read_topics
from mainspring.integrations.rabbitmq.address import SCHEMES as AMQP
from mainspring.integrations.rabbitmq.address import parse_rabbitmq
from mainspring.integrations.redis.address import is_redis, parse_redis

#: All queues that are not named.
OTHERS = "*"
_HINT = "store, redis://host:6379/0, amqp://user:password@host:5672 or kafka://host:9092"


def check_broker(text: str, field: str) -> None:
    if is_redis(text):
        parse_redis(text, field)
    elif text.startswith(AMQP):
        parse_rabbitmq(text, field)
    elif text.startswith(SCHEME):
        read_topics(parse_kafka(text, field, OPTIONS), field)
    elif text != STORE:
        # The message must not repeat the address: it could contain a password.
        raise Invalid(field, "is not the address of a broker", _HINT)


def split_brokers(text: str, names: Collection[str] = ()) -> list[str]:
    """Split a list such as ``store,redis://a,amqp://b,c``, in which an address may contain commas.

    ``names``: other words that may stand for a broker.
    """
    words = "|".join((STORE, *names))
    between = re.compile(rf",(?=\s*(?:(?:{words})\s*(?:,|$)|[a-z+]+://|$))")
    return [broker.strip() for broker in between.split(text) if broker.strip()]


def read_routes(broker: str, queues: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Return the broker of each named queue, and of all others under ``*``. Empty if the store serves all queues."""
    routes = {OTHERS: broker}
    check_broker(broker, "dispatch.broker")
    _check_shared(broker, "dispatch.broker", OTHERS, {})
    shared: dict[str, str] = {}
    for queue, words in queues.items():
        field = "dispatch.queues"
        if len(words) != 1:
            raise Invalid(field, f"{queue} has {len(words)} brokers", f"{queue}=redis://host:6379/0")
        check_broker(words[0], field)
        _check_shared(words[0], field, queue, shared)
        routes[queue if queue == OTHERS else check_queue(field, queue)] = words[0]
    return routes if any(text != STORE for text in routes.values()) else {}


def separates_priorities(text: str) -> bool:
    """Return whether a broker can deliver hints of one priority, as pools of slots need."""
    return text == STORE or (text.startswith(AMQP) and parse_rabbitmq(text, "dispatch.broker").by_priority)


def _check_shared(text: str, field: str, queue: str, shared: dict[str, str]) -> None:
    """Refuse names that several queues would share, because a consumer cannot use the hints of another queue."""
    if not text.startswith(AMQP) or (broker := parse_rabbitmq(text, field)).by_queue:
        return
    other = "every queue" if queue == OTHERS else shared.get(text, queue)
    if other != queue:
        words = other if queue == OTHERS else f"{other} and {queue}"
        hint = f"{{queue}} in the names, or one queue in dispatch.queues, as in jobs=amqp://…?queues={broker.queues}"
        raise Invalid(field, f"names of RabbitMQ's queues without {{queue}} are for one queue, not for {words}", hint)
    shared[text] = queue
