"""``mainspring backup``: a whole store in one file."""

import asyncio
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
import typer

import mainspring
from mainspring.cli.client.command import Profile
from mainspring.cli.client.target import store_settings
from mainspring.cli.options import Config, Store
from mainspring.cli.output import AsJson, echo_json
from mainspring.config.backups import take_backup, verify_backup
from mainspring.config.runtime import system_clock
from mainspring.core.model.base.instant import SECOND, isoformat
from mainspring.core.ports.upkeep.backup import Manifest
from mainspring.features.backup.commands.files import ExistingBackup, FileGroup, show_progress

BackupFile: TypeAlias = Annotated[Path, typer.Argument(help="The file to write; it must not exist.", metavar="FILE")]

backup_group = typer.Typer(
    name="backup",
    help="Back up the whole store into one file: mainspring backup FILE.",
    cls=FileGroup,
    no_args_is_help=True,
)


def register(application: typer.Typer) -> None:
    application.add_typer(backup_group)


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


@backup_group.command("create")
def create(
    file: BackupFile, profile: Profile = None, store: Store = None, config: Config = None, json: AsJson = False
) -> None:
    """Write the whole store, as of one moment, into one file; `create` may be left out.

    Processes may keep running. On PostgreSQL the backup reads in one transaction, and an open transaction keeps dead
    rows: back up a large store when it is quiet. The file contains payloads and is readable only by you.

    Examples:

    mainspring backup monday.backup

    mainspring backup monday.backup --store postgresql://me@db.example.org/jobs
    """
    clock, settings = system_clock(), store_settings(profile, store, config)
    began = clock.monotonic()
    with show_progress(quiet=json) as report:
        manifest, size = asyncio.run(take_backup(settings, file, mainspring.__version__, report))
    _show_backup(file, manifest, size, (clock.monotonic() - began) / SECOND, json=json)


@backup_group.command("verify")
def verify(file: ExistingBackup, json: AsJson = False) -> None:
    """Read a whole backup, and compare it with the checksums and counts in it.

    Example: mainspring backup verify monday.backup
    """
    clock = system_clock()
    began = clock.monotonic()
    manifest = asyncio.run(verify_backup(file))
    _show_backup(file, manifest, file.stat().st_size, (clock.monotonic() - began) / SECOND, json=json)
    if not json:
        typer.echo("the backup is complete and undamaged")


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
    typer.echo(f"unfinished runs: {open_runs or 'none'}; {seconds:.1f} s")
