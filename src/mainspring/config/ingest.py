"""Builds the intake of jobs from Kafka, and the buffer of submits in Kafka."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mainspring.config.runtime import Runtime
from mainspring.config.settings import Settings
from mainspring.core.model.base.errors import Invalid
from mainspring.features.ingest.service import Ingest
from mainspring.http.auth.authenticator import Authenticator
from mainspring.integrations.kafka.request_topic import RequestSigner, read_request_topic

if TYPE_CHECKING:
    from mainspring.integrations.kafka.ingest import KafkaSubmitBuffer


from mainspring.config.api import make_api
from mainspring.features.ingest.intake import JobCreator
from mainspring.features.ingest.mappings import read_mappings


async def make_ingest(runtime: Runtime, health: Callable[[], Awaitable[Mapping[str, object]]]) -> Ingest:
    """Build the service that creates jobs from requests in a Kafka topic."""
    section = runtime.settings.ingest
    with _require_kafka():
        from mainspring.integrations.kafka.ingest import KafkaRequests
    topic = read_request_topic(section.kafka, "ingest.kafka", required=not section.topics)
    mappings = read_mappings(section.topics)
    identity = await runtime.store.identity()
    requests = KafkaRequests(topic, identity, runtime.clock, _make_signer(runtime.settings), mappings)
    api = make_api(runtime, Authenticator(runtime.store, runtime.clock, required=False), health)
    return Ingest(
        requests, JobCreator(api, section.bound_to, mappings).create, runtime.clock, runtime.wakeups.listen([])
    )


def make_submit_buffer(settings: Settings) -> "KafkaSubmitBuffer | None":
    """Build the component that accepts jobs for an API while the store is unavailable. Return None if it is off."""
    if not settings.api.submit_buffer:
        return None
    with _require_kafka():
        from mainspring.integrations.kafka.ingest import KafkaSubmitBuffer
    return KafkaSubmitBuffer(read_request_topic(settings.ingest.kafka, "ingest.kafka"), _make_signer(settings))


def _make_signer(settings: Settings) -> RequestSigner | None:
    # Unlike for hints, the store's id cannot be the default key, because it is in the name of a consumer group.
    return RequestSigner(settings.dispatch.key.encode()) if settings.dispatch.key else None


@contextmanager
def _require_kafka() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        hint = "pip install 'mainspring[kafka]'"
        raise Invalid("ingest.kafka", f"Kafka needs the package {error.name}", hint) from error
