"""All metrics with their names, kinds, labels and descriptions. A metric must be declared here to be reported.

``docs/reference/metrics.md`` is generated from this module.
"""

import re
from enum import StrEnum

import msgspec

_LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")
#: Seconds: call durations, from loopback to timeout.
_CALLS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
#: Seconds: durations of work.
_WORK = (0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)
#: Seconds: lateness. 10 is the threshold of the alert for lag.
_LATE = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
_SIZES = (1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0)


class MetricKind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"


class Whose(StrEnum):
    """The subject of a metric, and so which processes report it."""

    PROCESS = "every process, of itself"
    WORK = "processes that work, submit or settle, of what they did"
    WORKER = "workers, of themselves"
    SCHEDULER = "schedulers, of themselves"
    API = "APIs, of themselves"
    ENGINES = "processes with an engine, of what they had to do with it"
    FLEET = "schedulers and APIs, of the whole fleet"
    STORE = "schedulers, of the store"


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: MetricKind
    whose: Whose
    #: The description: one sentence, in Markdown for the reference.
    says: str
    labels: tuple[str, ...] = ()
    #: Histograms only: the upper bounds of the buckets.
    buckets: tuple[float, ...] = ()
    #: Only reported with ``metrics.tenants``.
    on_request: bool = False

    @property
    def plain(self) -> str:
        """The description without Markdown."""
        return _LINK.sub(r"\1", self.says).replace("`", "")

    @property
    def unit(self) -> str:
        """The unit, taken from the name by Prometheus conventions."""
        words = self.name.removesuffix("_total").split("_")
        return next((unit for unit in ("seconds", "bytes") if words[-1] == unit), "")


ALL: list[Metric] = []


def _declare(whose: Whose, kind: MetricKind, name: str, says: str, *labels: str, **more: object) -> Metric:
    metric = msgspec.convert(
        {"name": f"mainspring_{name}", "kind": kind, "whose": whose, "says": says, "labels": labels, **more}, Metric
    )
    ALL.append(metric)
    return metric


def _counter(whose: Whose, name: str, says: str, *labels: str, on_request: bool = False) -> Metric:
    return _declare(whose, MetricKind.COUNTER, name, says, *labels, on_request=on_request)


def _gauge(whose: Whose, name: str, says: str, *labels: str) -> Metric:
    return _declare(whose, MetricKind.GAUGE, name, says, *labels)


def _histogram(whose: Whose, name: str, says: str, *labels: str, buckets: tuple[float, ...]) -> Metric:
    return _declare(whose, MetricKind.HISTOGRAM, name, says, *labels, buckets=buckets)


BUILD = _gauge(Whose.PROCESS, "build_info", "1, with what runs here.", "version", "roles")
PROCESS_CLOCK = _gauge(
    Whose.PROCESS,
    "process_clock_offset_seconds",
    "How far this node's clock is ahead of the store's; missing where the store has the same clock.",
)
POOL = _gauge(Whose.PROCESS, "pool_connections", "Connections to PostgreSQL that are open, used or idle.", "state")
POOL_LIMIT = _gauge(Whose.PROCESS, "pool_connections_limit", "How many there may be.")
POOL_WAITING = _gauge(Whose.PROCESS, "pool_waiting_calls", "Calls that wait for a connection right now.")
SPANS = _counter(
    Whose.PROCESS,
    "trace_spans_total",
    "Spans of [traces](../operate/tracing.md) that went to the collector, or were dropped: it was away, or they came"
    " too fast.",
    "outcome",
)

SUBMITTED = _counter(Whose.WORK, "submitted_runs_total", "Runs that were submitted here and are new.", "task")
KNOWN = _counter(
    Whose.WORK, "known_submits_total", "Submits of an id or an idempotency key that was known: nothing was done."
)
CALL_SECONDS = _histogram(
    Whose.WORK,
    "store_call_seconds",
    "How long calls of the store took that move runs; each is one commit.",
    "call",
    buckets=_CALLS,
)
CALL_RUNS = _histogram(
    Whose.WORK, "store_call_runs", "How many runs such a call moved; of empty ones nothing.", "call", buckets=_SIZES
)
CALL_FAILURES = _counter(
    Whose.WORK, "store_call_failures_total", "Such calls that the store did not answer, or not in time.", "call"
)
ATTEMPTS = _counter(Whose.WORK, "attempts_total", "Attempts that ended, as the store has heard.", "task", "outcome")
ENDED = _counter(
    Whose.WORK,
    "ended_runs_total",
    "Runs that ended. Those without an attempt (cancelled, skipped, past their deadline) are told by a scheduler, about"
    " 15 s later.",
    "task",
    "state",
)
RETRIES = _counter(
    Whose.WORK, "retries_total", "Attempts after whose error, timeout or loss the run is tried again.", "task"
)
FENCED = _counter(
    Whose.WORK, "fenced_outcomes_total", "Outcomes that came too late: the run was somebody else's already."
)
LATENESS = _histogram(
    Whose.WORK,
    "start_lateness_seconds",
    "How long after it could have an attempt started: after it was due, or after a limit, a key or a pause let it go,"
    " or an attempt gave it back.",
    "queue",
    buckets=_LATE,
)
DURATION = _histogram(
    Whose.WORK, "attempt_seconds", "How long an attempt took, from its claim to its end.", "task", buckets=_WORK
)
TENANT_SUBMITTED = _counter(
    Whose.WORK, "tenant_submitted_runs_total", "Runs that were submitted here and are new.", "tenant", on_request=True
)
TENANT_ATTEMPTS = _counter(
    Whose.WORK, "tenant_attempts_total", "Attempts that ended.", "tenant", "outcome", on_request=True
)

