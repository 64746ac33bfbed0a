"""Builds the runs of a broadcast, one for every live worker."""

from collections.abc import Iterable

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import RunId, decode_shard, derived_id, made_at
from mainspring.core.model.cluster.labels import has_all
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.ports.storage.catalog import SessionView


def build_copies(run: NewRun, workers: Iterable[SessionView]) -> list[NewRun]:
    """Build one run per worker that knows the task, has the required labels and is not draining.

    A run uses the broadcast's queue if its worker serves that, and otherwise the worker's first queue. The same
    broadcast gives the same run ids, so that repeating it creates nothing twice.
    """
    if run.idempotency is not None:
        raise Invalid("unique", "cannot be combined with a broadcast", "each worker has a run of its own")
    run.check()
    return [
        msgspec.structs.replace(
            run,
            id=RunId(derived_id(made_at(run.id), decode_shard(run.id), run.id, run.tenant, worker.id)),
            queue=run.queue if run.queue in worker.queues else worker.queues[0],
            target=worker.id,
        )
        for worker in workers
        if run.task in worker.tasks
        and worker.queues
        and not worker.draining
        and has_all(worker.labels, run.policy.requires)
    ]
