"""All metrics with their names, kinds, labels and descriptions. A metric must be declared here to be reported.

``docs/reference/metrics.md`` is generated from this module.
"""

from mainspring.core.runtime.metrics.metric import (
    DECLARED,
    Metric,
    MetricKind,
    Scope,
    counter,
    declare,
    gauge,
    histogram,
)

#: Seconds: call durations, from loopback to timeout.
_CALLS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
#: Seconds: durations of work.
_WORK = (0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)
#: Seconds: lateness. 10 is the threshold of the alert for lag.
_LATE = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
_SIZES = (1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0)

BUILD = gauge(
    Scope.PROCESS,
    "build_info",
    "Always 1; the labels are the version and the roles of this process.",
    "version",
    "roles",
)
PROCESS_CLOCK = gauge(
    Scope.PROCESS,
    "process_clock_offset_seconds",
    "How far this node's clock is ahead of the store's; missing if the store uses the same clock.",
)
POOL = gauge(Scope.PROCESS, "pool_connections", "Open connections to PostgreSQL, by state: used or idle.", "state")
POOL_LIMIT = gauge(Scope.PROCESS, "pool_connections_limit", "Maximum number of connections of the pool.")
POOL_WAITING = gauge(Scope.PROCESS, "pool_waiting_calls", "Calls that are waiting for a connection.")
SPANS = counter(
    Scope.PROCESS,
    "trace_spans_total",
    "Spans of [traces](../operate/tracing.md), sent to the collector or dropped because it was unavailable or "
    "the queue was full.",
    "outcome",
)

SUBMITTED = counter(Scope.WORK, "submitted_runs_total", "New runs submitted by this process.", "task")
DUPLICATES = counter(
    Scope.WORK,
    "duplicate_submits_total",
    "Submits with an id or an idempotency key that was used before; they changed nothing.",
)
CALL_SECONDS = histogram(
    Scope.WORK,
    "store_call_seconds",
    "Duration of store calls that change runs; each call is one commit.",
    "call",
    buckets=_CALLS,
)
CALL_RUNS = histogram(
    Scope.WORK, "store_call_runs", "Runs per store call; calls without runs are not counted.", "call", buckets=_SIZES
)
CALL_FAILURES = counter(Scope.WORK, "store_call_failures_total", "Store calls that failed or timed out.", "call")
ATTEMPTS = counter(Scope.WORK, "attempts_total", "Completed attempts that the store accepted.", "task", "outcome")
ENDED = counter(
    Scope.WORK,
    "ended_runs_total",
    "Completed runs. Runs without an attempt (cancelled, skipped, past their deadline) are counted by a "
    "scheduler, about 15 s later.",
    "task",
    "state",
)
RETRIES = counter(Scope.WORK, "retries_total", "Attempts that are retried after an error, a timeout or a loss.", "task")
STALE = counter(Scope.WORK, "stale_outcomes_total", "Outcomes rejected as stale: a newer attempt had the run.")
LATENESS = histogram(
    Scope.WORK,
    "start_lateness_seconds",
    "Start delay of attempts: since the run was due, since a limit, a key or a pause released it, or since its"
    " last attempt returned it.",
    "queue",
    buckets=_LATE,
)
DURATION = histogram(Scope.WORK, "attempt_seconds", "Duration of attempts, from claim to end.", "task", buckets=_WORK)
TENANT_SUBMITTED = counter(
    Scope.WORK, "tenant_submitted_runs_total", "New runs submitted by this process.", "tenant", on_request=True
)
TENANT_ATTEMPTS = counter(
    Scope.WORK, "tenant_attempts_total", "Completed attempts.", "tenant", "outcome", on_request=True
)

SLOTS = gauge(Scope.WORKER, "worker_slots", "Slots per queue: how many runs this worker executes at once.", "queue")
SLOTS_USED = gauge(Scope.WORKER, "worker_used_slots", "Slots in use per queue.", "queue")
UNREPORTED = gauge(Scope.WORKER, "worker_unreported_outcomes", "Outcomes that were not yet reported to the store.")
WORKER_MARGIN = gauge(
    Scope.WORKER,
    "worker_lease_margin_seconds",
    "Time until the lease ends if no heartbeat is answered from now on; 0 without a lease.",
)
CHILDREN = gauge(Scope.WORKER, "worker_child_processes", "Running child processes for sync tasks.")
LEASES_LOST = counter(
    Scope.WORKER, "worker_lost_leases_total", "Leases that this worker lost, with all runs it was executing."
)

