"""Current metrics of a worker for Prometheus."""

from mainspring.core.model.base.instant import SECOND
from mainspring.core.runtime.metrics import declared
from mainspring.core.runtime.metrics.exposition import Exposition
from mainspring.core.worker.worker import Worker


def export_worker(worker: Worker, exposition: Exposition) -> None:
    for queue, (slots, used) in worker.slots.by_queue().items():
        exposition.put(declared.SLOTS, slots, queue)
        exposition.put(declared.SLOTS_USED, used, queue)
    exposition.put(declared.UNREPORTED, worker.unflushed)
    exposition.put(declared.WORKER_MARGIN, worker.lease.margin / SECOND)
    exposition.put(declared.CHILDREN, len(worker.processes))
    exposition.put(declared.LEASES_LOST, worker.lease.losses)
