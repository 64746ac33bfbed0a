"""Writes the metrics of a scheduler's services."""

from collections.abc import Sequence

from mainspring.core.cluster.shards import ShardKeeper
from mainspring.core.model.base.instant import SECOND
from mainspring.core.runtime.metrics import declared
from mainspring.core.runtime.metrics.counters import LabelCounts
from mainspring.core.runtime.metrics.exposition import Exposition
from mainspring.core.scheduler.scheduler import Scheduler
from mainspring.features.archive.service import Archiver
from mainspring.features.events.service import Publisher
from mainspring.features.ingest.service import Ingest
from mainspring.features.logs.service import LogKeeper


def write_scheduler_metrics(
    keepers: Sequence[ShardKeeper], schedulers: Sequence[Scheduler], exposition: Exposition
) -> None:
    """Write the metrics of shards. There is one keeper and one scheduler per server of the store."""
    exposition.put(declared.SHARDS_HERE, sum(len(keeper.owned()) for keeper in keepers))
    exposition.put(declared.SCHEDULER_MARGIN, min((keeper.margin for keeper in keepers), default=0) / SECOND)
    exposition.put(declared.WHEEL, sum(scheduler.foreseen for scheduler in schedulers))


def write_archive_metrics(archivers: Sequence[Archiver], exposition: Exposition) -> None:
    """Write the metrics of the archive. There is one archiver per server of the store, or none without an archive."""
    if archivers:
        exposition.put(declared.ARCHIVE_WAITING, sum(archiver.waiting for archiver in archivers))
        exposition.put(declared.ARCHIVE_FAILING, any(archiver.trouble for archiver in archivers))


def write_run_logs_metrics(keepers: Sequence[LogKeeper], exposition: Exposition) -> None:
    """Write the metrics of the log storage.

    There is one keeper per server of the store, or none if logs stay in the store.
    """
    if keepers:
        exposition.put(declared.RUN_LOGS_TAKEN, sum(keeper.moved for keeper in keepers))
        exposition.put(declared.RUN_LOGS_FAILED, sum(keeper.failed for keeper in keepers))
        exposition.put(declared.RUN_LOGS_WAITING, max(keeper.waiting for keeper in keepers) / SECOND)


def write_sinks_metrics(publishers: Sequence[Publisher], exposition: Exposition) -> None:
    """Write the metrics of event sinks. A sink has one publisher per server of the store."""
    sent, failed, dropped = LabelCounts(), LabelCounts(), LabelCounts()
    for publisher in publishers:
        sent[(publisher.sink,)] += publisher.sent
        failed[(publisher.sink,)] += publisher.failed
        dropped[(publisher.sink,)] += publisher.dropped
    exposition.counts(declared.EVENTS_SENT, sent)
    exposition.counts(declared.EVENTS_FAILED, failed)
    exposition.counts(declared.EVENTS_DROPPED, dropped)


def write_ingest_metrics(ingest: Ingest, exposition: Exposition) -> None:
    exposition.put(declared.INGEST_MADE, ingest.created)
    exposition.put(declared.INGEST_REFUSED, ingest.refused)
    exposition.put(declared.INGEST_WAITING, ingest.waiting)
