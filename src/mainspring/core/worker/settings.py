"""The settings of a worker."""

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

    #: Children that host the threads of ordinary sync tasks. They start on demand.
    children: int = 2
    threads_per_child: int = 8
    #: Children of one thread each, for tasks in mode "process". 0: as many as there are processors.
    processes: int = 0
    #: How long a child may take to start and to import the application.
    start_timeout: Micros = MINUTE
    #: A run that waits this long for a starting child goes back to the queue, uncharged.
    start_patience: Micros = 15 * SECOND
    #: A run for which no thread is free for this long goes back to the queue, uncharged: another worker may have one.
    patience: Micros = SECOND
    recycle_after_runs: int | None = None
    recycle_memory_bytes: int | None = None
    #: The argument of the application's ``adopt`` in every child; if empty, it is not called.
    adopts: bytes = b""


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker works. Durations are microseconds."""

    #: A label. Two workers may share it: their sessions distinguish them.
    name: str = "worker"
    #: The queues it serves, with the number of slots for each.
    queues: dict[str, int] = msgspec.field(default_factory=lambda: {"default": 100})
    #: A pool of slots for each of these priorities, in every queue, in place of the queue's own slots. Runs of other
    #: priorities are not claimed.
    priorities: dict[int, int] = msgspec.field(default_factory=dict)
    #: Without a heartbeat for this long the worker expires, and its runs start elsewhere.
    lease: Micros = 10 * SECOND
    heartbeat_interval: Micros = 3 * SECOND
    #: A lease that could not be renewed is given up this long before it ends, so that everything has stopped by then.
    lease_margin: Micros = 2 * SECOND
    #: A claim that is not answered within this time is discarded; the next heartbeat returns its runs.
    claim_timeout: Micros = 5 * SECOND
    #: How often an idle worker looks for runs without a notification.
    poll_interval: Micros = SECOND
    #: A busy worker waits this long for more free slots before it claims for a few.
    gather: Micros = 2 * MILLISECOND
    largest_claim: int = 500
    largest_completion: int = 1_000
    completions_in_flight: int = 2
    #: How long runs may continue when the worker is asked to drain. Runs that are not done by then are released.
    grace: Micros = 25 * SECOND
    #: How long a stopped attempt may clean up before it is killed.
    kill_grace: Micros = 2 * SECOND
    #: After this many runs the worker leaves and sets ``wants_recycling``.
    recycle_after_runs: int | None = None
    #: The worker also leaves for recycling when its own process, without children, uses this much memory.
    recycle_memory_bytes: int | None = None
    #: Keep what handlers print and log with their runs.
    capture_logs: bool = True
    children: ChildSettings = ChildSettings()
    #: The worker's labels: it receives only runs whose required labels are all among them.
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
        if self.heartbeat_interval < 1 or 2 * self.heartbeat_interval + self.lease_margin > self.lease:
            # One heartbeat may fail without the worker giving up everything it holds.
            raise Invalid("beatInterval", "is too long for the lease", "two of them and the margin must fit in")
        late = self.claim_timeout + self.children.start_patience + self.children.patience + self.kill_grace
        if late >= OVERDUE_GRACE:
            # The worker counts an attempt's time from its real start; the store must not end it earlier than the
            # worker.
            raise Invalid("claimTimeout", "with start patience, patience and kill grace is too long", "less than 30s")
        if min(self.largest_claim, self.largest_completion, self.completions_in_flight) < 1:
            raise Invalid("largestClaim", "batches must hold at least one run")
        if min(self.children.children, self.children.threads_per_child) < 1 or self.children.processes < 0:
            raise Invalid("children", "there must be at least one child with one thread")
