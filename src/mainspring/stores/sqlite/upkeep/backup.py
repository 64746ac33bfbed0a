"""Backups of an SQLite file while other processes write to it, and their restore."""

import os
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import apsw
import msgspec

from mainspring.core.model.base.errors import Conflict, StoreUnavailable
from mainspring.core.model.base.instant import Instant, isoformat
from mainspring.core.model.runs.restored import (
    AUTHOR,
    RESTORED,
    PausedBefore,
    RestoreRecord,
    Unfinished,
    paused_before,
    why_held,
)
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.upkeep.backup import LEFT_OUT, BackupWriter, Manifest, Open, ReportProgress
from mainspring.core.runtime.backup_file import PIECE
from mainspring.core.runtime.private_files import create_private_file
from mainspring.stores.changes import Change
from mainspring.stores.sqlite import connection as connections
from mainspring.stores.sqlite.records.audit import write_audit

_MEMBER = "store.db"
#: Pages per step; progress is reported between steps.
_PAGES_PER_STEP = 4_096
# Runs that wait for dependencies, a key or a limit are shown as blocked.
_UNFINISHED = (
    "SELECT state, count(*) FROM (SELECT state FROM run"
    " UNION ALL SELECT iif(state = 'scheduled', state, 'blocked') FROM waiting) GROUP BY 1"
)
_HEADER = b"SQLite format 3\0"
_PAUSE_FIELDS = ("since", "author", "why", "until")
_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT GLOB 'sqlite_*' ORDER BY name"


