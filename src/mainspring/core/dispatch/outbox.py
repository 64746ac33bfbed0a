"""Splits rows of the outbox into parts of a limited size."""

from collections.abc import Iterator, Sequence

from mainspring.core.ports.storage.outbox import EventBatch


def split_batches(batches: Sequence[EventBatch], events: int) -> Iterator[Sequence[EventBatch]]:
    """Split batches in order into parts of about this many events: a part ends with the row that reaches the number."""
    start = size = 0
    for number, batch in enumerate(batches, 1):
        size += len(batch.runs)
        if size >= events:
            yield batches[start:number]
            start, size = number, 0
    if start < len(batches):
        yield batches[start:]


#: The prefix of a sink's name as a reader of the outbox, shared by all schedulers: a new owner of the shard continues
#: at its offset.
SINK = "events:"
