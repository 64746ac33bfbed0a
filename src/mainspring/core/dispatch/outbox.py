"""Rows of the outbox, in parts of a size that can be told at once."""

from collections.abc import Iterator, Sequence

from mainspring.core.store import EventBatch


def parts_of(batches: Sequence[EventBatch], events: int) -> Iterator[Sequence[EventBatch]]:
    """In order, each with about as many events: the row that reaches the number is the last of its part."""
    start = size = 0
    for number, batch in enumerate(batches, 1):
        size += len(batch.runs)
        if size >= events:
            yield batches[start:number]
            start, size = number, 0
    if start < len(batches):
        yield batches[start:]


#: Before the name of a sink: its name as a reader of the outbox, for all schedulers. Whoever owns the shard goes on
#: where the last one was.
SINK = "events:"
