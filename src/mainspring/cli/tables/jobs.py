"""Jobs as the commands print them."""

import msgspec

from mainspring.cli.client.target import Raw
from mainspring.cli.output import Output, format_status, print_details
from mainspring.cli.tables.datacenters import format_datacenters


class _SloState(msgspec.Struct, rename="camel"):
    missed: list[str]
    missed_since: str | None = None
    last_success: str | None = None


class LimitDetails(msgspec.Struct):
    key: str
    most: int
    per: str | None = None

    def __str__(self) -> str:
        """Return the limit as ``--limit`` accepts it."""
        return f"{self.key}={self.most}" + (f"/{self.per}" if self.per else "")


class BreakerDetails(msgspec.Struct):
    failures: int = 5
    within: str = "1m"
    pause: str = "30s"

    def __str__(self) -> str:
        return f"{self.failures} failures in {self.within}: a pause of {self.pause}"


class JobDetails(msgspec.Struct, rename="camel"):
    """The fields of a job that commands print. ``--json`` prints all fields of the API."""

    job_id: str
    status: str
    schedule_type: str
    task: str
    tenant: str
    queue: str
    priority: int
    created_at: str
    name: str = ""
    payload: Raw | msgspec.UnsetType = msgspec.UNSET
    schedule_time: str | None = None
    end_time: str | None = None
    cron_expression: str | None = None
    every: str | None = None
    interval_mode: str | None = None
    timezone: str | None = None
    max_retries: int = 0
    timeout: str | None = None
    deadline: str | None = None
    start_within: str | None = None
    overlap: str | None = None
    slo: dict[str, str] | None = None
    slo_state: _SloState | None = None
    calendars: tuple[str, ...] = ()
    when_closed: str | None = None
    depends_on: tuple[str, ...] = ()
    when: str | None = None
    ordering_key: str | None = None
    requires: dict[str, str] = {}
    datacenters: Raw | msgspec.UnsetType = msgspec.UNSET
    weight: int = 1
    retention: str | None = None
    limits: tuple[LimitDetails, ...] = ()
    breaker: BreakerDetails | None = None
    owner: str | None = None
    tags: tuple[str, ...] = ()
    version: int | None = None
    pause_reason: str | None = None
    resume_at: str | None = None
    updated_at: str | None = None
    next_fires: list[str] = []
    warnings: list[str] = []

    @property
    def schedule(self) -> str:
        if self.cron_expression is not None:
            zone = "" if self.timezone in (None, "UTC") else f" {self.timezone}"
            return f"{self.cron_expression}{zone}"
        return f"every {self.every}" if self.every is not None else "once"


def show_details(out: Output, job: JobDetails) -> None:
    print_details(
        out,
        [
            ("job", job.job_id),
            ("name", job.name),
            ("task", job.task),
            ("status", format_status(job.status)),
            ("paused", job.pause_reason),
            ("resumes", None if job.resume_at is None else f"{job.resume_at}  {out.time(job.resume_at)}"),
            ("schedule", job.schedule),
            ("from", job.schedule_time),
            ("until", job.end_time),
            ("next", "\n".join(f"{fire}  {out.time(fire)}" for fire in job.next_fires)),
            ("queue", f"{job.queue}, priority {job.priority}"),
            ("retries", job.max_retries),
            ("timeout", job.timeout),
            ("deadline", job.deadline),
            ("start within", job.start_within),
            ("overlap", job.overlap),
            ("slo", _describe_slo(job)),
            ("calendars", f"{', '.join(job.calendars)}; when closed: {job.when_closed}" if job.calendars else ""),
            ("waits for", f"{', '.join(job.depends_on)}: {job.when}" if job.depends_on else ""),
            ("ordering key", job.ordering_key),
            ("requires", ", ".join(f"{name}={value}" for name, value in job.requires.items())),
            ("datacenters", format_datacenters(job.datacenters)),
            ("weight", job.weight if job.weight > 1 else None),
            ("retention", job.retention),
            ("limits", ", ".join(map(str, job.limits))),
            ("breaker", job.breaker and str(job.breaker)),
            ("tenant", job.tenant),
            ("owner", job.owner),
            ("tags", ", ".join(job.tags)),
            ("version", job.version),
            ("made", f"{job.created_at}  {out.time(job.created_at)}"),
            ("changed", None if job.updated_at is None else f"{job.updated_at}  {out.time(job.updated_at)}"),
            ("payload", "" if job.payload is msgspec.UNSET else bytes(job.payload).decode()),
        ],
    )


def _describe_slo(job: JobDetails) -> str:
    if job.slo is None:
        return ""
    owes = {"startWithin": "start within", "succeedEvery": "succeed every"}
    words = ", ".join(f"{owes[name]} {value}" for name, value in job.slo.items() if name in owes)
    state = job.slo_state
    if state is None:
        return words
    return (
        f"{words}: missed ({', '.join(state.missed)}) since {state.missed_since}" if state.missed else f"{words}: kept"
    )
