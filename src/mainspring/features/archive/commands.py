"""``mainspring archive``: list and restore archived runs."""

import asyncio
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from mainspring.cli.options import Config, load_settings
from mainspring.cli.output import AsJson, build_table, echo_json, make_console
from mainspring.config.archive import open_archive, restore_archive
from mainspring.core.model.base.errors import Invalid, NotFound
from mainspring.core.model.base.instant import DAY, Instant, parse_instant
from mainspring.features.archive.model import Manifest, format_day
from mainspring.features.archive.service import list_manifests

group = typer.Typer(name="archive", help="List and restore archived runs.", no_args_is_help=True)

Since = Annotated[
    str | None,
    typer.Option("--since", help="Only runs that ended on this day or later.", metavar="DAY", show_default=False),
]
Until = Annotated[
    str | None,
    typer.Option("--until", help="Only runs that ended on this day or earlier.", metavar="DAY", show_default=False),
]


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """JSON output of a restore."""

    into: str
    runs: int
    new: int
    #: Incomplete parts in the time range, which are left out.
    unfinished: int
    #: Stores that the runs came from.
    stores: int


def register(application: typer.Typer) -> None:
    application.add_typer(group)


@group.command("list")
def list_parts(since: Since = None, until: Until = None, config: Config = None, json: AsJson = False) -> None:
    """List the parts of the archive: a line for each day, or span of days, and retention class.

    Example: mainspring archive list --since 2026-10-01
    """
    parts = asyncio.run(_read_parts(config, since, until))
    if json:
        echo_json({"items": parts})
        return
    rows = [
        (
            format_day(part.since),
            format_day(part.until - DAY),
            part.kept_as,
            f"{part.runs:,}",
            str(len(part.files)),
            f"{part.size:,}",
            "complete" if part.complete else "incomplete",
        )
        for part in parts
    ]
    shown = build_table("FROM", "TO", "RETENTION", "RUNS", "FILES", "BYTES", "STATE", right=("RUNS", "FILES", "BYTES"))
    for row in rows:
        shown.add_row(*row)
    make_console().print(shown)


@group.command("restore")
def restore_runs(
    into: Annotated[
        Path,
        typer.Option(
            "--into",
            help="The SQLite file to restore into; created if it does not exist.",
            metavar="FILE",
            show_default=False,
        ),
    ],
    since: Since = None,
    until: Until = None,
    tenant: Annotated[
        str | None, typer.Option("--tenant", help="Only runs of this tenant.", show_default=False)
    ] = None,
    config: Config = None,
    json: AsJson = False,
) -> None:
    """Restore archived runs into an SQLite file that every command for runs can read. Checks every file.

    The runs are not run again: the file is for reading. Restoring twice into the same file makes no duplicates.

    Examples:

    mainspring archive restore --since 2026-10-01 --until 2026-10-03 --tenant bank --into october.db

    mainspring runs list --store october.db
    """

    async def read() -> Restored:
        async with open_archive(load_settings(None, config)) as blobs:
            parts = _select_parts(await list_manifests(blobs), since, until)
            complete = [part for part in parts if part.complete]
            if not complete:
                raise NotFound("the archive has no complete part in this time range")
            runs, new = await restore_archive(blobs, complete, tenant, into)
            stores = len({part.store for part in complete})
            return Restored(into=str(into), runs=runs, new=new, unfinished=len(parts) - len(complete), stores=stores)

    done = asyncio.run(read())
    if json:
        echo_json(done)
        return
    if done.unfinished:
        typer.echo(f"{done.unfinished} incomplete parts in this time range were skipped", err=True)
    if done.stores > 1:
        typer.echo(f"the runs come from {done.stores} stores", err=True)
    typer.echo(
        f"{done.runs:,} runs read, {done.new:,} of them new in {into}; next: mainspring runs list --store {into}"
    )


async def _read_parts(config: Path | None, since: str | None, until: str | None) -> list[Manifest]:
    async with open_archive(load_settings(None, config)) as blobs:
        return _select_parts(await list_manifests(blobs), since, until)


def _select_parts(parts: list[Manifest], since: str | None, until: str | None) -> list[Manifest]:
    first = None if since is None else _parse_day("--since", since)
    last = None if until is None else _parse_day("--until", until)
    return [
        part for part in parts if (first is None or part.until > first) and (last is None or part.since < last + DAY)
    ]


def _parse_day(option: str, text: str) -> Instant:
    try:
        return parse_instant(f"{text}T00:00:00Z")
    except (Invalid, ValueError):
        raise Invalid(option, f"{text!r:.40} is not a day", "2026-11-16") from None
