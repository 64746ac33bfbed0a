"""Derives the cost of one job from the figures of a benchmark."""

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.features.capacity.costs import Costs

#: The benchmark parts that are needed.
MEASUREMENTS = ("full", "disk")
_STORED_PAYLOAD = 500
#: Payload bytes of a job in the benchmark.
BENCHMARK_PAYLOAD = 168


class _Processor(msgspec.Struct):
    submitter: float = 0
    scheduler: float = 0
    worker: float = 0
    #: Unknown if the server is on another machine.
    server: float | None = None


class _HistoryBytes(msgspec.Struct):
    tables: float
    indexes: float


class _Memory(msgspec.Struct):
    scheduler: float | None = None
    worker: float | None = None


class _Machine(msgspec.Struct):
    cores: int = 0


class _BenchmarkResult(msgspec.Struct):
    """The fields of ``bench --json`` that are used here."""

    store: str
    full_cycle_jobs_per_s: float
    full_cycle_processor_us_per_job: _Processor
    full_cycle_kept_bytes_per_job: _HistoryBytes
    bytes_per_scheduled_job: float
    full_cycle_log_bytes_per_job: float | None = None
    memory_mb_full_cycle: _Memory = msgspec.field(default_factory=_Memory)
    machine: _Machine = msgspec.field(default_factory=_Machine)
    scale: float = 1


def build_costs(benchmark: dict[str, object] | bytes, published: Costs, field: str) -> Costs:
    """Build the costs from a benchmark. Values that it cannot measure stay as published, and ``where`` says so."""
    try:
        found = (
            msgspec.json.decode(benchmark, type=_BenchmarkResult)
            if isinstance(benchmark, bytes)
            else msgspec.convert(benchmark, type=_BenchmarkResult)
        )
    except msgspec.DecodeError as error:
        raise Invalid(
            field,
            f"is not what mainspring bench --json prints for one store with full and disk: {error}",
            f"mainspring bench --store postgres --only {','.join(MEASUREMENTS)} --json",
        ) from error
    processor, embedded = found.full_cycle_processor_us_per_job, found.store == "sqlite"
    published_parts = ["the API's"]
    server = 0.0 if embedded else processor.server
    if server is None:
        published_parts.append("the server's (on another machine)")
        server = published.server_us
    where = f"measured here: {found.store}, {found.machine.cores} cores"
    if found.scale != 1:
        where += f", everything × {found.scale:g}: not representative"
    where += f"; {' and '.join(published_parts)} processor time as published"
    return Costs(
        where=where,
        seen_per_second=found.full_cycle_jobs_per_s,
        api_us=published.api_us,
        scheduler_us=processor.scheduler,
        # With one process, the submitter's figure includes everything.
        worker_us=processor.submitter if embedded else processor.worker,
        server_us=server,
        server_api_us=0.0 if embedded else published.server_api_us,
        kept_table_bytes=found.full_cycle_kept_bytes_per_job.tables,
        kept_index_bytes=found.full_cycle_kept_bytes_per_job.indexes,
        kept_payload=BENCHMARK_PAYLOAD,
        waiting_bytes=found.bytes_per_scheduled_job,
        waiting_payload=_STORED_PAYLOAD,
        log_bytes=found.full_cycle_log_bytes_per_job or BENCHMARK_PAYLOAD,
        api_mb=published.api_mb,
        scheduler_mb=found.memory_mb_full_cycle.scheduler or published.scheduler_mb,
        worker_mb=found.memory_mb_full_cycle.worker or published.worker_mb,
        embedded=embedded,
    )
