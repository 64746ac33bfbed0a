"""Builds the sinks that receive events."""

from mainspring.core.model.base.errors import Invalid
from mainspring.core.ports.events_out import Sink
from mainspring.integrations.kafka.address import parse_kafka
from mainspring.integrations.kafka.status_updates import read_status_topic
from mainspring.integrations.redis.address import parse_redis


def make_sinks(kafka: str, redis: str, redis_length: int, status_updates: str = "") -> list[Sink]:
    """Build the sinks that have an address."""
    # Imported on use: most processes need none of the clients.
    sinks: list[Sink] = []
    if redis:
        try:
            from mainspring.integrations.redis.events import RedisSink
        except ModuleNotFoundError as error:
            hint = "pip install 'mainspring[redis]'"
            raise Invalid("events.redis", f"Redis needs the package {error.name}", hint) from error
        sinks.append(RedisSink(parse_redis(redis, "events.redis"), redis_length))
    if kafka or status_updates:
        try:
            from mainspring.integrations.kafka.events import KafkaSink, KafkaStatusSink
        except ModuleNotFoundError as error:
            hint = "pip install 'mainspring[kafka]'"
            field = "events.kafka" if kafka else "events.status_updates"
            raise Invalid(field, f"Kafka needs the package {error.name}", hint) from error
        if kafka:
            sinks.append(KafkaSink(parse_kafka(kafka, "events.kafka")))
        if status_updates:
            sinks.append(KafkaStatusSink(read_status_topic(status_updates, "events.status_updates")))
    return sinks
