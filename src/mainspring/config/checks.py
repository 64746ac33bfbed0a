"""Checks of the addresses in the settings, and of the settings that depend on them."""

from collections.abc import Mapping

from mainspring.config.sections.events import IngestSection
from mainspring.config.servers.broker_routes import OTHERS, read_routes, separates_priorities
from mainspring.config.settings import Settings
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.cluster.coordination import STORE
from mainspring.integrations.kafka.address import parse_kafka
from mainspring.integrations.kafka.request_topic import read_request_topic
from mainspring.integrations.kafka.status_updates import read_status_topic
from mainspring.integrations.redis.address import parse_redis
from mainspring.integrations.s3.address import parse_blob_address


def check_addresses(settings: Settings) -> None:
    """Raise ``Invalid``, which names the setting, for the first address that cannot be read."""
    _check_pools(settings, read_routes(settings.dispatch.broker, settings.dispatch.queues))
    if settings.dispatch.status_cache:
        parse_redis(settings.dispatch.status_cache, "dispatch.status_cache")
    if settings.retention.archive:
        parse_blob_address(settings.retention.archive, "retention.archive")
    if settings.run_logs.location != STORE:
        parse_blob_address(settings.run_logs.location, "run_logs.location")
    _check_events(settings)
    _check_ingest(settings.ingest)
    if settings.api.submit_buffer and not read_topic_name(settings.ingest):
        raise Invalid(
            "api.submit_buffer", "has no topic to put jobs into", "set ingest.kafka = kafka://host:9092/job-requests"
        )


def read_topic_name(section: IngestSection) -> str:
    """Return the topic of requests; empty if there is none."""
    return read_request_topic(section.kafka, "ingest.kafka", required=False).name if section.kafka else ""


def _check_pools(settings: Settings, routes: Mapping[str, str]) -> None:
    """A broker that feeds pools of slots must have a queue for each priority."""
    if not settings.worker.priorities:
        return
    served = [routes.get(queue, routes.get(OTHERS, STORE)) for queue in settings.worker.queues] or routes.values()
    if not all(map(separates_priorities, served)):
        raise Invalid(
            "worker.priorities",
            "the broker of dispatch.broker or dispatch.queues does not separate priorities",
            "RabbitMQ with {priority} in its queue names, as in amqp://…?queues={queue}.priority.{priority}",
        )


def _check_events(settings: Settings) -> None:
    events = settings.events
    if events.kafka:
        parse_kafka(events.kafka, "events.kafka")
    if events.status_updates:
        read_status_topic(events.status_updates, "events.status_updates")
    if events.redis:
        parse_redis(events.redis, "events.redis")


def _check_ingest(section: IngestSection) -> None:
    if section.topics:
        # Imported here because it loads the fields of a job, and most installations have no such topics.
        from mainspring.features.ingest.mappings import read_mappings

        read_mappings(section.topics)
    if section.kafka:
        topic = read_request_topic(section.kafka, "ingest.kafka", required=not section.topics)
        if topic.name in section.topics:
            raise Invalid(f"ingest.topics.{topic.name}", "is the topic of ingest.kafka", "take one of them out")
