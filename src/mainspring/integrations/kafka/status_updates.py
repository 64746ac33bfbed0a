"""Short messages on the status of runs: one flat JSON object for each change."""

from collections.abc import Mapping

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.events.events import Event
from mainspring.core.model.events.record_mapping import check_topic
from mainspring.integrations.kafka.address import KafkaAddress, parse_kafka
from mainspring.integrations.kafka.topics import read_partitions

#: For each event type: the status, and the field besides ``modified_time`` that has the time of the change.
STATUSES: Mapping[str, tuple[str, str]] = {
    "run.queued": ("queued", ""),
    "run.started": ("running", "start_time"),
    "run.succeeded": ("success", "end_time"),
    "run.failed": ("failed", "end_time"),
    "run.cancelled": ("cancelled", "end_time"),
    "run.skipped": ("skipped", "end_time"),
    # Another attempt follows.
    "run.retried": ("queued", ""),
    "run.released": ("queued", ""),
    "run.lost": ("queued", ""),
}


class StatusTopic(msgspec.Struct, frozen=True, kw_only=True):
    server: KafkaAddress
    name: str
    partitions: int


class _Data(msgspec.Struct, rename="camel"):
    run_id: str
    job_id: str = ""
    external_name: str = ""
    attempt: int = 0
    error: str | None = None


class _Event(msgspec.Struct):
    time: str
    data: _Data


def read_status_topic(text: str, field: str) -> StatusTopic:
    server = parse_kafka(text, field, ("partitions",))
    if not server.path:
        raise Invalid(field, "names no topic", "kafka://host:9092/status_updates")
    check_topic(server.path, field)
    return StatusTopic(server=server, name=server.path, partitions=read_partitions(server, field))


def compose_status_update(event: Event) -> tuple[str, bytes] | None:
    """Return the key and the message for an event, or None if the event does not change a status.

    The key is the external name of the job, if another program named it, or its id.
    """
    if event.type not in STATUSES:
        return None
    status, timed = STATUSES[event.type]
    known = _decoder.decode(event.body)
    data = known.data
    key = data.external_name or data.job_id or data.run_id
    message: dict[str, object] = {"job_id": key, "run_id": data.run_id, "status": status}
    if timed:
        message[timed] = known.time
    message["modified_time"] = known.time
    if data.attempt:
        message["attempt_number"] = data.attempt
    if data.error is not None:
        message["error_message"] = data.error
    return key, msgspec.json.encode(message)


_decoder = msgspec.json.Decoder(_Event)
