"""The sections of workers, schedulers and the brokers between them."""

import msgspec

from mainspring.config.sections.addresses import hide_secrets
from mainspring.config.sections.values import Priorities, Secret, Span, Table
from mainspring.core.model.base.instant import MINUTE, SECOND
from mainspring.core.model.cluster.coordination import STORE


class WorkerSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str = ""
    """The name of this worker, for display. Default: host name and process id."""
    queues: dict[str, int] = msgspec.field(default_factory=dict)
    """The queues that this worker serves, each with its slots, as in ``default:100,mail:20``. Default: all
    queues of the application, 100 slots each."""
    priorities: Priorities = msgspec.field(default_factory=dict)
    """A pool of slots for each priority, in every queue, as in ``1:100,2:50``. Default: one pool for all
    priorities."""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    """The labels of this worker, as in ``gpu=a100,region=eu``. Runs that require labels go to workers that have
    them."""
    lease: Span = 10 * SECOND
    """How long a worker without a heartbeat keeps its runs. Then other workers start them."""
    grace: Span = 25 * SECOND
    """How long runs may continue after the first SIGTERM."""
    children: int = 2
    """Child processes for sync tasks."""
    threads_per_child: int = 8
    """Threads in each child process."""
    child_start: Span = MINUTE
    """How long a child process may take to start and to import the application. After that, the runs that wait
    for it fail."""
    transactions: int = 5
    """Connections for handlers that use ``transaction()``, on PostgreSQL."""
    capture_logs: bool = True
    """Keep what tasks print and log with their runs."""
    recycle_after_runs: int = 0
    """Exit after this many runs, to be restarted; 0 for never."""
    recycle_memory: int = 0
    """Exit, to be restarted, when the process uses this many bytes, without its child processes; 0 for
    never."""
    recycle_child_after_runs: int = 0
    """Replace a child process after this many runs; 0 for never."""
    recycle_child_memory: int = 0
    """Replace a child process that uses this many bytes after a run; 0 for never."""


class SchedulerSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str = ""
    """The name of this scheduler, for display. Default: host name and process id."""
    lease: Span = 3 * SECOND // 2
    """How long a scheduler without a heartbeat keeps its shards."""


class DispatchSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    broker: str = STORE
    """The broker that sends hints to workers: ``redis://…``, ``amqp://…`` or ``kafka://…``. ``store``: no
    broker."""
    queues: Table = msgspec.field(default_factory=dict)
    """The broker of some queues, as in ``mail=redis://…,default=store``; ``*`` for all others."""
    status_cache: str = ""
    """A Redis with the status of runs and workers for other programs, ``redis://…``. It also notifies workers
    of cancels."""
    key: Secret = ""
    """The key that signs hints, the same for all processes. Default: a secret that the store generates, which
    everyone who can read the whole store can read. With ``api.submit_buffer``, it also signs the submitter of
    buffered jobs; without it, their author is ``ingest``."""

    def __repr__(self) -> str:
        return f"DispatchSection(broker={hide_secrets(self.broker)!r}, …)"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("broker", hide_secrets(self.broker))]


class ClockSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    warn_offset: Span = SECOND // 2
    """Log a warning if a node's clock differs from the store's by more than this."""
    max_offset: Span = 5 * SECOND
    """A scheduler whose clock differs from the store's by more than this schedules nothing; 0 for no limit."""