class SqliteBackups:
    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock

    async def take(self, writing: BackupWriter, program: str, report: ReportProgress) -> Manifest:
        if not self._path.is_file():
            raise StoreUnavailable(f"there is no store {self._path}")
        # Next to the store, where there is room for a copy: a temporary folder may be in memory.
        with TemporaryDirectory(prefix=f".{self._path.name}-backup-", dir=self._path.parent) as folder:
            copy = Path(folder) / _MEMBER
            with _convert_errors(self._path):
                taken_at = self._copy(copy, report)
                manifest = _describe(copy, taken_at, program)
            size = copy.stat().st_size

            async def fill(write: Callable[[bytes], Awaitable[None]]) -> int:
                with copy.open("rb") as source:
                    while piece := source.read(PIECE):
                        await write(piece)
                        report("written", source.tell(), size)
                return 0

            part = await writing.add(_MEMBER, fill)
        return msgspec.structs.replace(manifest, parts=(part,))

    async def restore(
        self, manifest: Manifest, opened: Open, unfinished: Unfinished, report: ReportProgress, *, replace: bool
    ) -> RestoreRecord:
        _refuse_newer(manifest)
        with _convert_errors(self._path):
            epoch = self._refuse_used(replace)
            with TemporaryDirectory(prefix=f".{self._path.name}-restore-", dir=self._path.parent) as folder:
                copy = Path(folder) / self._path.name
                await _extract(manifest, opened, copy, report)
                restored = self._prepare_restored(copy, manifest, unfinished, max(epoch, manifest.store_epoch) + 1)
                self._rename_existing(restored.restored_at)
                os.replace(copy, self._path)
                _sync(self._path.parent)
        return restored

    async def examine(self, manifest: Manifest, opened: Open, folder: Path) -> None:
        copy = folder / _MEMBER
        with _convert_errors(copy):
            await _extract(manifest, opened, copy, lambda *_: None)
            connection = apsw.Connection(str(copy), flags=apsw.SQLITE_OPEN_READONLY)
            try:
                found = connection.execute("PRAGMA integrity_check").get
                if found != "ok":
                    raise Conflict(f"the file in it is damaged: {found}")
                rows = _count_rows(connection)
            finally:
                connection.close()
        if rows != manifest.rows:
            wrong = next(name for name in manifest.rows | rows if manifest.rows.get(name) != rows.get(name))
            raise Conflict(f"{wrong} has {rows.get(wrong, 0)} rows, and {manifest.rows.get(wrong, 0)} were written")

    def _copy(self, copy: Path, report: ReportProgress) -> int:
        source = connections.open_for_reading(self._path)
        target = apsw.Connection(str(copy))
        try:
            # A read transaction sees one snapshot until it ends, even while other processes write.
            source.execute("BEGIN")
            connections.refuse_moved(source)
            if not connections.schema_version(source):
                raise Conflict(f"there is nothing in {self._path}")
            taken_at = self._clock.now()
            with target.backup("main", source, "main") as backup:
                while not backup.done:
                    backup.step(_PAGES_PER_STEP)
                    report("copied", backup.page_count - backup.remaining, backup.page_count)
            # No log next to the copy: the backup keeps a single file.
            target.execute("PRAGMA journal_mode = DELETE")
        finally:
            target.close()
            source.close()
        return taken_at

    def _refuse_used(self, replace: bool) -> int:
        """Return the epoch of the existing store; 0 if there is none, or none that can be read."""
        if not self._path.exists():
            if not self._path.parent.is_dir():
                raise StoreUnavailable(f"there is no directory {self._path.parent}")
            return 0
        try:
            epoch, used = self._examine_existing()
        except (apsw.NotADBError, apsw.CorruptError) as error:
            if not replace:
                raise Conflict(f"{self._path} is damaged ({error}): name another file, or say --replace") from None
            return 0
        if used and not replace:
            raise Conflict(f"{self._path} is not empty: name another file, or say --replace")
        if self._path.with_name(f"{self._path.name}-wal").exists():
            # SQLite would take it for the log of the new file.
            raise Conflict(f"another process, such as an API, has {self._path} open: stop it first")
        return epoch

    def _examine_existing(self) -> tuple[int, bool]:
        """Return the epoch of the existing store, and whether it holds anything."""
        with self._path.open("rb") as file:
            if (start := file.read(len(_HEADER))) and start != _HEADER:
                # SQLite would open it, and delete the log next to it when it closes.
                raise apsw.NotADBError("file is not a database")
        connection = connections.open_without_migrating(self._path)
        try:
            if not connections.schema_version(connection):
                return 0, False
            alive = connection.execute(
                "SELECT name FROM session WHERE live = 1 AND lease_until > :now ORDER BY id LIMIT 10",
                {"now": self._clock.now()},
            ).fetchall()
            if alive:
                raise Conflict(f"processes work on {self._path}: {', '.join(str(name) for (name,) in alive)}")
            tables = {str(name) for (name,) in connection.execute(_TABLES).fetchall()}
            used = any(
                connection.execute(f"SELECT EXISTS (SELECT 1 FROM {table})").get  # noqa: S608
                for table in ("job", "run", "waiting", "history", "audit", "api_key")
                if table in tables
            )
            return int(str(connection.execute("SELECT store_epoch FROM meta").get)), used
        finally:
            connection.close()

    def _rename_existing(self, at: Instant) -> None:
        """Rename the existing files, so that SQLite cannot take an unreadable store's log for the new file's.

        The file itself also stays in its place until the new one replaces it, so a store exists at any time.
        """
        for end in ("-wal", "-shm"):
            old = self._path.with_name(f"{self._path.name}{end}")
            if old.exists():
                old.rename(self._path.with_name(f"{self._path.name}.before-{at}{end}"))
        if self._path.exists():
            kept = self._path.with_name(f"{self._path.name}.before-{at}")
            try:
                os.link(self._path, kept)
            except OSError:
                # Some file systems have no hard links.
                self._path.rename(kept)
        _sync(self._path.parent)

    def _prepare_restored(self, copy: Path, manifest: Manifest, unfinished: Unfinished, epoch: int) -> RestoreRecord:
        connection = connections.open_for_writing(copy, manifest.shards)
        try:
            now = self._clock.now()
            restored = RestoreRecord(
                taken_at=manifest.taken_at,
                restored_at=now,
                store_id=manifest.store_id,
                unfinished=unfinished,
                paused=_paused_before(connection, now),
            )
            author = Author(AUTHOR, why=f"from a backup of {isoformat(manifest.taken_at)}")
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(
                "UPDATE meta SET store_id = :store_id, store_epoch = :store_epoch, hint_key = :hint_key",
                {"store_id": secrets.token_hex(16), "store_epoch": epoch, "hint_key": secrets.token_hex(16)},
            )
            connection.execute(
                "UPDATE session SET live = 0, lease_until = min(lease_until, :now) WHERE live = 1", {"now": now}
            )
            connection.execute("UPDATE shard SET owner = NULL")
            connection.execute(
                "UPDATE sqlite_sequence SET seq = seq + :left_out WHERE name IN ('session', 'outbox')",
                {"left_out": LEFT_OUT},
            )
            if unfinished is not Unfinished.RERUN:
                connection.execute(
                    "INSERT OR REPLACE INTO pause (tenant, queue, since, author, why)"
                    " VALUES ('', '', :since, :author, :why)",
                    {"since": now, "author": author.name, "why": why_held(restored)},
                )
            change = Change("", manifest.store_id, after=msgspec.json.encode(restored))
            write_audit(connection, now, RESTORED, author, [change])
            connection.execute("COMMIT")
        finally:
            connection.close()
        _sync(copy)
        return restored


