"""``mainspring jobs next``, ``backfill`` and ``history``: the ticks of a job."""

from typing import Annotated

import msgspec
import typer

from mainspring.cli.client.command import command
from mainspring.cli.client.target import Client, decode_answer
from mainspring.cli.fields import (
    DryRun,
    Limit,
)
from mainspring.cli.output import Output
from mainspring.cli.tables.runs import show_runs
from mainspring.core.model.base.errors import Invalid
from mainspring.features.jobs.commands.group import Job, group
from mainspring.http.schemas.common import Page
from mainspring.http.schemas.runs import RunOut, TickOut


def register(_application: typer.Typer) -> None:
    """Do nothing: importing this module adds its commands to the group of ``jobs``."""


@command(group, "next")
async def next_(
    api: Client,
    out: Output,
    job: Job,
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=100, help="How many ticks to show.")] = 5,
) -> None:
    """Show the next ticks of a job.

    Example: mainspring jobs next weekly-report -n 3 --utc
    """
    identifier = await api.job(job)
    found = await api.ask("GET", f"/v1/jobs/{identifier}/next", query={"n": count})

    def show() -> None:
        upcoming = decode_answer(found, _UpcomingTicks)
        fires = upcoming.ticks or [_UpcomingTick(fire, fire) for fire in upcoming.next_fires]
        for tick in fires:
            moved = "" if tick.starts in (None, tick.scheduled_for) else f", starts {tick.starts}"
            why = f"  {'skipped: ' if tick.starts is None else ''}{tick.reason}{moved}" if tick.reason else ""
            from_now = "" if out.shows_utc else f"  {out.time(tick.scheduled_for)}"
            out.print(f"{tick.scheduled_for}{from_now}{why}")
        if not fires:
            out.report("no more ticks")

    out.render(found, [identifier], show)


@command(group, "backfill")
async def backfill(
    api: Client,
    out: Output,
    job: Job,
    since: Annotated[str, typer.Option("--since", help="Start at this time (RFC 3339).")],
    until: Annotated[str, typer.Option("--until", help="Stop before this time (RFC 3339).")],
    dry_run: DryRun = False,
) -> None:
    """Run past ticks that have no run: each one in the range gets a run. Repeating the command creates no second run.

    Example: mainspring jobs backfill weekly-report --since 2026-01-01T00:00:00Z --until 2026-02-01T00:00:00Z --dry-run
    """
    identifier = await api.job(job)
    body = {"since": since, "until": until, "dryRun": dry_run}
    answer = await api.ask("POST", f"/v1/jobs/{identifier}/backfill", body=body, repeatable=True)

    def show() -> None:
        found = decode_answer(answer, _Backfill)
        missing = len(found.scheduled_for)
        words = f"{missing} would be created" if dry_run else f"{found.made} created"
        out.print(f"{found.ticks} ticks, {found.ticks - missing} had a run, {words}")
        for tick in found.scheduled_for if dry_run else ():
            out.print(tick)

    out.render(answer, [identifier], show)


@command(group, "history")
async def history(
    api: Client,
    out: Output,
    job: Job,
    ledger: Annotated[
        bool, typer.Option("--ledger", help="List every tick with its decision instead of the runs.")
    ] = False,
    since: Annotated[
        str | None,
        typer.Option("--since", help="With --ledger: start at this time. Default: one day ago.", show_default=False),
    ] = None,
    limit: Limit = 50,
) -> None:
    """Show the runs of a job, newest first; or its ledger, oldest first.

    Examples:

    mainspring jobs history weekly-report

    mainspring jobs history weekly-report --ledger --since 2026-01-01T00:00:00Z
    """
    identifier = await api.job(job)
    if not ledger:
        if since is not None:
            raise Invalid("--since", "requires --ledger")
        runs = await api.pages(f"/v1/jobs/{identifier}/runs", {}, limit)
        items = [decode_answer(item, RunOut) for item in runs.items]
        out.render(
            runs, [item.run_id for item in items], lambda: show_runs(out, items, more=runs.next_cursor is not None)
        )
        return
    query = {"since": since, "limit": min(limit, 1_000)}
    answer = await api.ask("GET", f"/v1/jobs/{identifier}/ledger", query=query)
    ticks = decode_answer(answer, Page[TickOut]).items

    def show() -> None:
        multiple = any(tick.datacenter for tick in ticks)
        out.rows(
            ("TICK", *(("DATACENTER",) if multiple else ()), "DECISION", "RUN", "VERSION", "REASON"),
            [
                (
                    tick.scheduled_for if tick.until is None else f"{tick.scheduled_for} … {tick.until} ({tick.ticks})",
                    *((tick.datacenter or "",) if multiple else ()),
                    tick.decision,
                    out.id(tick.run_id or ""),
                    str(tick.job_version),
                    tick.reason,
                )
                for tick in ticks
            ],
            right=("VERSION",),
        )

    out.render(answer, [tick.run_id for tick in ticks if tick.run_id is not None], show)


class _UpcomingTick(msgspec.Struct, rename="camel"):
    scheduled_for: str
    starts: str | None
    reason: str = ""


class _UpcomingTicks(msgspec.Struct, rename="camel"):
    next_fires: list[str]
    ticks: list[_UpcomingTick] = []


class _Backfill(msgspec.Struct, rename="camel"):
    ticks: int
    made: int
    scheduled_for: list[str]