ARCHIVE_WAITING = gauge(
    Scope.SCHEDULER,
    "archive_waiting_parts",
    "Parts of history that are kept beyond their retention until they are [archived](../operate/retention.md).",
)
ARCHIVE_FAILING = gauge(
    Scope.SCHEDULER,
    "archive_failing",
    "1 if the archive is damaged or cannot be written; history is then kept.",
)
RUN_LOGS_TAKEN = counter(
    Scope.SCHEDULER, "run_logs_taken_total", "Logs of completed runs moved [out of the store](../guides/run-logs.md)."
)
RUN_LOGS_FAILED = counter(
    Scope.SCHEDULER,
    "run_logs_failed_total",
    "Failed attempts to move a log; it stays in the store and is retried.",
)
RUN_LOGS_WAITING = gauge(
    Scope.SCHEDULER, "run_logs_waiting_seconds", "Age of the oldest log that waits to be moved; 0 if none waits."
)
SHARDS_HERE = gauge(Scope.SCHEDULER, "scheduler_shards", "Shards that this process owns.")
SCHEDULER_MARGIN = gauge(
    Scope.SCHEDULER,
    "scheduler_lease_margin_seconds",
    "Time until this process stops acting on its shards if no renewal is answered from now on; 0 without a lease.",
)
WHEEL = gauge(Scope.SCHEDULER, "scheduler_wheel_entries", "Due times and planned ticks in the timing wheel.")
STAGED = counter(Scope.SCHEDULER, "staged_runs_total", "Scheduled runs that were queued when they came due.")
FIRED = counter(Scope.SCHEDULER, "fired_ticks_total", "Fired ticks of recurring jobs.")
FIRE_LATENESS = histogram(
    Scope.SCHEDULER, "fire_lateness_seconds", "Delay between the time of a tick and its firing.", buckets=_LATE
)
REAPED = counter(
    Scope.SCHEDULER,
    "reaped_runs_total",
    "Runs requeued or ended by the reaper: of expired sessions, overdue, or expired.",
    "why",
)
SLO_CHANGES = counter(
    Scope.SCHEDULER, "slo_changes_total", "Objectives of schedules that were missed or recovered.", "change"
)
EVENTS_SENT = counter(Scope.SCHEDULER, "events_sent_total", "Events delivered to a sink.", "sink")
EVENTS_FAILED = counter(Scope.SCHEDULER, "events_failed_total", "Failed calls of a sink.", "sink")
EVENTS_DROPPED = counter(
    Scope.SCHEDULER,
    "events_dropped_total",
    "Events dropped because the sink was unavailable for longer than `events.keep`.",
    "sink",
)
INGEST_MADE = counter(
    Scope.SCHEDULER, "ingest_made_total", "Jobs created from [requests on Kafka](api.md#jobs-by-kafka)."
)
INGEST_REFUSED = counter(
    Scope.SCHEDULER,
    "ingest_refused_total",
    "Requests on Kafka that were rejected and moved to the topic for rejected requests.",
)
INGEST_WAITING = gauge(Scope.SCHEDULER, "ingest_waiting_requests", "Requests on Kafka that wait for a quota.")

REQUESTS = counter(Scope.API, "api_requests_total", "Answered requests, including errors.", "operation", "status")
REQUEST_SECONDS = histogram(
    Scope.API, "api_request_seconds", "Duration of requests, without streams.", "operation", buckets=_CALLS
)
STREAMS = gauge(Scope.API, "api_streams", "Open streams of events (SSE) and logs.")
REPLICA_LAG = gauge(
    Scope.API,
    "replica_lag_seconds",
    "How far the [replica](../deploy/postgresql.md#lists-from-a-replica) was behind when this process last listed"
    " from it; -1: not known, or there is none.",
)

