"""All rows of a memory store, and the indexes that find them."""

import uuid
from collections import Counter, defaultdict, deque
from collections.abc import Collection

from mainspring.core.model.access.access import ApiKey, Tenant
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import JobId, RunId, SessionId, decode_shard
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.limits.budget import BudgetStatus
from mainspring.core.model.limits.queues import QueuePolicy
from mainspring.core.model.runs.dead_letters import DeadLetterWatch
from mainspring.core.model.runs.replay import Replay
from mainspring.core.model.runs.retention import CLASSES, STANDARD
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import AttemptView
from mainspring.core.model.schedules.calendar import Calendar
from mainspring.core.model.tasks.task_entry import KnownTask
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.storage.access import AuditEntry
from mainspring.core.ports.storage.catalog import JobVersion, Load, LogLine, Pause
from mainspring.core.ports.storage.datacenters import PreferenceOrder
from mainspring.core.ports.storage.outbox import EventBatch
from mainspring.core.ports.wakeups import Wakeups
from mainspring.stores.memory.index import Index
from mainspring.stores.memory.ledger import Ledger
from mainspring.stores.memory.rows import (
    JobRow,
    KeyLock,
    LabelSet,
    RunRow,
    SessionRow,
    ShardRow,
    SloRow,
    UniqueKey,
    UsedKey,
)
from mainspring.stores.memory.work.dependencies import DependencyGraph
from mainspring.stores.memory.work.limiters import Limiters

#: The high bits of a fence are the store's epoch, the low bits a sequence. A restored store raises the epoch.
SEQUENCE_BITS = 40