SLOTS = _gauge(Whose.WORKER, "worker_slots", "How many runs of a queue it runs at once.", "queue")
SLOTS_USED = _gauge(Whose.WORKER, "worker_used_slots", "How many of them are taken.", "queue")
UNREPORTED = _gauge(Whose.WORKER, "worker_unreported_outcomes", "Outcomes that the store has not heard of yet.")
WORKER_MARGIN = _gauge(
    Whose.WORKER,
    "worker_lease_margin_seconds",
    "How long its lease is good if no beat is answered from now on; 0: it has none.",
)
CHILDREN = _gauge(Whose.WORKER, "worker_child_processes", "Child processes for sync tasks that live.")
LEASES_LOST = _counter(Whose.WORKER, "worker_lost_leases_total", "How often it lost its lease with all it ran.")

ARCHIVE_WAITING = _gauge(
    Whose.SCHEDULER,
    "archive_waiting_parts",
    "Parts of history that are kept beyond their time until they are [archived](../operate/retention.md).",
)
ARCHIVE_FAILING = _gauge(
    Whose.SCHEDULER,
    "archive_failing",
    "1 while the archive cannot be written or is damaged: what is not there is kept.",
)
RUN_LOGS_TAKEN = _counter(
    Whose.SCHEDULER, "run_logs_taken_total", "Logs of ended runs that went [out of the store](../guides/run-logs.md)."
)
RUN_LOGS_FAILED = _counter(
    Whose.SCHEDULER,
    "run_logs_failed_total",
    "How often one could not be put there: it stays in the store, and is tried again.",
)
RUN_LOGS_WAITING = _gauge(
    Whose.SCHEDULER, "run_logs_waiting_seconds", "For how long the one has waited that waits longest; 0: none does."
)
SHARDS_HERE = _gauge(Whose.SCHEDULER, "scheduler_shards", "Shards that this process owns right now.")
SCHEDULER_MARGIN = _gauge(
    Whose.SCHEDULER,
    "scheduler_lease_margin_seconds",
    "How long it may act on its shards if no renewal is answered from now on; 0: it may not.",
)
WHEEL = _gauge(Whose.SCHEDULER, "scheduler_wheel_entries", "Due times and planned ticks in its timing wheel.")
STAGED = _counter(Whose.SCHEDULER, "staged_runs_total", "Scheduled runs that it queued since their time had come.")
FIRED = _counter(Whose.SCHEDULER, "fired_ticks_total", "Ticks of recurring jobs that it fired.")
FIRE_LATENESS = _histogram(
    Whose.SCHEDULER, "fire_lateness_seconds", "How long after its time a recurring job fired.", buckets=_LATE
)
REAPED = _counter(
    Whose.SCHEDULER,
    "reaped_runs_total",
    "Runs that it gave to others or ended: of dead workers, over their time, expired.",
    "why",
)
SLO_CHANGES = _counter(
    Whose.SCHEDULER, "slo_changes_total", "Objectives of schedules that it found missed or recovered.", "change"
)
EVENTS_SENT = _counter(Whose.SCHEDULER, "events_sent_total", "Events that a sink has got from this process.", "sink")
EVENTS_FAILED = _counter(Whose.SCHEDULER, "events_failed_total", "Calls of a sink by this process that failed.", "sink")
EVENTS_DROPPED = _counter(
    Whose.SCHEDULER,
    "events_dropped_total",
    "Events that this process gave up, since the sink was away for longer than `events.keep`.",
    "sink",
)
INGEST_MADE = _counter(
    Whose.SCHEDULER, "ingest_made_total", "Jobs that it made of [requests by Kafka](api.md#jobs-by-kafka)."
)
INGEST_REFUSED = _counter(
    Whose.SCHEDULER, "ingest_refused_total", "Such requests that it put into the topic of those that were refused."
)
INGEST_WAITING = _gauge(Whose.SCHEDULER, "ingest_waiting_requests", "Such requests that wait here for a quota.")

