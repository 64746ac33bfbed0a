"""``mainspring jobs explain``: whether a job ran at a given time, and why not."""

from typing import Annotated

import msgspec
import typer

from mainspring.cli.client.target import Client, command, decode_answer
from mainspring.cli.output import Output
from mainspring.features.jobs.commands.group import Job, group


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
            "--at", help="The time of the tick (RFC 3339). Default: the newest tick that is due.", show_default=False
        ),
    ] = None,
    datacenter: Annotated[
        str | None, typer.Option("--datacenter", help="The data center, for a job with several.", show_default=False)
    ] = None,
) -> None:
    """Explain whether a recurring job ran at a given time; if not, why, and how to fix it.

    Examples:

    mainspring jobs explain weekly-report

    mainspring jobs explain weekly-report --at 2026-01-05T09:30:00+01:00
    """
    identifier = await api.job(job)
    answer = await api.ask("GET", f"/v1/jobs/{identifier}/explain", query={"at": at, "datacenter": datacenter})

    def show() -> None:
        found = decode_answer(answer, _Explanation)
        version = "" if found.job_version is None else f", version {found.job_version}"
        out.print(f"{found.time}{version}: {_ANSWERS.get(found.answer, found.answer)}")
        for reason in found.because:
            out.print(f"  {reason.words}")
            if reason.hint:
                out.print(f"  try: {reason.hint}")
        if found.tick_before is not None:
            out.print(f"  the tick before: {found.tick_before}")
        if found.tick_after is not None:
            out.print(f"  the tick after:  {found.tick_after}")

    out.render(answer, [identifier], show)


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


class _Reason(msgspec.Struct):
    words: str
    hint: str = ""


class _Explanation(msgspec.Struct, rename="camel"):
    time: str
    answer: str
    because: list[_Reason]
    job_version: int | None = None
    tick_before: str | None = None
    tick_after: str | None = None