PUBLISHED = counter(Scope.BROKERS, "dispatch_published_total", "Hints published after a change.", "broker")
REPUBLISHED = counter(
    Scope.BROKERS,
    "dispatch_republished_total",
    "Hints published again because no worker had claimed the run.",
    "broker",
)
TAKEN = counter(Scope.BROKERS, "dispatch_taken_total", "Hints received by the worker of this process.", "broker")
CLAIMED = counter(
    Scope.BROKERS,
    "dispatch_claimed_total",
    "Runs started by a hint. Other runs were found in the store, or another worker was faster.",
    "broker",
)
REFUSED = counter(
    Scope.BROKERS,
    "dispatch_refused_total",
    "Messages dropped because they are not signed hints of this store.",
    "broker",
)
OUTAGES = counter(
    Scope.BROKERS,
    "dispatch_outages_total",
    "Outages of the broker; it is not called for a while after each.",
    "broker",
)
BROKER_UP = gauge(Scope.BROKERS, "dispatch_up", "1 if the broker answers this process.", "broker")
ROUND_TRIP = declare(
    Scope.BROKERS,
    MetricKind.SUMMARY,
    "dispatch_round_trip_seconds",
    "Duration of calls of the broker, without those that wait for a hint.",
    "broker",
)

STORE_UP = gauge(Scope.FLEET, "store_up", "1 if the store answers. If 0, the metrics of the fleet are missing.")
COUNTED = gauge(
    Scope.FLEET,
    "queues_counted",
    "1 if the queue metrics are current. 0 if the store could not count for more than a minute; they are then missing.",
)
QUEUED = gauge(Scope.FLEET, "queued_runs", "Queued runs.", "queue")
RUNNING = gauge(Scope.FLEET, "running_runs", "Running runs.", "queue")
LAG = gauge(
    Scope.FLEET,
    "queue_lag_seconds",
    "How long the oldest queued run has waited for a worker: since it was due, since a limit, a key or a pause"
    " released it, or since its last attempt returned it. Paused runs do not count, nor runs that require a "
    "data center where no worker serves the queue.",
    "queue",
)
PAUSED = gauge(
    Scope.FLEET,
    "queue_paused",
    "1 if the queue is paused; a pause of a single tenant does not count.",
    "queue",
)
ARRIVALS = gauge(Scope.FLEET, "queue_arrivals_per_second", "Runs that arrive in a queue.", "queue")
SERVICES = gauge(Scope.FLEET, "queue_completions_per_second", "Runs of a queue that complete.", "queue")
WANTED = gauge(
    Scope.FLEET,
    "recommended_workers",
    "Recommended number of workers with 100 slots for the load of a queue; see [scaling](../operate/scaling.md).",
    "queue",
)
WANTED_SLOTS = gauge(
    Scope.FLEET,
    "recommended_slots",
    "Recommended number of slots for the load of a queue, not rounded: divide by the slots of one of your workers.",
    "queue",
)
QUEUE_WORKERS = gauge(
    Scope.FLEET,
    "queue_workers",
    "Live workers that serve a queue; for `other`, those of the queue that has the fewest.",
    "queue",
)
HINTS = gauge(
    Scope.FLEET,
    "broker_hints",
    "Hints in a [broker](../concepts/brokers.md) that no worker has received; with Kafka, the lag of the group.",
    "queue",
)
WORKERS = gauge(Scope.FLEET, "live_workers", "Workers with a live lease.")
SCHEDULERS = gauge(
    Scope.FLEET, "live_schedulers", "Schedulers with a live lease; in a sharded store, each counts once per server."
)
SHARDS = gauge(Scope.FLEET, "shards", "Shards of the store, on all its servers.")
OWNED = gauge(Scope.FLEET, "owned_shards", "Shards that a live scheduler owns.")
CLOCKS = gauge(
    Scope.FLEET,
    "clock_offset_seconds",
    "Offset of the clock that is furthest off, ahead of the store's; see [clocks](../operate/clocks.md).",
    "kind",
)
BEHIND = gauge(
    Scope.FLEET,
    "events_lag_seconds",
    "Age of the oldest [event](events.md) that a sink has not received; 0 if it has all.",
    "sink",
)

