"""Computes the depth of each queue. Runs that only an absent data center may execute are counted separately."""

from collections.abc import Iterable, Mapping

import msgspec

from mainspring.core.model.base.instant import MINUTE, Instant, Micros
from mainspring.core.ports.storage.catalog import SessionView
from mainspring.core.ports.storage.reads import QueueBacklog


class QueueDepth(msgspec.Struct, frozen=True, kw_only=True):
    """A queue as its workers see it: the lag counts only runs that one of them may execute."""

    queue: str
    queued: int = 0
    running: int = 0
    oldest_due: Instant | None = None
    oldest_ready: Instant | None = None
    #: Queued runs that require a data center where no worker takes this queue, by data center.
    stranded: Mapping[str, int] = {}


def judge_depth(depth: QueueBacklog, workers: Iterable[SessionView]) -> QueueDepth:
    """Separate the runs that no live worker of the queue may execute because of its data center."""
    served = {worker.datacenter for worker in workers if depth.queue in worker.queues and not worker.draining}
    reached = [pinned for pinned in depth.pinned if pinned.datacenter in served]
    dues = [depth.oldest_due, *(pinned.oldest_due for pinned in reached)]
    ready = [depth.oldest_ready, *(pinned.oldest_ready for pinned in reached)]
    return QueueDepth(
        queue=depth.queue,
        queued=depth.queued,
        running=depth.running,
        oldest_due=min((due for due in dues if due is not None), default=None),
        oldest_ready=min((since for since in ready if since is not None), default=None),
        stranded={pinned.datacenter: pinned.queued for pinned in depth.pinned if pinned.datacenter not in served},
    )


#: The span over which rates are computed.
RATE_OVER: Micros = 5 * MINUTE
