"""Current metrics of a worker for Prometheus."""

from mainspring.core.model.base.instant import SECOND
from mainspring.core.runtime.metrics import declared
from mainspring.core.runtime.metrics.exposition import Exposition
from mainspring.core.worker.worker import Worker


def export_worker(worker: Worker, book: Exposition) -> None:
    for queue, (slots, used) in worker.slots.by_queue().items():
        book.put(declared.SLOTS, slots, queue)
        book.put(declared.SLOTS_USED, used, queue)
    book.put(declared.UNREPORTED, worker.unflushed)
    book.put(declared.WORKER_MARGIN, worker.lease_margin / SECOND)
    book.put(declared.CHILDREN, len(worker.processes))
    book.put(declared.LEASES_LOST, worker.lost_leases)