class StoreData:
    """All rows. A run is in exactly the indexes of its state; ``RunPlacement`` keeps it so."""

    def __init__(self, clock: Clock, shards: int, wakeups: Wakeups | None = None) -> None:
        self._clock = clock
        self.wakeups = wakeups
        self.shards = shards
        #: The time of the current transaction.
        self.now: Instant = 0
        self.store_id = uuid.uuid4().hex
        self.hint_key = uuid.uuid4().hex
        self.store_epoch = 1
        self._fences = 0

        self.runs: dict[RunId, RunRow] = {}
        self.attempts: defaultdict[RunId, list[AttemptView]] = defaultdict(list)
        #: Queued runs, by queue, label set and rank.
        self.ready: defaultdict[str, defaultdict[LabelSet, Index]] = defaultdict(lambda: defaultdict(Index))
        #: Runs that have not ended, by the only session that may run them.
        self.by_target: defaultdict[SessionId, dict[RunId, None]] = defaultdict(dict)
        #: Scheduled runs, by shard and due time.
        self.scheduled = [Index() for _ in range(shards)]
        #: Running runs, by session.
        self.running_by_session: defaultdict[SessionId, dict[RunId, None]] = defaultdict(dict)
        #: Runs that have not ended, by job.
        self.active_by_job: defaultdict[JobId, dict[RunId, None]] = defaultdict(dict)
        #: Runs that have not ended, by their latest start time and by their deadline.
        self.start_bys = Index()
        self.deadlines = Index()
        #: Ended runs of the standard retention class, in the order they ended.
        self.succeeded: deque[RunId] = deque()
        self.unsuccessful: deque[RunId] = deque()
        #: Ended runs of the other retention classes, in the order they ended.
        self.ended_by_class: dict[str, deque[RunId]] = {name: deque() for name in CLASSES if name != STANDARD}
        #: Bytes logged, by (tenant, day), for tenants with a daily quota.
        self.log_days: Counter[tuple[str, int]] = Counter()
        #: Log output, by run.
        self.logs: defaultdict[RunId, list[LogLine]] = defaultdict(list)
        #: Number of running runs, by tenant.
        self.running_by_tenant: Counter[str] = Counter()
        #: Pauses, by (tenant, queue).
        self.pauses: dict[tuple[str | None, str | None], Pause] = {}
        #: Queue policies and their state: the fair-share clock, the turn of each tenant, and the retries per period.
        self.queue_policies: dict[str, QueuePolicy] = {}
        self.queue_clocks: Counter[str] = Counter()
        self.queue_turns: defaultdict[str, dict[str, int]] = defaultdict(dict)
        self.queue_retries: defaultdict[str, dict[int, int]] = defaultdict(dict)
        #: The task catalog, by name.
        self.tasks: dict[str, KnownTask] = {}
        #: Queues that have had runs of more than one slot.
        self.weighted: set[str] = set()
        #: Idempotency keys, by (tenant, key).
        self.used_keys: dict[tuple[str, str], UsedKey] = {}
        #: The fields of ``Minute``, by (minute, queue, tenant).
        self.minute_counts: defaultdict[tuple[Instant, str, str], Counter[str]] = defaultdict(Counter)
        #: Histograms of start delay and duration, by (five minutes, queue, tenant).
        self.timings: defaultdict[tuple[Instant, str, str], tuple[Counter[int], Counter[int]]] = defaultdict(
            lambda: (Counter(), Counter())
        )
        #: Waiting and running load, by minute, then by (tenant, queue).
        self.loads: dict[Instant, dict[tuple[str, str], Load]] = {}
        #: Used amounts, by (day, tenant, task, job, unit).
        self.usage: defaultdict[tuple[Instant, str, str, str, str], float] = defaultdict(float)
        #: Budgets, by (tenant, name).
        self.budgets: dict[tuple[str, str], BudgetStatus] = {}
        self.key_locks: dict[int, KeyLock] = {}
        self.limiters = Limiters(self.runs)
        self.dependencies = DependencyGraph()
        #: Unique keys, by (tenant, key).
        self.unique_keys: dict[tuple[str, str], UniqueKey] = {}
        #: Runs that reach their limits in this transaction and need no ``run.queued`` event: another event reports them
        #: (None), or they keep their rank and the time they were queued at.
        self._kept_ranks: dict[RunId, tuple[int, Instant] | None] = {}
        #: Runs that reached their limits in this transaction after waiting only for their due time.
        self._arrived: set[RunId] = set()
        #: Runs that ended without an attempt, by (task, state), until they are reported.
        self.unattempted: Counter[tuple[str, RunState]] = Counter()
        #: Known groups of dead letters, by (tenant, task, fingerprint), and the time up to which dead letters were
        #: grouped.
        self.watches: dict[tuple[str, str, str], DeadLetterWatch] = {}
        self.watched_until: Instant = 0
        self.replays: dict[str, Replay] = {}

        self.jobs: dict[JobId, JobRow] = {}
        self.job_names: dict[tuple[str, str], JobId] = {}
        #: Versions of each job, oldest first.
        self.versions: defaultdict[JobId, list[JobVersion]] = defaultdict(list)
        #: Jobs with a next tick, by shard and time of that tick.
        self.due_jobs = [Index() for _ in range(shards)]
        self.ledgers: defaultdict[JobId, Ledger] = defaultdict(Ledger)

        #: Objectives of jobs, and when each is evaluated next.
        self.slos: dict[JobId, SloRow] = {}
        self.slo_checks = Index()
        #: State of the alerts, and the number of changes to it.
        self.notifications: dict[str, bytes] = {}
        self.notification_rev = 0
        #: All versions of each calendar, oldest first, by (tenant, name).
        self.calendars: dict[tuple[str, str], list[Calendar]] = {}

        self.sessions: dict[SessionId, SessionRow] = {}
        #: Data center preference orders, by word.
        self.preferences: dict[str, PreferenceOrder] = {}
        self.shard_rows = [ShardRow() for _ in range(shards)]

        self.tenants: dict[str, Tenant] = {}
        #: Signed-out dashboard sessions, with the time each would have expired.
        self.signed_out: dict[str, Instant] = {}
        self.api_keys: dict[str, ApiKey] = {}
        self.audit_entries: list[AuditEntry] = []

        #: Cursor of each event reader.
        self.readers: dict[str, str] = {}
        #: Time at which a temporary reader expires.
        self.readers_until: dict[str, Instant] = {}
        self.outbox: deque[EventBatch] = deque()
        self._position = 0
        #: Newest position whose batch was dropped or may never have been written.
        self.horizon = format_position(0)
        self._run_events: dict[tuple[str, str], list[RunId]] = {}
        #: Job events, one batch per job: the events of one job must keep their order.
        self._job_events: list[tuple[str, str, JobId]] = []
        #: Queues that got work in this transaction. A caller that frees a key or a limit does not know the queues of
        #: the runs that it releases.
        self._queues_with_work: dict[str, None] = {}

    @property
    def position(self) -> str:
        """Position of the newest event."""
        return format_position(self._position)

    def next_fence(self) -> int:
        self._fences += 1
        return self.store_epoch << SEQUENCE_BITS | self._fences

    def find_live_session(self, session: SessionId) -> SessionRow | None:
        """Return the session if its lease is valid now."""
        row = self.sessions.get(session)
        return row if row is not None and row.is_live(self.now) else None

    def filter_owned(self, owner: SessionId, shards: Collection[int]) -> list[int]:
        """Return those of ``shards`` that ``owner`` owns; none if its lease has expired."""
        if self.find_live_session(owner) is None:
            return []
        return [shard for shard in set(shards) if 0 <= shard < self.shards and self.shard_rows[shard].owner == owner]

    def check_shard(self, identifier: str) -> None:
        # No scheduler ever reads a shard that the store does not have.
        if decode_shard(identifier) >= self.shards:
            raise Invalid("id", f"{identifier} carries shard {decode_shard(identifier)}", f"0 to {self.shards - 1}")


def format_position(number: int) -> str:
    """Encode an event position as text that sorts like the number."""
    return f"{number:020d}"
