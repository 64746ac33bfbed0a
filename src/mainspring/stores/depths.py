"""Folds the rows of the queue count statement into depths."""

from collections.abc import Iterable
from typing import TypeAlias

from mainspring.core.model.base.instant import Instant
from mainspring.core.ports.storage.reads import PinnedDepth, QueueBacklog

#: Queue, required data center, queued, running, oldest due, oldest ready. A queue may have several rows.
DepthRow: TypeAlias = tuple[str, str | None, int, int, Instant | None, Instant | None]


def fold_depths(rows: Iterable[DepthRow]) -> list[QueueBacklog]:
    """Add up the rows of each queue, in the order of the queue names."""
    by_queue: dict[str, list[DepthRow]] = {}
    for row in rows:
        by_queue.setdefault(row[0], []).append(row)
    return [_fold(queue, by_queue[queue]) for queue in sorted(by_queue)]


def merge_pinned(found: Iterable[PinnedDepth]) -> tuple[PinnedDepth, ...]:
    """Add up the counts of each data center, in the order of their names."""
    merged: dict[str, PinnedDepth] = {}
    for one in found:
        other = merged.get(one.datacenter, PinnedDepth(datacenter=one.datacenter, queued=0))
        merged[one.datacenter] = PinnedDepth(
            datacenter=one.datacenter,
            queued=one.queued + other.queued,
            oldest_due=earliest(one.oldest_due, other.oldest_due),
            oldest_ready=earliest(one.oldest_ready, other.oldest_ready),
        )
    return tuple(merged[datacenter] for datacenter in sorted(merged))


def earliest(*times: Instant | None) -> Instant | None:
    return min((at for at in times if at is not None), default=None)


def _fold(queue: str, rows: list[DepthRow]) -> QueueBacklog:
    pinned = [
        PinnedDepth(datacenter=place, queued=queued, oldest_due=due, oldest_ready=ready)
        for _, place, queued, _, due, ready in rows
        if place is not None and queued
    ]
    anywhere = [row for row in rows if row[1] is None]
    return QueueBacklog(
        queue=queue,
        queued=sum(row[2] for row in rows),
        running=sum(row[3] for row in rows),
        pinned=merge_pinned(pinned),
        oldest_due=earliest(*(row[4] for row in anywhere)),
        oldest_ready=earliest(*(row[5] for row in anywhere)),
    )
