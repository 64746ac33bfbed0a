"""Backup files as arguments of commands, and the progress of long reads and writes."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer
from rich.console import Console
from typer.core import TyperGroup

from mainspring.core.ports.upkeep.backup import ReportProgress

ExistingBackup: TypeAlias = Annotated[Path, typer.Argument(help="The backup file.", metavar="FILE")]


class FileGroup(TyperGroup):
    """Command group that runs its first command when the first argument is a file instead of a command name."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [next(iter(self.commands)), *args]
        return super().parse_args(ctx, args)


@contextmanager
def show_progress(*, quiet: bool) -> Iterator[ReportProgress]:
    # Imported here because it takes long to load and would delay every command.
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(
        TextColumn("{task.description:<24}"),
        BarColumn(),
        TextColumn("{task.completed:>15,.0f}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        # A bar is noise where stderr is no terminal.
        disable=quiet or not sys.stderr.isatty(),
    ) as bars:
        task = bars.add_task("", total=None)

        def report(what: str, done: int, total: int) -> None:
            bars.update(task, description=what, completed=done, total=total or None)

        yield report