def _sync(path: Path) -> None:
    """Flush a file or a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _paused_before(connection: apsw.Connection, now: Instant) -> PausedBefore | None:
    row = connection.execute(
        "SELECT since, author, why, until FROM pause"
        " WHERE tenant = '' AND queue = '' AND (until IS NULL OR until > :now)",
        {"now": now},
    ).fetchone()
    last = connection.execute(
        "SELECT after FROM audit WHERE action = :action ORDER BY position DESC LIMIT 1", {"action": RESTORED}
    ).get
    found = None if row is None else msgspec.convert(dict(zip(_PAUSE_FIELDS, row, strict=True)), PausedBefore)
    return paused_before(found, None if last is None else str(last).encode())


async def _extract(manifest: Manifest, opened: Open, copy: Path, report: ReportProgress) -> None:
    [part] = manifest.parts
    create_private_file(copy)
    with copy.open("wb") as target:
        async for piece in opened(part.name):
            target.write(piece)
            report("read", target.tell(), part.bytes)


def _describe(copy: Path, taken_at: int, program: str) -> Manifest:
    connection = apsw.Connection(str(copy), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        row = connection.execute("SELECT store_id, store_epoch, shards, schema_version FROM meta").fetchone()
        assert row is not None
        store_id, epoch, shards, version = row
        return Manifest(
            kind="sqlite",
            program=program,
            taken_at=taken_at,
            store_id=str(store_id),
            store_epoch=int(str(epoch)),
            shards=int(str(shards)),
            migrations=tuple(range(1, int(str(version)) + 1)),
            parts=(),
            rows=_count_rows(connection),
            unfinished={str(state): int(str(count)) for state, count in connection.execute(_UNFINISHED)},
        )
    finally:
        connection.close()


def _count_rows(connection: apsw.Connection) -> dict[str, int]:
    names = [str(name) for (name,) in connection.execute(_TABLES).fetchall()]
    return {name: int(str(connection.execute(f"SELECT count(*) FROM {name}").get)) for name in names}  # noqa: S608


def _refuse_newer(manifest: Manifest) -> None:
    newest = connections.MIGRATIONS[-1][0]
    if manifest.migrations[-1] > newest:
        raise Conflict(
            f"the backup has schema version {manifest.migrations[-1]}, this program knows {newest}: upgrade the program"
        )


@contextmanager
def _convert_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except apsw.Error as error:
        raise StoreUnavailable(f"SQLite: {path}: {error}") from error
    except OSError as error:
        raise StoreUnavailable(f"{path} cannot be written: {error.strerror or error}") from error
