"""``mainspring move``: an SQLite installation goes to PostgreSQL, with everything in it."""

import asyncio
import sys
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from mainspring.cli.options import Config, settings_of
from mainspring.cli.output import AsJson, console, echo_json, table
from mainspring.config.engine import system_clock
from mainspring.config.health import move as move_store
from mainspring.config.sections import without_secrets
from mainspring.core.model.base.instant import SECOND


class MovedOut(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What ``--json`` prints."""

    source: str
    target: str
    rows: dict[str, int]
    seconds: float
    resumed: bool


def register(application: typer.Typer) -> None:
    application.command("move")(move)


def move(
    source: Annotated[str, typer.Option("--from", help="The SQLite file.", metavar="FILE", show_default=False)],
    target: Annotated[
        str, typer.Option("--to", help="The new store: postgresql://…", metavar="ADDRESS", show_default=False)
    ],
    schema: Annotated[
        str | None, typer.Option("--schema", help="The schema there; that of the settings without.", show_default=False)
    ] = None,
    config: Config = None,
    json: AsJson = False,
) -> None:
    """Move an SQLite installation to PostgreSQL: jobs, schedules, queued and future runs, history, logs, keys, audit.

    Stop its processes first; the move refuses while any lives. The new store must be empty, or not there yet. All is
    copied in one transaction and compared by counts and checksums; then the file is marked, and whoever opens it is
    told where it went. If anything goes wrong nothing has happened, and the file works on.

    Example: mainspring move --from mainspring.db --to postgresql://me@db.example.org/jobs
    """
    clock = system_clock()
    began = clock.monotonic()
    # Here and not above: it takes long to load, and every command would wait for it.
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(
        TextColumn("{task.description:<16}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        # Where nobody looks a bar is noise.
        disable=json or not sys.stderr.isatty(),
    ) as bars:
        bar_of: dict[str, int] = {}

        def tell(kind: str, done: int, total: int) -> None:
            if kind not in bar_of:
                bar_of[kind] = int(bars.add_task(kind.replace("_", " ")))
            bars.update(bars.task_ids[bar_of[kind]], completed=done, total=total)

        moved = asyncio.run(
            move_store(
                settings_of(None, config, store=source), settings_of(None, config, store=target, schema=schema), tell
            )
        )
    seconds = (clock.monotonic() - began) / SECOND
    rows = {kind: tally.rows for kind, tally in moved.tallies.items()}
    if json:
        target = without_secrets(target)
        echo_json(MovedOut(source=source, target=target, rows=rows, seconds=round(seconds, 3), resumed=moved.resumed))
        return
    shown = table("MOVED", "ROWS", right=("ROWS",))
    for kind, count in rows.items():
        if count:
            shown.add_row(kind.replace("_", " "), f"{count:,}")
    console().print(shown)
    rate = moved.rows / seconds
    typer.echo(f"{moved.rows:,} rows in {seconds:.1f} s ({rate:,.0f} a second); counts and checksums agree")
    if moved.resumed:
        typer.echo("they were there already, from a move that was interrupted")
    typer.echo(f"{source} is marked as left; start the processes with MAINSPRING_STORE={without_secrets(target)}")
