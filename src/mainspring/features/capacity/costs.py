"""A load, what one job takes of each part, and what the parts cost: the values that capacity is reckoned from."""

from typing import Annotated, TypeAlias

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import DAY, SECOND, Micros
from mainspring.core.model.base.quantities import DAY_SECONDS

Amount: TypeAlias = Annotated[float, msgspec.Meta(ge=0)]
Cores: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]
_MOST_ATTEMPTS = 1_000


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What comes, and how long it is kept."""

    jobs_per_day: float
    #: Bytes of one job's arguments.
    payload: float = 500
    #: The busiest second, as a multiple of the mean.
    peak: float = 1
    retention: Micros = 7 * DAY
    #: Of one job, on average: 1.1 when a tenth of them is tried twice.
    attempts: float = 1
    #: How long one attempt takes, and how much of a processor it uses meanwhile.
    takes: Micros = SECOND
    work: Micros = 0
    #: How much of the jobs is for later or recurring, and goes through a scheduler.
    scheduled: float = 1
    #: Jobs that wait for a later time, at once.
    waiting: float = 0
    #: Runs that one worker process has under way at most.
    slots: int = 100
    #: Copies of the database beside the first.
    standbys: int = 1

    def __post_init__(self) -> None:
        if self.jobs_per_day <= 0:
            raise Invalid("--jobs-per-day", "must be more than 0", "for example 100M")
        if not 0 <= self.scheduled <= 1:
            raise Invalid("--scheduled", f"{self.scheduled:g} is not a share", "from 0 to 1")
        if not 1 <= self.attempts <= _MOST_ATTEMPTS:
            raise Invalid("--attempts", f"{self.attempts:g} is not from 1 to {_MOST_ATTEMPTS:,}", "for example 1.1")

    @property
    def per_second(self) -> float:
        return self.jobs_per_day / DAY_SECONDS

    @property
    def at_peak(self) -> float:
        return self.per_second * self.peak


class Costs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one job takes, as measured. Processor times are in microseconds, by kind of process."""

    #: On what, by what, when.
    where: str
    #: Whole ways of a job, on one server: what is beyond is reckoned and was not seen.
    seen_per_second: float
    api_us: float
    scheduler_us: float
    worker_us: float
    #: The database: for the whole way of a job, and for submits that come one by one on top of it.
    server_us: float
    server_api_us: float
    #: What a job that has ended keeps on disk, and the size of its payload when that was measured.
    kept_table_bytes: float
    kept_index_bytes: float
    kept_payload: float
    #: A job that waits for its time, likewise.
    waiting_bytes: float
    waiting_payload: float
    #: What is written ahead of one job, which each standby is sent; with a payload as the kept one.
    log_bytes: float
    #: Resident memory of one process, in MB.
    api_mb: float
    scheduler_mb: float
    worker_mb: float
    #: Everything is one process, on SQLite: its time is the worker's.
    embedded: bool = False

    @property
    def index_factor(self) -> float:
        """Tables with their indexes, to the tables alone."""
        return (self.kept_table_bytes + self.kept_index_bytes) / self.kept_table_bytes

    @property
    def history_row(self) -> float:
        """What a row of history takes beside its payload, indexes not counted."""
        return max(0.0, self.kept_table_bytes - self.kept_payload)


class Prices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A month of each."""

    where: str = "example prices: give your own by --prices"
    currency: str = "$"
    #: A machine that APIs, schedulers and workers share.
    node: Amount
    node_cores: Cores
    node_memory_gb: Annotated[float, msgspec.Meta(gt=0)]
    #: A database server.
    database: Amount
    database_cores: Cores
    #: What one can have: a larger store is one over several.
    database_disk_gb: Annotated[float, msgspec.Meta(gt=0)] = 16_000.0
    storage_gb: Amount
    #: Between machines, a GB.
    traffic_gb: Amount
    #: Whatever else there is: balancers, support.
    other: Amount = 0.0
