"""Decodes the rows of the outbox and of its readers."""

import msgspec

from mainspring.core.model.events.events import RunFacts, WorkerFacts
from mainspring.core.ports.events_out import ReaderView
from mainspring.core.ports.storage.outbox import EventBatch


class FollowingEvents(msgspec.Struct, frozen=True):
    """Events after a position, with the range of positions that can be resumed at."""

    horizon: int
    newest: int
    batches: list[EventBatch]


decode_run_facts = msgspec.json.Decoder(list[RunFacts]).decode
decode_worker_facts = msgspec.json.Decoder(list[WorkerFacts]).decode
decode_readers = msgspec.json.Decoder(list[ReaderView]).decode
decode_events = msgspec.json.Decoder(list[EventBatch]).decode
decode_following = msgspec.json.Decoder(FollowingEvents).decode


def format_position(position: int) -> str:
    """Format an event position so that it sorts like the number."""
    return f"{position:020d}"
