"""``mainspring restore``: restores a backup without repeating work."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from mainspring.cli.client.command import Profile
from mainspring.cli.client.target import store_settings
from mainspring.cli.options import Config, Store
from mainspring.cli.output import AsJson, build_table, echo_json, make_console, shorten_id
from mainspring.config.backups import open_store, restore_backup
from mainspring.config.runtime import system_clock
from mainspring.config.sections.addresses import hide_secrets
from mainspring.config.settings import Settings
from mainspring.core.model.base.instant import SECOND, isoformat
from mainspring.core.model.runs.restored import KnownOutcome, RestoreRecord, Uncertainty, Unfinished
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.ports.storage.catalog import Pause
from mainspring.features.backup.commands.files import ExistingBackup, FileGroup, show_progress
from mainspring.features.backup.commands.known_ends import read_known_ends
from mainspring.features.backup.restored import (
    cancel_runs,
    complete_known,
    is_restore_pause,
    list_in_doubt,
    read_last_restore,
    read_pause_of_all,
    release_pause,
)

#: Runs shown without ``--json``.
_MAX_LISTED = 50

restore_group = typer.Typer(
    name="restore",
    help="Restore a backup, and decide about its unfinished runs: mainspring restore FILE.",
    cls=FileGroup,
    no_args_is_help=True,
)


def register(application: typer.Typer) -> None:
    application.add_typer(restore_group)


class RestoreOut(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """JSON output of a restore."""

    store: str
    taken_at: str
    restored_at: str
    rows: dict[str, int]
    held: bool
    in_doubt: int
    #: Runs completed from ``--finished``, by state.
    completed: dict[str, int]
    #: Runs cancelled by ``--unfinished cancel``.
    cancelled: int
    #: Lines of ``--finished`` that do not report an end.
    skipped: int
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


@restore_group.command("from")
def restore(
    file: ExistingBackup,
    unfinished: Annotated[
        Unfinished,
        typer.Option("--unfinished", help="What to do with runs that were unfinished when the backup was taken."),
    ] = Unfinished.HOLD,
    finished: Annotated[
        Path | None,
        typer.Option(
            "--finished",
            help="File of runs that are known to have ended since, one id or JSON object per line.",
            show_default=False,
        ),
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the data of a store that is not empty.")] = False,
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
    done, skipped = ([], 0) if finished is None else read_known_ends(finished)
    with show_progress(quiet=json) as report:
        manifest, restored = asyncio.run(restore_backup(settings, file, unfinished, report, replace=replace))
    doubtful, completed, cancelled = asyncio.run(_complete_or_cancel(settings, restored, done))
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
                completed=_count_by_state(completed),
                cancelled=cancelled,
                skipped=skipped,
                seconds=round(seconds, 3),
            )
        )
        return
    total = sum(manifest.rows.values())
    typer.echo(f"{total:,} rows as of {isoformat(restored.taken_at)} restored into {hide_secrets(settings.store)}")
    if done or skipped:
        typer.echo(_describe_completed(completed, skipped))
    if restored.unfinished is Unfinished.CANCEL:
        typer.echo(f"{cancelled:,} runs cancelled")
    typer.echo(f"{doubtful:,} runs in doubt; {seconds:.1f} s")
    if held:
        typer.echo("everything is paused; next: mainspring restore review, then mainspring restore release")


async def _complete_or_cancel(
    settings: Settings, restored: RestoreRecord, done: list[KnownOutcome]
) -> tuple[int, Counter[RunState], int]:
    """Complete the known runs, and cancel the rest if asked to.

    Returns how many runs are in doubt, which were completed, and how many were cancelled.
    """
    async with open_store(settings) as store:
        completed = await complete_known(store, restored, done)
        doubtful = await list_in_doubt(store, restored)
        if restored.unfinished is not Unfinished.CANCEL:
            return len(doubtful), completed, 0
        cancelled = await cancel_runs(store, [run.id for run, _ in doubtful], "unfinished when the backup was taken")
        await release_pause(store, restored)
        return 0, completed, len(cancelled)


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
                held=is_restore_pause(paused),
                in_doubt=[_doubt_out(run, doubt) for run, doubt in doubtful],
            )
        )
        return
    typer.echo(f"backup of {isoformat(restored.taken_at)}, restored {isoformat(restored.restored_at)}")
    console = make_console()
    shown = build_table("RUN", "TASK", "STATE", "DUE", "DOUBT")
    for run, doubt in doubtful[:_MAX_LISTED]:
        due = f"{isoformat(run.due)[:19]}Z"
        shown.add_row(shorten_id(run.id, console), run.task, str(run.state), due, str(doubt))
    if doubtful:
        console.print(shown)
    if len(doubtful) > _MAX_LISTED:
        typer.echo(f"… and {len(doubtful) - _MAX_LISTED:,} more: --json shows all")
    state = (
        "everything is paused until mainspring restore release" if is_restore_pause(paused) else _describe_pause(paused)
    )
    typer.echo(f"{len(doubtful):,} runs in doubt; {state}")


def _describe_pause(paused: Pause | None) -> str:
    """Describe the pause of a store that no restore holds."""
    if paused is None:
        return "nothing is paused"
    return f"everything is paused by {paused.author}" + (f": {paused.why}" if paused.why else "")


async def _review(settings: Settings) -> tuple[RestoreRecord, Pause | None, list[tuple[RunView, Uncertainty]]]:
    async with open_store(settings) as store:
        restored = await read_last_restore(store)
        return restored, await read_pause_of_all(store), await list_in_doubt(store, restored)


def _doubt_out(run: RunView, doubt: Uncertainty) -> DoubtOut:
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
        Path, typer.Argument(help="One id or JSON object per line; - reads stdin.", metavar="FILE", allow_dash=True)
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
    ends, skipped = read_known_ends(file)
    completed = asyncio.run(_complete_known(store_settings(profile, store, config), ends))
    if json:
        echo_json({"completed": _count_by_state(completed), "skipped": skipped})
    else:
        typer.echo(_describe_completed(completed, skipped))


def _count_by_state(completed: Counter[RunState]) -> dict[str, int]:
    return {state.value: count for state, count in sorted(completed.items())}


def _describe_completed(completed: Counter[RunState], skipped: int) -> str:
    state = ", ".join(f"{count:,} {state}" for state, count in _count_by_state(completed).items())
    state = f"runs completed: {state or 'none'}"
    return f"{state}; {skipped:,} lines report no end and were skipped" if skipped else state


async def _complete_known(settings: Settings, ends: list[KnownOutcome]) -> Counter[RunState]:
    async with open_store(settings) as store:
        return await complete_known(store, await read_last_restore(store), ends)


@restore_group.command("release")
def release_held(profile: Profile = None, store: Store = None, config: Config = None, json: AsJson = False) -> None:
    """End the pause of a restored store: runs that are still in doubt run.

    If everything had been paused before the backup was taken, that pause applies again.

    Example: mainspring restore release --store new.db
    """
    was_held, count, paused = asyncio.run(_release_pause(store_settings(profile, store, config)))
    if json:
        echo_json({"released": was_held, "inDoubt": count, "paused": paused is not None})
        return
    typer.echo(f"{count:,} runs in doubt will run" if was_held else "nothing was paused by a restore")
    if paused is not None:
        typer.echo(f"{_describe_pause(paused)}; to resume: mainspring queues resume --all")


async def _release_pause(settings: Settings) -> tuple[bool, int, Pause | None]:
    async with open_store(settings) as store:
        restored = await read_last_restore(store)
        doubtful = await list_in_doubt(store, restored)
        return await release_pause(store, restored), len(doubtful), await read_pause_of_all(store)
