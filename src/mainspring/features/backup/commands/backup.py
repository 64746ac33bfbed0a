"""``mainspring backup`` and ``restore``: a store in one file, restored without repeating work unasked."""

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
import typer
from rich.console import Console
from typer.core import TyperGroup

import mainspring
from mainspring.cli.client.target import Profile, store_settings
from mainspring.cli.options import Config, Store
from mainspring.cli.output import AsJson, console, echo_json, table
from mainspring.config.backups import opened_store, restore_backup, take_backup, verify_backup
from mainspring.config.runtime import system_clock
from mainspring.config.sections.addresses import hide_secrets
from mainspring.config.settings import Settings
from mainspring.core.model.base.instant import SECOND, isoformat
from mainspring.core.model.runs.restored import Doubt, KnownEnd, Restored, Unfinished
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.ports.storage.catalog import Pause
from mainspring.core.ports.upkeep.backup import Manifest, Tell
from mainspring.features.backup.commands.known_ends import ends_in
from mainspring.features.backup.restored import (
    give_ends,
    holds,
    in_doubt,
    last_restore,
    pause_of_all,
    release,
    take_back,
)

#: Runs shown without ``--json``.
_SHOWN = 50

Out: TypeAlias = Annotated[Path, typer.Argument(help="The file to write; it must not be there.", metavar="FILE")]
In: TypeAlias = Annotated[Path, typer.Argument(help="The backup.", metavar="FILE")]