DEAD_LETTERS = gauge(Scope.STORE, "dead_letters", "Failed runs that were neither replayed nor discarded.")
SCHEDULED = gauge(
    Scope.STORE,
    "scheduled_runs",
    "Runs that wait for their due time or their next attempt. Counted up to 10,000, above that PostgreSQL's "
    "estimate. SQLite counts up to 100,000.",
)
BLOCKED = gauge(
    Scope.STORE,
    "blocked_runs",
    "Runs that wait for a key, a limit or other runs. Counted like scheduled runs, each kind by itself.",
)
MISSED = gauge(Scope.STORE, "missed_objectives", "Schedules that currently miss an objective (`slo`).")
LOST_WORKERS = gauge(
    Scope.STORE,
    "lost_workers",
    "Workers scope lease expired in the last six hours, because they died or did not reach the store. Workers "
    "that left are not counted. PostgreSQL only.",
)
STAGING_LAG = gauge(
    Scope.STORE, "staging_lag_seconds", "How long the oldest scheduled run has been due without being queued."
)
FIRING_LAG = gauge(Scope.STORE, "firing_lag_seconds", "How long the oldest schedule has been due without having fired.")
STORE_SIZE = gauge(Scope.STORE, "store_size_bytes", "Size of the database with its indexes.", "server")
DISK_FREE = gauge(
    Scope.STORE,
    "store_disk_free_bytes",
    "Free space on the disk of an SQLite file; not available with PostgreSQL.",
    "server",
)
DEAD_ROWS = gauge(
    Scope.STORE, "store_dead_rows", "Rows of a live table that vacuum has not removed.", "server", "table"
)
LIVE_ROWS = gauge(Scope.STORE, "store_live_rows", "Live rows, as PostgreSQL estimates.", "server", "table")
VACUUM_AGE = gauge(
    Scope.STORE,
    "store_vacuum_age_seconds",
    "Time since a table was vacuumed; missing if it never was.",
    "server",
    "table",
)
OLDEST = gauge(
    Scope.STORE,
    "store_oldest_transaction_seconds",
    "How long the oldest transaction has been open that holds vacuum back: one with a snapshot, or that has written,"
    " here or on a standby. Missing where our role may not"
    " [see those of others](../deploy/postgresql.md#what-the-role-may-see).",
    "server",
)
XID_AGE = gauge(
    Scope.STORE,
    "store_transaction_id_age",
    "Age of the oldest transaction id in any database; the server stops at 2 billion.",
    "server",
)
CONNECTIONS = gauge(Scope.STORE, "store_connections", "Connections to the server, of all clients.", "server")
CONNECTIONS_LIMIT = gauge(
    Scope.STORE, "store_connections_limit", "Maximum number of connections to the server.", "server"
)
WAL_KEPT = gauge(
    Scope.STORE, "store_kept_wal_bytes", "Write-ahead log that the server keeps for replication.", "server"
)

STANDBY_LAG = gauge(
    Scope.STORE,
    "store_replication_lag_seconds",
    "How long the standby that is furthest behind takes to apply what the server has written; missing where there is"
    " none, or our role may not [see it](../deploy/postgresql.md#what-the-role-may-see).",
    "server",
)
STANDBY_BYTES = gauge(
    Scope.STORE,
    "store_replication_lag_bytes",
    "Write-ahead log that the standby furthest behind has not applied; missing under the same conditions.",
    "server",
)

#: All metrics above.
ALL: tuple[Metric, ...] = tuple(DECLARED)

#: Metrics that prometheus-client reports for every process by itself, where there is a ``/proc``.
STANDARD = tuple(
    Metric(name=name, kind=kind, scope=Scope.PROCESS, description=description)
    for name, kind, description in (
        ("process_cpu_seconds_total", MetricKind.COUNTER, "CPU time."),
        ("process_max_fds", MetricKind.GAUGE, "Maximum number of open files."),
        ("process_open_fds", MetricKind.GAUGE, "Open files."),
        ("process_resident_memory_bytes", MetricKind.GAUGE, "Memory in use."),
        ("process_start_time_seconds", MetricKind.GAUGE, "When it started, in seconds since 1970."),
        ("process_virtual_memory_bytes", MetricKind.GAUGE, "Virtual memory in use."),
    )
)