REQUESTS = _counter(Whose.API, "api_requests_total", "Requests answered, also with errors.", "operation", "status")
REQUEST_SECONDS = _histogram(
    Whose.API, "api_request_seconds", "How long requests took; not those that stream.", "operation", buckets=_CALLS
)
STREAMS = _gauge(Whose.API, "api_streams", "Streams of events (SSE) and logs that are open.")
REPLICA_LAG = _gauge(
    Whose.API,
    "replica_lag_seconds",
    "How far the [replica](../deploy/postgresql.md#lists-from-a-replica) was behind when this process last listed"
    " from it; -1: not known, or there is none.",
)

PUBLISHED = _counter(
    Whose.ENGINES, "dispatch_published_total", "Hints that were published because of a change.", "engine"
)
REPUBLISHED = _counter(
    Whose.ENGINES,
    "dispatch_republished_total",
    "Hints that were published again, since nobody had come for their run: lost ones, or no worker is there.",
    "engine",
)
TAKEN = _counter(Whose.ENGINES, "dispatch_taken_total", "Hints that the worker of this process was given.", "engine")
CLAIMED = _counter(
    Whose.ENGINES,
    "dispatch_claimed_total",
    "Runs that it started by a hint; the others it found in the store, or somebody was quicker.",
    "engine",
)
REFUSED = _counter(
    Whose.ENGINES, "dispatch_refused_total", "Messages that it dropped because they were not ours.", "engine"
)
OUTAGES = _counter(
    Whose.ENGINES,
    "dispatch_outages_total",
    "How often the engine did not answer and was left alone for a while.",
    "engine",
)
ENGINE_UP = _gauge(Whose.ENGINES, "dispatch_up", "1: the engine answers this process.", "engine")
ROUND_TRIP = _declare(
    Whose.ENGINES,
    MetricKind.SUMMARY,
    "dispatch_round_trip_seconds",
    "How long its calls of the engine took; not those that wait for a hint.",
    "engine",
)

STORE_UP = _gauge(Whose.FLEET, "store_up", "1: the store answers. 0: what is of the fleet is missing.")
COUNTED = _gauge(
    Whose.FLEET,
    "queues_counted",
    "1: what is in the queues is known. 0: the store could not count it for more than a minute, and it is missing.",
)
QUEUED = _gauge(Whose.FLEET, "queued_runs", "Runs that are queued.", "queue")
RUNNING = _gauge(Whose.FLEET, "running_runs", "Runs that are running.", "queue")
LAG = _gauge(
    Whose.FLEET,
    "queue_lag_seconds",
    "How long the oldest queued run has waited for a worker: now less due, or less when a limit, a key or a pause let"
    " it go, or an attempt gave it back. Paused runs do not count, nor runs that require a data center where no worker"
    " takes the queue.",
    "queue",
)
PAUSED = _gauge(
    Whose.FLEET,
    "queue_paused",
    "1: nothing is taken from a queue, since somebody said so; a pause of one tenant alone does not count.",
    "queue",
)
ARRIVALS = _gauge(Whose.FLEET, "queue_arrivals_per_second", "Runs that come to a queue.", "queue")
SERVICES = _gauge(Whose.FLEET, "queue_ends_per_second", "Runs of a queue that end.", "queue")
WANTED = _gauge(
    Whose.FLEET,
    "recommended_workers",
    "Workers with 100 slots that the load of a queue asks for; [more](../operate/scaling.md).",
    "queue",
)
WANTED_SLOTS = _gauge(
    Whose.FLEET,
    "recommended_slots",
    "Slots that the load of a queue asks for, not rounded: divide by those of one of your workers.",
    "queue",
)
QUEUE_WORKERS = _gauge(
    Whose.FLEET,
    "queue_workers",
    "Live workers that take runs of a queue; of `other` as many as the queue has that has fewest.",
    "queue",
)
HINTS = _gauge(
    Whose.FLEET,
    "engine_hints",
    "Hints that an [engine](../concepts/brokers.md) has not brought to a worker; of Kafka the lag of the group.",
    "queue",
)
WORKERS = _gauge(Whose.FLEET, "live_workers", "Workers whose lease is good.")
SCHEDULERS = _gauge(
    Whose.FLEET, "live_schedulers", "Schedulers whose lease is good; over several servers one counts on each."
)
SHARDS = _gauge(Whose.FLEET, "shards", "Shards of the store, on all its servers.")
OWNED = _gauge(Whose.FLEET, "owned_shards", "Those of them that a live scheduler owns.")
CLOCKS = _gauge(
    Whose.FLEET,
    "clock_offset_seconds",
    "How far the clock that is furthest off is ahead of the store's; [more](../operate/clocks.md).",
    "kind",
)
BEHIND = _gauge(
    Whose.FLEET,
    "events_lag_seconds",
    "How old the oldest [event](events.md) is that a sink has not got; 0: it has all.",
    "sink",
)

