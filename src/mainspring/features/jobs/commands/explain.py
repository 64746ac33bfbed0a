"""``mainspring jobs explain``: whether a job ran at a given time, and why not."""

from datetime import datetime
from typing import Annotated

import typer

from mainspring.cli.client.command import command
from mainspring.cli.client.target import Client, decode_answer
from mainspring.cli.output import Output
from mainspring.core.model.base.instant import from_datetime, isoformat
from mainspring.core.model.schedules.cron.zone import load_zone
from mainspring.features.jobs.commands.group import Job, group
from mainspring.http.schemas.job_answers import JobOut
from mainspring.http.schemas.runs import TickExplanation


def register(_application: typer.Typer) -> None:
    """Do nothing: importing this module adds the command to the group of ``jobs``."""


@command(group, "explain")
async def explain(
    api: Client,
    out: Output,
    job: Job,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            help="The time of the tick (RFC 3339), or a local time in the schedule's time zone: '2026-01-05 09:30'. "
            "Default: the newest tick that is due.",
            show_default=False,
        ),
    ] = None,
    datacenter: Annotated[
        str | None, typer.Option("--datacenter", help="The data center, for a job with several.", show_default=False)
    ] = None,
) -> None:
    """Explain whether a recurring job ran at a given time; if not, why, and how to fix it.

    Examples:

    mainspring jobs explain weekly-report

    mainspring jobs explain weekly-report --at "2026-01-05 09:30"
    """
    identifier = await api.job(job)
    local = ""
    if at is not None and (naive := _parse_local_time(at)) is not None:
        zone = decode_answer(await api.ask("GET", f"/v1/jobs/{identifier}"), JobOut).timezone or "UTC"
        local = f" ({at} {zone})"
        at = isoformat(from_datetime(naive.replace(tzinfo=load_zone(zone))))
    answer = await api.ask("GET", f"/v1/jobs/{identifier}/explain", query={"at": at, "datacenter": datacenter})

    def show() -> None:
        found = decode_answer(answer, TickExplanation)
        version = "" if found.job_version is None else f", version {found.job_version}"
        out.print(f"{found.time}{local}{version}: {_ANSWERS.get(found.answer, found.answer)}")
        for reason in found.because:
            out.print(f"  {reason.words}")
            if reason.hint:
                out.print(f"  try: {reason.hint}")
        if found.tick_before is not None:
            out.print(f"  the tick before: {found.tick_before}")
        if found.tick_after is not None:
            out.print(f"  the tick after:  {found.tick_after}")

    out.render(answer, [identifier], show)


def _parse_local_time(text: str) -> datetime | None:
    """Parse a time without a time zone. None: it has one, or is no time."""
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    return found if found.tzinfo is None else None


_ANSWERS = {
    "ran": "it ran",
    "running": "it is running",
    "waiting": "its run is waiting",
    "skipped": "it did not run",
    "no-tick": "there was nothing to run",
    "due": "it is due and has not fired yet",
    "ahead": "it is in the future",
    "unknown": "unknown: the records were deleted",
}
