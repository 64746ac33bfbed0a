"""``mainspring move``: copies an SQLite installation to PostgreSQL, with all its data."""

import asyncio
import sys
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from mainspring.cli.options import Config, load_settings
from mainspring.cli.output import AsJson, build_table, echo_json, make_console
from mainspring.config.health import copy_store
from mainspring.config.runtime import system_clock
from mainspring.config.sections.addresses import hide_secrets
from mainspring.core.model.base.instant import SECOND


class MoveOut(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The output of ``--json``."""

    source: str
    target: str
    rows: dict[str, int]
    seconds: float
    resumed: bool


def register(application: typer.Typer) -> None:
    application.command("move")(move)


def move(
    source: Annotated[str, typer.Option("--from", help="The SQLite file to move.", metavar="FILE", show_default=False)],
    target: Annotated[
        str, typer.Option("--to", help="The new store: postgresql://…", metavar="ADDRESS", show_default=False)
    ],
    schema: Annotated[
        str | None,
        typer.Option(
            "--schema", help="The schema in the new store. Default: the configured schema.", show_default=False
        ),
    ] = None,
    config: Config = None,
    json: AsJson = False,
) -> None:
    """Move an SQLite installation to PostgreSQL: jobs, schedules, queued and future runs, history, logs, keys, audit.

    Stop its processes first; the move refuses while any of them is alive. The new store must be empty or not exist yet.
    All rows are copied in one transaction and verified by counts and checksums. The file is then marked, and a process
    that opens it gets an error with the new address. If the move fails, nothing has changed, and the file stays usable.

    Example: mainspring move --from mainspring.db --to postgresql://me@db.example.org/jobs
    """
    clock = system_clock()
    began = clock.monotonic()
    # Import here: it loads slowly, and every command would wait for it.
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(
        TextColumn("{task.description:<16}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        # Show no progress bar unless stderr is a terminal.
        disable=json or not sys.stderr.isatty(),
    ) as bars:
        bars_by_kind: dict[str, int] = {}

        def report(kind: str, done: int, total: int) -> None:
            if kind not in bars_by_kind:
                bars_by_kind[kind] = int(bars.add_task(kind.replace("_", " ")))
            bars.update(bars.task_ids[bars_by_kind[kind]], completed=done, total=total)

        moved = asyncio.run(
            copy_store(
                load_settings(None, config, store=source),
                load_settings(None, config, store=target, schema=schema),
                report,
            )
        )
    seconds = (clock.monotonic() - began) / SECOND
    rows = {kind: tally.rows for kind, tally in moved.tallies.items()}
    if json:
        target = hide_secrets(target)
        echo_json(MoveOut(source=source, target=target, rows=rows, seconds=round(seconds, 3), resumed=moved.resumed))
        return
    shown = build_table("MOVED", "ROWS", right=("ROWS",))
    for kind, count in rows.items():
        if count:
            shown.add_row(kind.replace("_", " "), f"{count:,}")
    make_console().print(shown)
    rate = moved.rows / seconds
    typer.echo(f"{moved.rows:,} rows in {seconds:.1f} s ({rate:,.0f} a second); counts and checksums agree")
    if moved.resumed:
        typer.echo("the rows were already copied by an interrupted move")
    typer.echo(f"{source} is marked as moved; start the processes with MAINSPRING_STORE={hide_secrets(target)}")