DEAD_LETTERS = _gauge(Whose.STORE, "dead_letters", "Runs that failed and were neither replayed nor discarded.")
SCHEDULED = _gauge(
    Whose.STORE,
    "scheduled_runs",
    "Runs that wait for their time, or for their next attempt. Counted up to 10,000; beyond that as PostgreSQL"
    " estimates. SQLite counts up to 100,000.",
)
BLOCKED = _gauge(
    Whose.STORE,
    "blocked_runs",
    "Runs that wait for a key, a limit or other runs. Counted likewise, each kind by itself.",
)
MISSED = _gauge(Whose.STORE, "missed_objectives", "Schedules that miss an objective (`slo`) right now.")
LOST_WORKERS = _gauge(
    Whose.STORE,
    "lost_workers",
    "Workers whose lease ran out in the last six hours: they died, or did not reach the store. Who says good-bye is not"
    " counted. PostgreSQL only.",
)
STAGING_LAG = _gauge(
    Whose.STORE, "staging_lag_seconds", "How long the oldest scheduled run has been due without being queued."
)
FIRING_LAG = _gauge(
    Whose.STORE, "firing_lag_seconds", "How long the oldest schedule has been due without having fired."
)
STORE_SIZE = _gauge(Whose.STORE, "store_size_bytes", "What the database takes, with its indexes.", "server")
DISK_FREE = _gauge(
    Whose.STORE, "store_disk_free_bytes", "Room on the disk of an SQLite file; PostgreSQL does not say.", "server"
)
DEAD_ROWS = _gauge(
    Whose.STORE, "store_dead_rows", "Rows of a live table that vacuum has not removed.", "server", "table"
)
LIVE_ROWS = _gauge(Whose.STORE, "store_live_rows", "Rows that count, as PostgreSQL estimates.", "server", "table")
VACUUM_AGE = _gauge(
    Whose.STORE,
    "store_vacuum_age_seconds",
    "How long ago a table was vacuumed; missing if it never was.",
    "server",
    "table",
)
OLDEST = _gauge(
    Whose.STORE,
    "store_oldest_transaction_seconds",
    "How long the oldest transaction has been open that holds vacuum back: one with a snapshot, or that has written,"
    " here or on a standby. Missing where our role may not"
    " [see those of others](../deploy/postgresql.md#what-the-role-may-see).",
    "server",
)
XID_AGE = _gauge(
    Whose.STORE,
    "store_transaction_id_age",
    "Of the oldest transaction id in any database; the server stops at 2 billion.",
    "server",
)
CONNECTIONS = _gauge(Whose.STORE, "store_connections", "Connections to the server, of everybody.", "server")
CONNECTIONS_LIMIT = _gauge(Whose.STORE, "store_connections_limit", "How many it allows.", "server")
WAL_KEPT = _gauge(
    Whose.STORE, "store_kept_wal_bytes", "Write-ahead log that the server keeps for who replicates.", "server"
)

STANDBY_LAG = _gauge(
    Whose.STORE,
    "store_replication_lag_seconds",
    "How long the standby that is furthest behind takes to apply what the server has written; missing where there is"
    " none, or our role may not [see it](../deploy/postgresql.md#what-the-role-may-see).",
    "server",
)
STANDBY_BYTES = _gauge(
    Whose.STORE,
    "store_replication_lag_bytes",
    "Write-ahead log that the standby which is furthest behind has not applied; missing likewise.",
    "server",
)

#: Metrics that prometheus-client reports for every process by itself, where there is a ``/proc``.
STANDARD = tuple(
    Metric(name=name, kind=kind, whose=Whose.PROCESS, says=says)
    for name, kind, says in (
        ("process_cpu_seconds_total", MetricKind.COUNTER, "Time on processors."),
        ("process_max_fds", MetricKind.GAUGE, "Files that it may have open."),
        ("process_open_fds", MetricKind.GAUGE, "Files that it has open."),
        ("process_resident_memory_bytes", MetricKind.GAUGE, "Memory in use."),
        ("process_start_time_seconds", MetricKind.GAUGE, "When it started, in seconds since 1970."),
        ("process_virtual_memory_bytes", MetricKind.GAUGE, "Addresses in use."),
    )
)
