"""Takes and restores backups of a store, and promotes a standby to primary."""

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from mainspring.config.sections.addresses import read_store_servers
from mainspring.config.settings import Settings
from mainspring.config.stores import POSTGRES, RuntimeStore, explain_missing, make_store, parse_path
from mainspring.core.model.base.errors import Invalid, StoreUnavailable
from mainspring.core.model.runs.restored import RestoreRecord, Unfinished
from mainspring.core.ports.upkeep.backup import Backups, Manifest, ReportProgress
from mainspring.core.ports.upkeep.promotion import Promoted
from mainspring.core.runtime.backup_file import BackupFileReader, BackupFileWriter
from mainspring.core.runtime.system_clock import SystemClock


def make_backups(settings: Settings) -> Backups:
    if settings.store == "memory:":
        raise Invalid("store", "memory: keeps nothing", "a path for SQLite, or postgresql://…")
    if read_store_servers(settings.store):
        raise Invalid(
            "store", "is on several servers, which have no moment in common", "PostgreSQL's own means for each of them"
        )
    if settings.store.startswith(POSTGRES):
        try:
            from mainspring.stores.postgres.upkeep.backup import PostgresBackups
        except ModuleNotFoundError as error:
            raise explain_missing("PostgreSQL", "postgres", error) from error
        return PostgresBackups(settings.store, settings.schema)
    from mainspring.stores.sqlite.upkeep.backup import SqliteBackups

    return SqliteBackups(parse_path(settings.store), SystemClock())


async def take_backup(settings: Settings, file: Path, program: str, report: ReportProgress) -> tuple[Manifest, int]:
    """Write everything in the store into a backup file. Returns its manifest and its size."""
    backups = make_backups(settings)
    with BackupFileWriter(file) as writer:
        manifest = await backups.take(writer, program, report)
        return manifest, writer.finish(manifest)


async def verify_backup(file: Path) -> Manifest:
    """Read a whole backup and compare it with its manifest. Raises ``Conflict`` with the difference."""
    reader = BackupFileReader(file)
    # The store is not opened, so only its kind matters.
    store = "postgresql://" if reader.manifest.kind == "postgresql" else str(file)
    try:
        with tempfile.TemporaryDirectory(prefix=f".{file.name}-verify-", dir=file.parent) as folder:
            await make_backups(Settings(store=store)).examine(reader.manifest, reader.open, Path(folder))
    except OSError as error:
        raise StoreUnavailable(f"{file.parent} has no room to verify it in: {error.strerror or error}") from error
    return reader.manifest


async def restore_backup(
    settings: Settings, file: Path, unfinished: Unfinished, report: ReportProgress, *, replace: bool
) -> tuple[Manifest, RestoreRecord]:
    """Restore a backup into the store."""
    reader = BackupFileReader(file)
    manifest = reader.manifest
    backups = make_backups(settings)
    kind = "postgresql" if settings.store.startswith(POSTGRES) else "sqlite"
    if kind != manifest.kind:
        hint = "restore to a file and mainspring move it" if kind == "postgresql" else "postgresql://user@host/database"
        raise Invalid("--store", f"is not {manifest.kind}, of which the backup is", hint)
    return manifest, await backups.restore(manifest, reader.open, unfinished, report, replace=replace)


@asynccontextmanager
async def open_store(settings: Settings) -> AsyncIterator[RuntimeStore]:
    """Yield the opened store. Raises ``StoreUnavailable`` if an SQLite file does not exist."""
    if settings.store == "memory:":
        raise Invalid("store", "memory: keeps nothing", "a path for SQLite, or postgresql://…")
    if not settings.store.startswith(POSTGRES) and not read_store_servers(settings.store):
        path = parse_path(settings.store)
        if not path.exists():
            raise StoreUnavailable(f"there is no store {path}")
    store = make_store(settings, SystemClock())
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def promote_standby(settings: Settings, address: str, *, force: bool) -> Promoted:
    """Make the standby at this address the primary of the store."""
    for name, given in (("ADDRESS", address), ("--store", settings.store)):
        if not given.startswith(POSTGRES):
            raise Invalid(name, "is not PostgreSQL", "postgresql://user@host/database")
    try:
        from mainspring.stores.postgres.upkeep.promotion import promote
    except ModuleNotFoundError as error:
        raise explain_missing("PostgreSQL", "postgres", error) from error
    return await promote(address, settings.store, settings.schema, SystemClock(), force=force)
