"""Where events go outside."""

from mainspring.domain.errors import Invalid
from mainspring.domain.kafka import read_kafka
from mainspring.domain.redis_address import read_redis
from mainspring.domain.status_updates import read_status_topic
from mainspring.ports.events_out import Sink


def make_sinks(kafka: str, redis: str, redis_length: int, status_updates: str = "") -> list[Sink]:
    """Those that have an address."""
    # Imported when they are used: most processes need none of them.
    sinks: list[Sink] = []
    if redis:
        try:
            from mainspring.adapters.events.redis import RedisSink
        except ModuleNotFoundError as error:
            hint = "pip install 'mainspring[redis]'"
            raise Invalid("events.redis", f"Redis needs the package {error.name}", hint) from error
        sinks.append(RedisSink(read_redis(redis, "events.redis"), redis_length))
    if kafka or status_updates:
        try:
            from mainspring.adapters.events.kafka import KafkaSink, KafkaStatusSink
        except ModuleNotFoundError as error:
            hint = "pip install 'mainspring[kafka]'"
            field = "events.kafka" if kafka else "events.status_updates"
            raise Invalid(field, f"Kafka needs the package {error.name}", hint) from error
        if kafka:
            sinks.append(KafkaSink(read_kafka(kafka, "events.kafka")))
        if status_updates:
            sinks.append(KafkaStatusSink(read_status_topic(status_updates, "events.status_updates")))
    return sinks
