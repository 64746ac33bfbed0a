"""What can be set about a worker."""

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import MILLISECOND, MINUTE, SECOND, Micros
from mainspring.core.model.cluster.datacenters import at_home
from mainspring.core.model.cluster.labels import check_labels_kept
from mainspring.core.model.runs.names import check_name, check_queue
from mainspring.core.model.runs.rank import check_priority
from mainspring.core.model.runs.view import OVERDUE_GRACE


class ChildSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The processes that sync tasks run in."""

    #: Children that host the threads of ordinary sync tasks. They start when they are needed.
    children: int = 2
    threads_per_child: int = 8
    #: Children of one thread each, for tasks in mode "process". 0: as many as there are processors.
    processes: int = 0
    #: How long a child may take to start and to import the application.
    start_timeout: Micros = MINUTE
    #: A run that waits this long for a child that starts goes back to the queue, uncharged.
    start_patience: Micros = 15 * SECOND
    #: A run for which no thread is free for this long goes back to the queue, uncharged: another worker may have one.
    patience: Micros = SECOND
    recycle_after_runs: int | None = None
    recycle_memory_bytes: int | None = None
    #: What the application's ``adopt`` is called with in every child; not called when it is empty.
    adopts: bytes = b""


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker works. Durations are microseconds."""

    #: A label. Two workers may share it: what tells them apart is the session each of them gets.
    name: str = "worker"
    #: The queues it serves, with how many runs of each it runs at once.
    queues: dict[str, int] = msgspec.field(default_factory=lambda: {"default": 100})
    #: A pool of slots for each of these priorities, in every queue, in place of the queue's own slots. Others are not
    #: taken.
    priorities: dict[int, int] = msgspec.field(default_factory=dict)
    #: Without a beat for this long the worker counts as dead, and its runs start elsewhere.
    lease: Micros = 10 * SECOND
    beat_interval: Micros = 3 * SECOND
    #: A lease that could not be renewed is given up this long before it ends, so that everything has stopped by then.
    lease_margin: Micros = 2 * SECOND
    #: An answer to a claim that takes longer is thrown away; the next beat returns its runs.
    claim_timeout: Micros = 5 * SECOND
    #: An idle worker that nobody wakes looks this often.
    poll_interval: Micros = SECOND
    #: A busy worker waits this long for more free slots before it claims for a few.
    gather: Micros = 2 * MILLISECOND
    largest_claim: int = 500
    largest_settle: int = 1_000
    settles_in_flight: int = 2
    #: How long runs may go on when the worker is asked to leave. What is not done by then is given back.
    grace: Micros = 25 * SECOND
    #: What a stopped attempt gets for cleaning up before it is stopped harder.
    kill_grace: Micros = 2 * SECOND
    #: After this many runs the worker leaves and says that it ``wants_recycling``.
    recycle_after_runs: int | None = None
    #: The same when its own process, without children, uses this much memory.
    recycle_memory_bytes: int | None = None
    #: Keep what handlers print and log with their runs.
    capture_logs: bool = True
    children: ChildSettings = ChildSettings()
    #: What kind of worker it is, as words: it is given runs that require some of these.
    labels: tuple[str, ...] = ()
    version: str = ""
    datacenter: str = ""

    def check(self) -> None:
        check_name("name", self.name)
        check_labels_kept("labels", self.labels)
        at_home(self.labels, self.datacenter)
        if not self.queues:
            raise Invalid("queues", "is empty", 'for example {"default": 100}')
        for queue, slots in self.queues.items():
            check_queue("queues", queue)
            if slots < 1:
                raise Invalid("queues", f"{queue!r} has {slots} slots", "at least 1")
        for priority, slots in self.priorities.items():
            check_priority(priority)
            if slots < 1:
                raise Invalid("priorities", f"{priority} has {slots} slots", "at least 1")
        if self.beat_interval < 1 or 2 * self.beat_interval + self.lease_margin > self.lease:
            # One beat may fail without the worker giving up everything it holds.
            raise Invalid("beatInterval", "is too long for the lease", "two of them and the margin must fit in")
        late = self.claim_timeout + self.children.start_patience + self.children.patience + self.kill_grace
        if late >= OVERDUE_GRACE:
            # An attempt's time is counted from its real start; the store must not lose patience before the worker.
            raise Invalid("claimTimeout", "with start patience, patience and kill grace is too long", "less than 30s")
        if min(self.largest_claim, self.largest_settle, self.settles_in_flight) < 1:
            raise Invalid("largestClaim", "batches must hold at least one run")
        if min(self.children.children, self.children.threads_per_child) < 1 or self.children.processes < 0:
            raise Invalid("children", "there must be at least one child with one thread")