class _TakesFile(TyperGroup):
    """Command group that runs its first command when the first argument is a file instead of a command name."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [next(iter(self.commands)), *args]
        return super().parse_args(ctx, args)


backup_group = typer.Typer(
    name="backup",
    help="Write everything that the store holds into a file: mainspring backup FILE.",
    cls=_TakesFile,
    no_args_is_help=True,
)
restore_group = typer.Typer(
    name="restore",
    help="Make a store of a backup, and decide what becomes of what was unfinished: mainspring restore FILE.",
    cls=_TakesFile,
    no_args_is_help=True,
)


def register(application: typer.Typer) -> None:
    application.add_typer(backup_group)
    application.add_typer(restore_group)


class BackupOut(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """JSON output of a backup."""

    file: str
    kind: str
    taken_at: str
    program: str
    schema_version: int
    store_id: str
    rows: dict[str, int]
    unfinished: dict[str, int]
    bytes: int
    seconds: float


class RestoreOut(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """JSON output of a restore."""

    store: str
    taken_at: str
    restored_at: str
    rows: dict[str, int]
    held: bool
    in_doubt: int
    #: Runs completed from ``--finished``, by state.
    settled: dict[str, int]
    #: Runs cancelled by ``--unfinished cancel``.
    cancelled: int
    #: Lines of ``--finished`` that do not report an end.
    passed_over: int
    seconds: float


class DoubtOut(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """JSON output of a run in doubt."""

    id: str
    tenant: str
    state: str
    task: str
    queue: str
    due: str
    attempt: int
    doubt: str
    tick: str | None = None


class ReviewOut(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """JSON output of a review."""

    taken_at: str
    restored_at: str
    held: bool
    in_doubt: list[DoubtOut]


@backup_group.command("take")
def take(file: Out, profile: Profile = None, store: Store = None, config: Config = None, json: AsJson = False) -> None:
    """Write the whole store, as of one moment, into one file; `take` may be left out.

    Processes may keep running. On PostgreSQL the backup reads in one transaction, and an open transaction keeps dead
    rows: back up a large store when it is quiet. The file contains payloads and is readable only by you.

    Examples:

    mainspring backup monday.backup

    mainspring backup monday.backup --store postgresql://me@db.example.org/jobs
    """
    clock, settings = system_clock(), store_settings(profile, store, config)
    began = clock.monotonic()
    with _progress(quiet=json) as tell:
        manifest, size = asyncio.run(take_backup(settings, file, mainspring.__version__, tell))
    _show_backup(file, manifest, size, (clock.monotonic() - began) / SECOND, json=json)


@backup_group.command("verify")
def verify(file: In, json: AsJson = False) -> None:
    """Read a whole backup, and compare it with the checksums and counts in it.

    Example: mainspring backup verify monday.backup
    """
    clock = system_clock()
    began = clock.monotonic()
    manifest = asyncio.run(verify_backup(file))
    _show_backup(file, manifest, file.stat().st_size, (clock.monotonic() - began) / SECOND, json=json)
    if not json:
        typer.echo("it is whole")


def _show_backup(file: Path, manifest: Manifest, size: int, seconds: float, *, json: bool) -> None:
    if json:
        echo_json(
            BackupOut(
                file=str(file),
                kind=manifest.kind,
                taken_at=isoformat(manifest.taken_at),
                program=manifest.program,
                schema_version=max(manifest.migrations),
                store_id=manifest.store_id,
                rows=manifest.rows,
                unfinished=manifest.unfinished,
                bytes=size,
                seconds=round(seconds, 3),
            )
        )
        return
    total = sum(manifest.rows.values())
    typer.echo(f"{file}: {manifest.kind} as of {isoformat(manifest.taken_at)}, {total:,} rows, {size:,} bytes")
    open_runs = ", ".join(f"{count:,} {state}" for state, count in sorted(manifest.unfinished.items()))
    typer.echo(f"runs that had not ended: {open_runs or 'none'}; {seconds:.1f} s")


@restore_group.command("from")
def restore(
    file: In,
    unfinished: Annotated[
        Unfinished,
        typer.Option("--unfinished", help="What becomes of runs that had not ended when the backup was taken."),
    ] = Unfinished.HOLD,
    finished: Annotated[
        Path | None,
        typer.Option(
            "--finished",
            help="Runs that are known to have ended since, an id or JSON a line: those in doubt get that end.",
            show_default=False,
        ),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Also if something is in the store: take its place.")
    ] = False,
    profile: Profile = None,
    store: Store = None,
    config: Config = None,
    json: AsJson = False,
) -> None:
    """Restore a backup into a store, entirely or not at all. `from` may be left out.

    Runs that were unfinished in the backup may have run since. So everything is paused after the restore: you can start
    processes, ticks are recorded and submissions are accepted, but nothing runs. `restore review` shows the runs in
    doubt, and `restore release` ends the pause. With --unfinished rerun nothing is paused, and all unfinished runs run
    again; with --unfinished cancel they are cancelled first.

    Leases, fences and hints of the old store are void in the new one.

    Examples:

    mainspring restore monday.backup --store postgresql://me@db2.example.org/jobs

    mainspring restore monday.backup --store new.db --finished done.jsonl
    """
    clock, settings = system_clock(), store_settings(profile, store, config)
    began = clock.monotonic()
    done, passed_over = ([], 0) if finished is None else ends_in(finished)
    with _progress(quiet=json) as tell:
        manifest, restored = asyncio.run(restore_backup(settings, file, unfinished, tell, replace=replace))
    doubtful, settled, cancelled = asyncio.run(_decide(settings, restored, done))
    seconds = (clock.monotonic() - began) / SECOND
    held = unfinished is Unfinished.HOLD
    if json:
        echo_json(
            RestoreOut(
                store=hide_secrets(settings.store),
                taken_at=isoformat(restored.taken_at),
                restored_at=isoformat(restored.restored_at),
                rows=manifest.rows,
                held=held,
                in_doubt=doubtful,
                settled=_by_state(settled),
                cancelled=cancelled,
                passed_over=passed_over,
                seconds=round(seconds, 3),
            )
        )
        return
    total = sum(manifest.rows.values())
    typer.echo(f"{total:,} rows as of {isoformat(restored.taken_at)} are in {hide_secrets(settings.store)}")
    if done or passed_over:
        typer.echo(_completed(settled, passed_over))
    if restored.unfinished is Unfinished.CANCEL:
        typer.echo(f"{cancelled:,} runs were cancelled")
    typer.echo(f"{doubtful:,} runs are in doubt; {seconds:.1f} s")
    if held:
        typer.echo("everything is paused: mainspring restore review, then mainspring restore release")


async def _decide(settings: Settings, restored: Restored, done: list[KnownEnd]) -> tuple[int, Counter[RunState], int]:
    """Complete the known runs, and cancel the rest if asked to.

    Returns how many runs are in doubt, which were completed, and how many were cancelled.
    """
    async with opened_store(settings) as store:
        settled = await give_ends(store, restored, done)
        doubtful = await in_doubt(store, restored)
        if restored.unfinished is not Unfinished.CANCEL:
            return len(doubtful), settled, 0
        cancelled = await take_back(store, [run.id for run, _ in doubtful], "unfinished when the backup was taken")
        await release(store, restored)
        return 0, settled, len(cancelled)


@restore_group.command("review")
def review(profile: Profile = None, store: Store = None, config: Config = None, json: AsJson = False) -> None:
    """Show the runs in doubt: a restored store cannot know whether they were done after the backup was taken.

    They are the runs that were unfinished in the backup, and ticks due between the backup and the restore. Start a
    scheduler first: it records the ticks. Report what had been done with `restore finished`.

    Example: mainspring restore review --store new.db
    """
    settings = store_settings(profile, store, config)
    restored, paused, doubtful = asyncio.run(_review(settings))
    if json:
        echo_json(
            ReviewOut(
                taken_at=isoformat(restored.taken_at),
                restored_at=isoformat(restored.restored_at),
                held=holds(paused),
                in_doubt=[_doubt_out(run, doubt) for run, doubt in doubtful],
            )
        )
        return
    typer.echo(f"backup of {isoformat(restored.taken_at)}, restored {isoformat(restored.restored_at)}")
    shown = table("ID", "TENANT", "STATE", "TASK", "QUEUE", "DUE", "TRIES", "DOUBT", right=("TRIES",))
    for run, doubt in doubtful[:_SHOWN]:
        shown.add_row(
            run.id, run.tenant, str(run.state), run.task, run.queue, isoformat(run.due), str(run.attempt), str(doubt)
        )
    if doubtful:
        console().print(shown)
    if len(doubtful) > _SHOWN:
        typer.echo(f"… and {len(doubtful) - _SHOWN:,} more: --json shows all")
    told = "everything is paused until mainspring restore release" if holds(paused) else _not_held(paused)
    typer.echo(f"{len(doubtful):,} runs in doubt; {told}")


def _not_held(paused: Pause | None) -> str:
    """Describe the pause of a store that no restore holds."""
    if paused is None:
        return "nothing is held"
    return f"everything is paused by {paused.author}" + (f": {paused.why}" if paused.why else "")


async def _review(settings: Settings) -> tuple[Restored, Pause | None, list[tuple[RunView, Doubt]]]:
    async with opened_store(settings) as store:
        restored = await last_restore(store)
        return restored, await pause_of_all(store), await in_doubt(store, restored)


def _doubt_out(run: RunView, doubt: Doubt) -> DoubtOut:
    return DoubtOut(
        id=run.id,
        tenant=run.tenant,
        state=str(run.state),
        task=run.task,
        queue=run.queue,
        due=isoformat(run.due),
        attempt=run.attempt,
        doubt=str(doubt),
        tick=None if run.scheduled_at is None else isoformat(run.scheduled_at),
    )


@restore_group.command("finished")
def finished(
    file: Annotated[
        Path, typer.Argument(help="An id or JSON with an id a line; - is stdin.", metavar="FILE", allow_dash=True)
    ],
    profile: Profile = None,
    store: Store = None,
    config: Config = None,
    json: AsJson = False,
) -> None:
    """Complete runs in doubt that are known to have ended: from a log, an event topic, or the other system.

    A plain id counts as succeeded, and its dependents continue. Of events, only those that report the end of a run
    count; the run gets that outcome. The number of other lines is printed. A `result` in the JSON of a run is kept.

    Example: mainspring restore finished done.jsonl --store new.db
    """
    ends, passed_over = ends_in(file)
    settled = asyncio.run(_give_ends(store_settings(profile, store, config), ends))
    if json:
        echo_json({"settled": _by_state(settled), "passedOver": passed_over})
    else:
        typer.echo(_completed(settled, passed_over))


def _by_state(settled: Counter[RunState]) -> dict[str, int]:
    return {state.value: count for state, count in sorted(settled.items())}


def _completed(settled: Counter[RunState], passed_over: int) -> str:
    told = ", ".join(f"{count:,} {state}" for state, count in _by_state(settled).items())
    told = f"runs that were settled: {told or 'none'}"
    return f"{told}; {passed_over:,} lines tell of no end, and were passed over" if passed_over else told


async def _give_ends(settings: Settings, ends: list[KnownEnd]) -> Counter[RunState]:
    async with opened_store(settings) as store:
        return await give_ends(store, await last_restore(store), ends)


@restore_group.command("release")
def release_held(profile: Profile = None, store: Store = None, config: Config = None, json: AsJson = False) -> None:
    """End the pause of a restored store: runs that are still in doubt run.

    If everything had been paused before the backup was taken, that pause applies again.

    Example: mainspring restore release --store new.db
    """
    was_held, count, paused = asyncio.run(_release(store_settings(profile, store, config)))
    if json:
        echo_json({"released": was_held, "inDoubt": count, "paused": paused is not None})
        return
    typer.echo(f"{count:,} runs in doubt will run" if was_held else "nothing was held")
    if paused is not None:
        typer.echo(f"{_not_held(paused)}; mainspring queues resume --all ends that")


async def _release(settings: Settings) -> tuple[bool, int, Pause | None]:
    async with opened_store(settings) as store:
        restored = await last_restore(store)
        doubtful = await in_doubt(store, restored)
        return await release(store, restored), len(doubtful), await pause_of_all(store)


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Tell]:
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

        def tell(what: str, done: int, total: int) -> None:
            bars.update(task, description=what, completed=done, total=total or None)

        yield tell
