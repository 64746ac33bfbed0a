"""Jobs as the commands print them."""

import msgspec

from mainspring.cli.output import Output, format_status, print_details
from mainspring.cli.tables.datacenters import format_datacenters
from mainspring.http.schemas.job_answers import JobOut
from mainspring.http.schemas.limits import BreakerIn, LimitIn


def format_schedule(job: JobOut) -> str:
    if job.cron_expression is not None:
        zone = "" if job.timezone in (None, "UTC") else f" {job.timezone}"
        return f"{job.cron_expression}{zone}"
    return f"every {job.every}" if job.every is not None else "once"


def format_limit(limit: LimitIn) -> str:
    """Return the limit as ``--limit`` accepts it."""
    return f"{limit.key}={limit.most}" + (f"/{limit.per}" if limit.per else "")


def format_breaker(breaker: BreakerIn) -> str:
    return f"{breaker.failures} failures in {breaker.within}: a pause of {breaker.pause}"


def show_details(out: Output, job: JobOut) -> None:
    print_details(
        out,
        [
            ("job", job.job_id),
            ("name", job.name),
            ("task", job.task),
            ("status", format_status(job.status)),
            ("paused", job.pause_reason),
            ("resumes", None if job.resume_at is None else f"{job.resume_at}  {out.time(job.resume_at)}"),
            ("schedule", format_schedule(job)),
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
            ("limits", ", ".join(map(format_limit, job.limits))),
            ("breaker", job.breaker and format_breaker(job.breaker)),
            ("tenant", job.tenant),
            ("owner", job.owner),
            ("tags", ", ".join(job.tags)),
            ("version", job.version),
            ("made", f"{job.created_at}  {out.time(job.created_at)}"),
            ("changed", None if job.updated_at is None else f"{job.updated_at}  {out.time(job.updated_at)}"),
            ("payload", "" if job.payload is msgspec.UNSET else bytes(job.payload).decode()),
        ],
    )


def _describe_slo(job: JobOut) -> str:
    if job.slo is None:
        return ""
    owed = (("start within", job.slo.start_within), ("succeed every", job.slo.succeed_every))
    words = ", ".join(f"{name} {value}" for name, value in owed if value is not None)
    state = job.slo_state
    if state is None:
        return words
    return (
        f"{words}: missed ({', '.join(state.missed)}) since {state.missed_since}" if state.missed else f"{words}: kept"
    )
