"""Health checks of an SQLite file: its location, its integrity, and the state of its work."""

import asyncio
import os
from pathlib import Path
from typing import Any

import apsw
import msgspec

from mainspring.core.model.base.errors import Conflict, StoreUnavailable
from mainspring.core.model.base.instant import MINUTE, SECOND, Instant, Micros
from mainspring.core.model.cluster.diagnosis import (
    Finding,
    Queued,
    ReaderSigns,
    Signs,
    WorkerSigns,
    above,
    blamed,
    found,
    get_reaping_limit,
    warned,
)
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.health import Examination, Vitals
from mainspring.core.runtime.private_files import examine_modes
from mainspring.stores import statements
from mainspring.stores.sqlite import connection as connections
from mainspring.stores.sqlite.file_guard import read_damage_notices

_SQL = statements.load(connections.PACKAGE, "health.sql")
_MIB = 1 << 20
#: Maximum time for reading through the file.
_LONGEST_CHECK: Micros = 5 * SECOND
#: File systems that lose their content when the machine restarts.
_IN_MEMORY = frozenset({"tmpfs", "ramfs"})


class SqliteHealth:
    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock

    async def examine(self) -> Examination:
        return await asyncio.to_thread(self._examine)

    async def vitals(self) -> list[Vitals]:
        return [await asyncio.to_thread(self._vitals)]

    def _vitals(self) -> Vitals:
        try:
            connection = connections.open_for_reading(self._path)
        except apsw.Error as error:
            raise StoreUnavailable(f"SQLite: {error}") from error
        try:
            now = self._clock.now()
            _, oldest_unstaged = _fetch_row(connection, _SQL["unstaged"], now)
            _, oldest_unfired = _fetch_row(connection, _SQL["unfired"], now)
            room = os.statvfs(self._path)
            return Vitals(
                dead_letters=int(_fetch_value(connection, _SQL["dead_letters"])),
                scheduled=int(_fetch_value(connection, _SQL["scheduled"])),
                blocked=int(_fetch_value(connection, _SQL["blocked"])),
                missed_objectives=int(_fetch_value(connection, _SQL["missed"])),
                staging_lag=0 if oldest_unstaged is None else max(now - oldest_unstaged, 0),
                firing_lag=0 if oldest_unfired is None else max(now - oldest_unfired, 0),
                # Includes what is in the write-ahead log.
                size=int(_fetch_value(connection, "PRAGMA page_count"))
                * int(_fetch_value(connection, "PRAGMA page_size")),
                disk_free=room.f_bavail * room.f_frsize,
            )
        except (apsw.Error, OSError) as error:
            raise StoreUnavailable(f"SQLite: {error}") from error
        finally:
            connection.close()

    def _examine(self) -> Examination:
        examination = self._examine_file()
        return msgspec.structs.replace(examination, findings=[*examination.findings, *self._damage_of_processes()])

    def _damage_of_processes(self) -> list[Finding]:
        """Report processes that lost their file, even if there is a good one now."""
        return [
            blamed("file in use", f"process {process}: {problem}", f"stop process {process}: it accepts nothing")
            for process, problem in read_damage_notices(self._path).items()
        ]

    def _examine_file(self) -> Examination:
        if not self._path.is_file():
            return _report_unreachable(
                f"there is no file {self._path}", "mainspring migrate makes it, or mainspring up"
            )
        findings = self._check_location()
        try:
            connection = connections.open_for_reading(self._path)
        except (apsw.Error, StoreUnavailable) as error:
            return _report_unreachable(
                f"SQLite cannot open {self._path}: {error}",
                "check its owner and mode; if it is damaged, restore a backup",
            )
        try:
            began = self._clock.monotonic()
            connections.refuse_moved(connection)
            version = connections.schema_version(connection)
            took = self._clock.monotonic() - began
            findings.insert(0, found("store", f"{self._path}, answers in {took / 1_000:.1f} ms"))
            findings += [*_check_schema(version), *self._check_file(connection), self._check_integrity(connection)]
            if version != connections.MIGRATIONS[-1][0]:
                return Examination(findings=findings)
            findings.append(self._check_clock(connection))
            return Examination(findings=findings, signs=self._read_signs(connection))
        except Conflict as error:
            return _report_unreachable(str(error), "point MAINSPRING_STORE to another store")
        except apsw.Error as error:
            return _report_unreachable(f"SQLite: {error}", "restore a backup: the file is damaged, or no database")
        finally:
            connection.close()

    def _check_location(self) -> list[Finding]:
        kind = connections.find_file_system(self._path)
        findings = [found("file system", f"{kind or 'unknown'}, local")]
        if connections.is_on_network(kind):
            advice = "use a local disk, or PostgreSQL for several machines: locks do not hold there"
            findings = [blamed("file system", f"{kind}, a network file system", advice)]
        elif kind in _IN_MEMORY:
            findings = [warned("file system", f"{kind}: lost when the machine restarts", "use a disk")]
        room = os.statvfs(self._path)
        free, size = room.f_bavail * room.f_frsize, self._path.stat().st_size
        summary = f"{free // _MIB:,} MiB free, the file has {size // _MIB:,} MiB"
        # Judged by the space that is left: a full disk stops everything.
        scarce = 0 if free >= max(1024 * _MIB, size // 4) else 1 if free >= 100 * _MIB else 2
        findings.append(above("disk space", scarce, 1, 2, summary, "make room, or keep history for a shorter time"))
        log = Path(f"{self._path}-wal")
        if log.exists():
            size = log.stat().st_size
            advice = "something reads without an end: look for a process that hangs, or a shell that has the file open"
            summary = f"{size // _MIB:,} MiB"
            findings.append(above("write-ahead log", size, 256 * _MIB, 4096 * _MIB, summary, advice))
        files = [Path(f"{self._path}{suffix}") for suffix in ("", "-wal", "-shm", "-journal")]
        findings.append(examine_modes("file permissions", files))
        return findings

    def _check_file(self, connection: apsw.Connection) -> list[Finding]:
        mode = _fetch_value(connection, "PRAGMA journal_mode")
        findings = [found("journal", "write-ahead")]
        if mode != "wal":
            advice = "a process sets it when it starts; stop whatever changes it back"
            findings = [warned("journal", f"{mode}, not a write-ahead log: readers and the writer wait", advice)]
        pages, free = (int(_fetch_value(connection, f"PRAGMA {name}")) for name in ("page_count", "freelist_count"))
        size = int(_fetch_value(connection, "PRAGMA page_size"))
        wasted = free * size
        summary = f"{wasted // _MIB:,} of {pages * size // _MIB:,} MiB are free pages"
        much = wasted >= 64 * _MIB and free * 2 > pages
        advice = "they are used again; to give them back stop the processes and run VACUUM"
        return [*findings, warned("free pages", summary, advice) if much else found("free pages", summary)]

    def _check_integrity(self, connection: apsw.Connection) -> Finding:
        """Check the integrity of the file, as far as that goes in a few seconds."""
        give_up_at = self._clock.monotonic() + _LONGEST_CHECK
        connection.set_progress_handler(lambda: self._clock.monotonic() > give_up_at, 100_000)
        try:
            result = str(_fetch_value(connection, "PRAGMA quick_check(1)"))
        except apsw.InterruptError:
            return found("integrity", f"nothing found in {_LONGEST_CHECK // SECOND} s; the file is too large for more")
        finally:
            connection.set_progress_handler(None)
        if result == "ok":
            return found("integrity", "the file is whole")
        return blamed(
            "integrity", f"the file is damaged: {result.splitlines()[0]}", "stop everything and restore a backup"
        )

    def _check_clock(self, connection: apsw.Connection) -> Finding:
        ahead = int(_fetch_value(connection, _SQL["newest"])) - self._clock.now()
        if ahead > MINUTE:
            summary = f"a process was started {ahead // SECOND} s ahead of this machine's clock"
            return warned("clock", summary, "the clock went back: check time synchronization")
        return found("clock", "the store's clock is this machine's")

    def _read_signs(self, connection: apsw.Connection) -> Signs:
        now = self._clock.now()
        unstaged, oldest_unstaged = _fetch_row(connection, _SQL["unstaged"], now)
        unfired, oldest_unfired = _fetch_row(connection, _SQL["unfired"], now)
        return Signs(
            now=now,
            identity=str(_fetch_value(connection, _SQL["identity"])),
            schedulers=int(_fetch_value(connection, _SQL["schedulers"], now)),
            workers=tuple(
                WorkerSigns(
                    name=name,
                    queues=_decode_list(queues),
                    tasks=_decode_list(tasks),
                    labels=_decode_list(labels),
                    datacenter=datacenter,
                    draining=bool(draining),
                )
                for name, queues, tasks, labels, datacenter, draining in _fetch_rows(connection, _SQL["workers"], now)
            ),
            queued=tuple(
                Queued(queue=queue, task=task, runs=runs, requires=_decode_list(requires))
                for queue, task, runs, requires in _fetch_rows(connection, _SQL["queued"], now)
            ),
            expired=tuple(
                name for (name,) in _fetch_rows(connection, _SQL["expired_sessions"], get_reaping_limit(now))
            ),
            unstaged=unstaged,
            oldest_unstaged=oldest_unstaged,
            unfired=unfired,
            oldest_unfired=oldest_unfired,
            waiting=bool(_fetch_value(connection, _SQL["waiting"])),
            readers=tuple(
                ReaderSigns(name=name, oldest=now if oldest is None else oldest)
                for name, oldest in _fetch_rows(connection, _SQL["readers"], now)
            ),
            dead_letters=int(_fetch_value(connection, _SQL["dead_letters"])),
            pauses=tuple(_fetch_rows(connection, _SQL["pauses"], now)),
            paused_jobs=tuple(_fetch_rows(connection, _SQL["paused_jobs"], now)),
            tzdata=tuple(_fetch_rows(connection, _SQL["tzdata"], now)),
        )


def _check_schema(version: int) -> list[Finding]:
    newest = connections.MIGRATIONS[-1][0]
    if version == newest:
        return [found("schema", f"version {version}")]
    if version > newest:
        return [blamed("schema", f"version {version}; this program knows up to {newest}", "upgrade the program")]
    summary = f"version {version}, {newest} is the newest" if version else "there is none yet"
    return [warned("schema", summary, "mainspring migrate, or start any process: it does that first")]


def _report_unreachable(summary: str, advice: str) -> Examination:
    return Examination(findings=[blamed("store", summary, advice)])


def _decode_list(text: str) -> tuple[str, ...]:
    return msgspec.json.decode(text, type=tuple[str, ...])


def _fetch_rows(connection: apsw.Connection, query: str, now: Instant = 0) -> list[Any]:
    return connection.execute(query, {"now": now}).fetchall()


def _fetch_row(connection: apsw.Connection, query: str, now: Instant = 0) -> Any:
    return _fetch_rows(connection, query, now)[0]


def _fetch_value(connection: apsw.Connection, query: str, now: Instant = 0) -> Any:
    return _fetch_row(connection, query, now)[0]
