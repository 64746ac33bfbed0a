"""The table: each figure beside what it must be at least, and what it should be."""

import operator
from collections.abc import Callable, Mapping
from typing import Literal

import msgspec
from rich.table import Table
from rich.text import Text

from bench.figures import Figures, Value, number

PER_SECOND, MS, TIMES, MB = "jobs/s", "ms", "×", "MB"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table. ``least`` and ``goal`` are limits in the direction that is better."""

    key: str
    label: str
    unit: str = ""
    better: Literal["more", "less"] = "less"
    least: float | None = None
    goal: float | None = None
    #: What holds on SQLite, where that is something else.
    sqlite: tuple[float, float] | None = None
    #: Whether the limits are for PostgreSQL alone.
    postgres_only: bool = True


ROWS = (
    Row(
        key="full_cycle_jobs_per_s",
        label="full cycle: submit → run → recorded",
        unit=PER_SECOND,
        better="more",
        least=12_000,
        goal=20_000,
        sqlite=(10_000, 25_000),
    ),
    Row(key="bare_sql_jobs_per_s", label="  its ceiling: bare statements", unit=PER_SECOND, better="more"),
    Row(key="full_cycle_of_ceiling", label="  of its ceiling", unit=TIMES, better="more", least=0.5),
    Row(key="drain_jobs_per_s", label="drain of a full queue", unit=PER_SECOND, better="more"),
    Row(
        key="policy_plain_jobs_per_s",
        label="submit → run → recorded, one load: plain runs",
        unit=PER_SECOND,
        better="more",
    ),
    Row(key="policy_limit_jobs_per_s", label="  with a limit by key that binds", unit=PER_SECOND, better="more"),
    Row(key="policy_rate_jobs_per_s", label="  with a rate limit that does not bind", unit=PER_SECOND, better="more"),
    Row(key="policy_ordered_jobs_per_s", label="  with ordering keys", unit=PER_SECOND, better="more"),
    Row(key="policy_dependent_jobs_per_s", label="  in workflows of ten", unit=PER_SECOND, better="more"),
    Row(key="policy_unique_jobs_per_s", label="  with unique keys", unit=PER_SECOND, better="more"),
    Row(key="submit_single_jobs_per_s", label="submit, one by one", unit=PER_SECOND, better="more", least=1_300),
    Row(key="submit_concurrent_jobs_per_s", label="submit, 64 at once", unit=PER_SECOND, better="more", least=8_000),
    Row(key="submit_batch_jobs_per_s", label="submit, batches of 1,000", unit=PER_SECOND, better="more", least=40_000),
    Row(key="idle_latency_p50_ms", label="idle latency, submit → start, p50", unit=MS, least=4, goal=1.5),
    Row(key="idle_latency_p99_ms", label="  p99", unit=MS, least=10, goal=5),
    Row(key="idle_worker_1_queues_processor_percent", label="idle worker, 1 queue: processor", unit="%"),
    Row(key="idle_worker_6_queues_processor_percent", label="  6 queues", unit="%"),
    Row(key="idle_worker_20_queues_processor_percent", label="  20 queues", unit="%"),
    Row(key="idle_worker_50_queues_processor_percent", label="  50 queues", unit="%"),
    Row(key="idle_worker_1_queues_transactions_per_s", label="idle worker, 1 queue: transactions", unit="/s"),
    Row(key="idle_worker_6_queues_transactions_per_s", label="  6 queues", unit="/s"),
    Row(key="idle_worker_20_queues_transactions_per_s", label="  20 queues", unit="/s"),
    Row(key="idle_worker_50_queues_transactions_per_s", label="  50 queues", unit="/s"),
    Row(key="herd_5000_lateness_p50_ms", label="5,000 runs due at one instant, late p50", unit=MS),
    Row(key="herd_5000_lateness_p99_ms", label="  p99", unit=MS, least=350, goal=200),
    Row(key="herd_5000_lateness_max_ms", label="  max", unit=MS),
    Row(key="steady_1000_lateness_p50_ms", label="1,000 delayed runs a second, late p50", unit=MS),
    Row(key="steady_1000_lateness_p99_ms", label="  p99", unit=MS, least=50, goal=10),
    Row(key="steady_1000_lateness_max_ms", label="  max", unit=MS),
    Row(key="herd_10000_crons_lateness_p50_ms", label="10,000 crons due at once, late p50", unit=MS),
    Row(key="herd_10000_crons_lateness_p99_ms", label="  p99", unit=MS, least=1_000, goal=500),
    Row(key="herd_10000_crons_lateness_max_ms", label="  max", unit=MS),
    Row(key="claim_0_future_ms", label="claim of 500, no future runs", unit=MS),
    Row(key="claim_1m_future_ratio", label="  beside 1 M future runs", unit=TIMES, least=1.5, goal=1.1),
    Row(key="claim_10m_future_ratio", label="  beside 10 M future runs", unit=TIMES, least=1.5, goal=1.1),
    Row(key="bytes_per_scheduled_job", label="a scheduled run with 500 B of payload, on disk", unit="B"),
    Row(key="gb_for_100m_scheduled_jobs", label="  100 M of them", unit="GB"),
    Row(key="wheel_1m_memory_mb", label="1 M entries in the wheel", unit=MB, least=300, postgres_only=False),
    Row(key="wheel_insert_fire_us", label="  insert and fire, each", unit="µs", least=5, postgres_only=False),
    Row(
        key="soak_last_to_second_minute",
        label="rate after a long full load, to the second minute",
        unit=TIMES,
        better="more",
        least=0.9,
        postgres_only=False,
    ),
    Row(
        key="failover_scheduler_latest_tick_ms",
        label="a scheduler of three dies: latest of 100 ticks a second",
        unit=MS,
        least=2_000,
        goal=1_000,
    ),
    Row(key="failover_scheduler_missing_ticks", label="  ticks missing", least=0),
    Row(key="failover_worker_seconds", label="a worker dies: its runs start elsewhere", unit="s", least=15),
    Row(key="api_post_jobs_per_s", label="POST /v1/jobs, 64 connections", unit=PER_SECOND, better="more", least=4_000),
    Row(key="api_post_p50_ms", label="  answered within, p50", unit=MS),
    Row(key="api_post_p99_ms", label="  p99", unit=MS, least=100),
    Row(key="api_batch_jobs_per_s", label="POST /v1/jobs/batch of 1,000", unit=PER_SECOND, better="more", least=20_000),
    Row(
        key="api_same_key_jobs_per_key",
        label="32 submits of one idempotency key at once: jobs a key",
        least=1,
        postgres_only=False,
    ),
    Row(
        key="api_followers_rate_to_without",
        label="POST /v1/jobs beside 1,000 followers of events, to without",
        unit=TIMES,
        better="more",
        least=0.8,
    ),
    Row(key="api_followers_store_readers", label="  readers of the store", least=1, postgres_only=False),
)


def table(figures: Figures) -> Table:
    """All that was measured on one store."""
    sqlite = figures.get("store") == "sqlite"
    title = f"{figures.get('store')}{' (quick: smaller numbers)' if figures.get('quick') else ''}"
    if "scale" in figures:
        title += f", everything × {figures['scale']}: not representative"
    made = Table(title=title, title_justify="left", caption_justify="left")
    for heading in ("figure", "measured", "at least", "goal", ""):
        made.add_column(heading, justify="left" if heading in ("figure", "") else "right")
    for row in ROWS:
        value = figures.get(row.key)
        if isinstance(value, int | float):
            least, goal = limits(row, sqlite=sqlite)
            made.add_row(
                row.label,
                f"{number(value)} {row.unit}",
                _limit(least),
                _limit(goal),
                compare_with_limits(row, value, least, goal),
            )
    memory = figures.get("memory_mb")
    if isinstance(memory, Mapping):
        for kind, size in memory.items():
            made.add_row(f"memory of the {kind} process after the drain", f"{_plain(size)} {MB}", "", "", "")
    notes = []
    for word in ("skipped", "failed"):
        which = figures.get(word)
        if isinstance(which, Mapping):
            notes += [f"{name} {word}: {reason}" for name, reason in which.items()]
    made.caption = Text("\n".join(notes))
    return made


def side_by_side(results: Mapping[str, Figures]) -> Table:
    """Repeated measurements, one column for each."""
    made = Table(title="side by side", title_justify="left")
    made.add_column("figure")
    for name in results:
        made.add_column(name, justify="right")
    for row in ROWS:
        values = [figures.get(row.key) for figures in results.values()]
        if any(isinstance(value, int | float) for value in values):
            shown = [f"{number(value)} {row.unit}" if isinstance(value, int | float) else "" for value in values]
            made.add_row(row.label, *shown)
    return made


def limits(row: Row, *, sqlite: bool) -> tuple[float | None, float | None]:
    """The required and the expected limits on this store."""
    if sqlite and row.sqlite is not None:
        return row.sqlite
    return (None, None) if sqlite and row.postgres_only else (row.least, row.goal)


def compare_with_limits(row: Row, value: float, least: float | None, goal: float | None) -> str:
    as_good: Callable[[float, float], bool] = operator.ge if row.better == "more" else operator.le
    if least is None:
        return ""
    if not as_good(value, least):
        return "[red]misses[/red]"
    return "[green]goal[/green]" if goal is None or as_good(value, goal) else "[yellow]holds[/yellow]"


def _limit(limit: float | None) -> str:
    return "" if limit is None else number(limit)


def _plain(value: Value) -> str:
    return number(value) if isinstance(value, int | float) else str(value)
