"""What Prometheus is told of a scheduler as it is right now, and of whom it tells events."""

from collections.abc import Sequence

from mainspring.control.archive import Archiver
from mainspring.control.ingest import Ingest
from mainspring.control.log_keeper import LogKeeper
from mainspring.control.publisher import Publisher
from mainspring.control.scheduler.scheduler import Scheduler
from mainspring.control.shards import ShardKeeper
from mainspring.domain.instant import SECOND
from mainspring.runtime.metrics import declared
from mainspring.runtime.metrics.book import Book
from mainspring.runtime.metrics.tally import Tally


def tell_of_scheduler(keepers: Sequence[ShardKeeper], schedulers: Sequence[Scheduler], book: Book) -> None:
    """One of each for every server of the store."""
    book.put(declared.SHARDS_HERE, sum(len(keeper.owned()) for keeper in keepers))
    book.put(declared.SCHEDULER_MARGIN, min((keeper.margin for keeper in keepers), default=0) / SECOND)
    book.put(declared.WHEEL, sum(scheduler.foreseen for scheduler in schedulers))


def tell_of_archive(archivers: Sequence[Archiver], book: Book) -> None:
    """One for every server of the store, if anything is archived."""
    if archivers:
        book.put(declared.ARCHIVE_WAITING, sum(archiver.waiting for archiver in archivers))
        book.put(declared.ARCHIVE_FAILING, any(archiver.trouble for archiver in archivers))


def tell_of_run_logs(keepers: Sequence[LogKeeper], book: Book) -> None:
    """One for every server of the store, if logs leave it."""
    if keepers:
        book.put(declared.RUN_LOGS_TAKEN, sum(keeper.taken for keeper in keepers))
        book.put(declared.RUN_LOGS_FAILED, sum(keeper.failed for keeper in keepers))
        book.put(declared.RUN_LOGS_WAITING, max(keeper.waiting for keeper in keepers) / SECOND)


def tell_of_sinks(publishers: Sequence[Publisher], book: Book) -> None:
    """A sink has a publisher for every server of the store."""
    sent, failed, dropped = Tally(), Tally(), Tally()
    for publisher in publishers:
        sent[(publisher.sink,)] += publisher.sent
        failed[(publisher.sink,)] += publisher.failed
        dropped[(publisher.sink,)] += publisher.dropped
    book.counts(declared.EVENTS_SENT, sent)
    book.counts(declared.EVENTS_FAILED, failed)
    book.counts(declared.EVENTS_DROPPED, dropped)


def tell_of_ingest(ingest: Ingest | None, book: Book) -> None:
    if ingest is not None:
        book.put(declared.INGEST_MADE, ingest.made)
        book.put(declared.INGEST_REFUSED, ingest.refused)
        book.put(declared.INGEST_WAITING, ingest.waiting)
