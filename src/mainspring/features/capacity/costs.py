"""Inputs of capacity planning: the load, the resources that one job uses, and the prices."""

from typing import Annotated, TypeAlias

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import DAY, SECOND, Micros
from mainspring.core.model.base.quantities import DAY_SECONDS

Amount: TypeAlias = Annotated[float, msgspec.Meta(ge=0)]
Cores: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]
_MAX_ATTEMPTS = 1_000


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The planned load and its retention."""

    jobs_per_day: float
    #: Payload bytes of one job.
    payload: float = 500
    #: Rate of the busiest second, as a multiple of the mean.
    peak: float = 1
    retention: Micros = 7 * DAY
    #: Attempts per job on average: 1.1 if a tenth of the jobs is retried once.
    attempts: float = 1
    #: Duration of one attempt, and the processor time that it uses.
    takes: Micros = SECOND
    work: Micros = 0
    #: Share of the jobs that are delayed or recurring, and so go through a scheduler.
    scheduled: float = 1
    #: Jobs that wait for a later time at any moment.
    waiting: float = 0
    #: Most concurrent runs of one worker process.
    slots: int = 100
    #: Copies of the database in addition to the primary.
    standbys: int = 1

    def __post_init__(self) -> None:
        if self.jobs_per_day <= 0:
            raise Invalid("--jobs-per-day", "must be more than 0", "for example 100M")
        if not 0 <= self.scheduled <= 1:
            raise Invalid("--scheduled", f"{self.scheduled:g} is not a share", "from 0 to 1")
        if not 1 <= self.attempts <= _MAX_ATTEMPTS:
            raise Invalid("--attempts", f"{self.attempts:g} is not from 1 to {_MAX_ATTEMPTS:,}", "for example 1.1")

    @property
    def per_second(self) -> float:
        return self.jobs_per_day / DAY_SECONDS

    @property
    def at_peak(self) -> float:
        return self.per_second * self.peak


class Costs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Measured resources of one job. Processor times are in microseconds, by kind of process."""

    #: Where, how and when it was measured.
    where: str
    #: Full job cycles per second measured on one server; higher rates are extrapolated.
    seen_per_second: float
    api_us: float
    scheduler_us: float
    worker_us: float
    #: Database time: of a full job cycle, and in addition for jobs that are submitted one by one.
    server_us: float
    server_api_us: float
    #: Disk space of a finished job, and the payload size of that measurement.
    kept_table_bytes: float
    kept_index_bytes: float
    kept_payload: float
    #: Disk space of a job that waits for its time, and the payload size of that measurement.
    waiting_bytes: float
    waiting_payload: float
    #: WAL bytes of one job, sent to each standby; with the same payload as ``kept_payload``.
    log_bytes: float
    #: Resident memory of one process, in MB.
    api_mb: float
    scheduler_mb: float
    worker_mb: float
    #: Everything runs in one process on SQLite; its time counts as the worker's.
    embedded: bool = False

    @property
    def index_factor(self) -> float:
        """Ratio of tables with indexes to tables alone."""
        return (self.kept_table_bytes + self.kept_index_bytes) / self.kept_table_bytes

    @property
    def history_row(self) -> float:
        """Bytes of a history row without its payload and indexes."""
        return max(0.0, self.kept_table_bytes - self.kept_payload)


class Prices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prices per month."""

    where: str = "example prices; set your own with --prices"
    currency: str = "$"
    #: A machine shared by APIs, schedulers and workers.
    node: Amount
    node_cores: Cores
    node_memory_gb: Annotated[float, msgspec.Meta(gt=0)]
    #: A database server.
    database: Amount
    database_cores: Cores
    #: Largest disk of one server; a larger store needs several servers.
    database_disk_gb: Annotated[float, msgspec.Meta(gt=0)] = 16_000.0
    storage_gb: Amount
    #: Per GB between machines.
    traffic_gb: Amount
    #: Other costs, such as load balancers and support.
    other: Amount = 0.0
