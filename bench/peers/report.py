"""The result of a run beside the peers: merged, and as a table."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from rich.table import Table
from rich.text import Text

from bench.figures import Figures, Value, number


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What ``python -m bench.peers --json`` prints."""

    date: str
    machine: Figures
    server: Figures
    #: Of the peers, in the order of the table.
    versions: dict[str, str]
    rounds: dict[str, list[Figures]]
    failed: dict[str, str] = {}
    skipped: dict[str, str] = {}
    #: Not with ``--quick``.
    representative: bool = True


class Row(msgspec.Struct, frozen=True):
    key: str
    label: str
    unit: str


ROWS = (
    Row("full_cycle_jobs_per_s", "full cycle", "jobs/s"),
    Row("full_cycle_processor_us_per_job", "full cycle, processor time", "µs"),
    Row("full_cycle_log_bytes_per_job", "full cycle, write-ahead log", "B"),
    Row("drain_jobs_per_s", "drain", "jobs/s"),
    Row("drain_processor_us_per_job", "drain, processor time", "µs"),
    Row("submit_single_jobs_per_s", "submits one by one", "jobs/s"),
    Row("submit_single_processor_us_per_job", "submits one by one, processor time", "µs"),
    Row("submit_concurrent_jobs_per_s", "submits 64 at once", "jobs/s"),
    Row("submit_concurrent_processor_us_per_job", "submits 64 at once, processor time", "µs"),
    Row("submit_batch_jobs_per_s", "submits in batches", "jobs/s"),
    Row("submit_batch_processor_us_per_job", "submits in batches, processor time", "µs"),
    Row("idle_latency_p50_ms", "idle latency p50", "ms"),
    Row("idle_latency_p99_ms", "idle latency p99", "ms"),
    Row("herd_lateness_p50_ms", "due at one instant, late p50", "ms"),
    Row("herd_lateness_p99_ms", "due at one instant, late p99", "ms"),
)


#: What the README shows, beside the chart.
SUMMARY = ("full_cycle_jobs_per_s", "full_cycle_processor_us_per_job", "full_cycle_log_bytes_per_job")


def read(path: Path) -> Result:
    return msgspec.json.decode(path.read_bytes(), type=Result)


def merge(results: Sequence[Result]) -> Result:
    """All rounds of runs on one machine, one after the other."""
    last = results[-1]
    rounds: dict[str, list[Figures]] = {}
    for result in results:
        for name, found in result.rounds.items():
            rounds.setdefault(name, []).extend(found)
    loads = [load for result in results if isinstance(load := result.machine.get("load_before"), int | float)]
    return msgspec.structs.replace(
        last,
        machine=last.machine | {"load_before": max(loads, default=0)},
        versions={name: version for result in results for name, version in result.versions.items()},
        rounds=rounds,
        failed={
            f"run {index}: {key}": why for index, result in enumerate(results, 1) for key, why in result.failed.items()
        },
        skipped={name: why for result in results for name, why in result.skipped.items()},
        representative=all(result.representative for result in results),
    )


def median(result: Result, name: str, key: str) -> float | None:
    """The median of a peer's rounds. Processor time is the sum of client and server."""
    values = [_total(figures.get(key)) for figures in result.rounds.get(name, [])]
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def median_parts(result: Result, name: str, key: str) -> dict[str, float]:
    """The medians of the parts of a figure, such as client and server."""
    parts: dict[str, list[float]] = {}
    for figures in result.rounds.get(name, []):
        value = figures.get(key)
        if isinstance(value, Mapping):
            for part, amount in value.items():
                assert isinstance(amount, int | float)
                parts.setdefault(part, []).append(amount)
    return {part: statistics.median(amounts) for part, amounts in parts.items()}


def table(result: Result) -> Table:
    quick = "" if result.representative else " (smaller numbers: not representative)"
    made = Table(title=f"the same server, rounds in turn{quick}", title_justify="left", caption_justify="left")
    made.add_column("figure")
    for name, version in result.versions.items():
        made.add_column(f"{name}\n{version}", justify="right")
    for row in ROWS:
        values = [median(result, name, row.key) for name in result.versions]
        if any(value is not None for value in values):
            cells = ["–" if value is None else number(value) for value in values]
            made.add_row(f"{row.label}, {row.unit}", *cells)
    notes = [f"{what} failed: {why}" for what, why in result.failed.items()]
    notes += [f"{name} skipped: {why}" for name, why in result.skipped.items()]
    made.caption = Text("\n".join(notes))
    return made


def markdown(result: Result, keys: Sequence[str] = ()) -> str:
    """The table of the documentation, or some of its rows. Processor time with its parts, client and server."""
    lines = [
        f"| | {' | '.join(f'{name} {version}' for name, version in result.versions.items())} |",
        f"|---|{'---:|' * len(result.versions)}",
    ]
    for row in ROWS:
        if keys and row.key not in keys:
            continue
        cells = []
        for name in result.versions:
            value, parts = median(result, name, row.key), median_parts(result, name, row.key)
            cell = "–" if value is None else number(value)
            cells.append(f"{cell} ({' + '.join(map(number, parts.values()))})" if parts else cell)
        lines.append(f"| {row.label}, {row.unit} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def conditions(result: Result) -> str:
    """One sentence: how many rounds, where and when."""
    facts, rounds = result.machine, min((len(found) for found in result.rounds.values()), default=0)
    server = str(result.server.get("server_version")).split()[0]
    many = "one round" if rounds == 1 else f"medians of at least {rounds} rounds in turns"
    return (
        f"Measured on {result.date}: {many}, {facts['cores']} cores, {facts['memory_gb']} GB, PostgreSQL {server} with "
        f"fsync on, load {facts['load_before']} before the start."
    )


def _total(value: Value) -> float | None:
    if isinstance(value, Mapping):
        return sum(amount for amount in value.values() if isinstance(amount, int | float))
    return value if isinstance(value, int | float) else None
