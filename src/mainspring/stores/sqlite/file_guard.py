"""Detects that the file of a store was removed, replaced or overwritten while this process has it open.

SQLite notices none of this: it keeps pages in its log and in memory, and would answer for minutes. Everything that it
writes meanwhile is lost at the next restart.

Every checkpoint is preceded by a new *generation*: a random stamp in the header of the file, and a row in
``file_generation``. Only a checkpoint changes the file itself, so its header always holds a generation that this
process knows or that other processes added since. An older copy of the file has an earlier generation, and any other
file has a stamp that is not in the table.
"""

import fcntl
import os
import secrets
from contextlib import suppress
from itertools import count
from pathlib import Path
from threading import Event, Lock, Thread

import apsw

from mainspring.core.model.base.errors import StoreDamaged, StoreUnavailable
from mainspring.core.runtime.log import get_logger
from mainspring.stores.sqlite import connection as connections

_log = get_logger("mainspring.store")
#: How often to check while no request does.
_CHECK_SECONDS = 0.5
#: Where the header of the file keeps the number that ``PRAGMA user_version`` sets.
_STAMP_OFFSET = 60
#: How many generations the table keeps. A process that slept longer accepts the oldest one that is left.
_GENERATIONS_KEPT = 10_000
_VERIFY = (
    "SELECT max(iif(stamp = :found, number, NULL)), min(number), max(iif(number = :number, stamp, NULL))"
    " FROM file_generation"
)
#: Numbers that never decrease: claims, sessions, events, audit entries, generations.
_PROGRESS = "SELECT fence_seq + (SELECT total(seq) FROM sqlite_sequence) FROM meta"


def begin_generation(connection: apsw.Connection) -> None:
    """Stamp the file in a transaction of its own. Call it before each checkpoint."""
    stamp = 1 + secrets.randbelow((1 << 31) - 1)
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute("INSERT INTO file_generation (stamp) VALUES (:stamp)", {"stamp": stamp})
        connection.execute(
            "DELETE FROM file_generation WHERE number <= :number",
            {"number": connection.last_insert_rowid() - _GENERATIONS_KEPT},
        )
        connection.execute(f"PRAGMA user_version = {stamp}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


class FileGuard:
    """Shared by the threads of a store. The first damage that it finds stays: a file that was lost does not come back.

    It also publishes the damage beside the file, for ``doctor``, which would otherwise look at the new file only.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._paths = (str(path), f"{path}-wal")
        self._lock = Lock()
        self._stopped = Event()
        self._thread: Thread | None = None
        self._notice = DamageNotice(path)
        self.reset()

    def reset(self) -> None:
        """Forget the file: the next check accepts the one that is there."""
        self._known: dict[str, tuple[int, int]] = {}
        self._size = 0
        self._number = 0
        self._stamp = 0
        self._progress = 0.0
        self._damage = ""
        #: The file is not the one that was opened, so the log does not belong to it.
        self._is_other = False

    def start(self) -> None:
        """Check the file from now on, even if no request comes."""
        remove_old_notices(self._path)
        self._stopped.clear()
        self._thread = Thread(target=self._watch, name="mainspring-sqlite-guard", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stopped.set()
            thread.join()
        self._notice.remove()

    def check(self, connection: apsw.Connection | None = None) -> None:
        """Raise ``StoreDamaged`` if the file is not the one that was opened. Call it before acknowledging a commit."""
        if not self._damage:
            problem = self._examine_files()
            if not problem and connection is not None:
                problem = self._examine_generation(connection)
            if problem:
                self._is_other = True
                self.report(problem)
        if self._damage:
            # A new exception, because one that is raised on several threads would collect the tracebacks of all.
            raise StoreDamaged(self._damage)

    def report(self, problem: str) -> None:
        """Keep the first problem, log it and publish it for ``doctor``."""
        with self._lock:
            if self._damage:
                return
            self._damage = problem
        _log.error("store damaged", store=str(self._path), error=problem)
        self._notice.publish(problem)

    def close(self, connection: apsw.Connection) -> None:
        """Close a connection. The last one would write the log into a file that it does not belong to."""
        if self._is_other:
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.close()

    def put_log_aside(self) -> None:
        """Rename the log of a lost file after the last connection: the next start would apply it to the other file."""
        log = Path(self._paths[1])
        with suppress(OSError):
            found = os.stat(log)
            if self._is_other and (found.st_dev, found.st_ino) == self._known.get(self._paths[1]):
                kept = log.with_name(f"{log.name}.lost-{os.getpid()}")
                log.rename(kept)
                _log.warning("log of the lost file put aside", log=str(kept))

    def _watch(self) -> None:
        connection = None
        try:
            while not self._damage:
                try:
                    connection = connection or connections.open_for_reading(self._path)
                    self.check(connection)
                    self._check_progress(connection)
                except apsw.Error as error:
                    if isinstance(meaning := connections.convert_error(error), StoreDamaged):
                        self.report(str(meaning))
                except StoreUnavailable:
                    # Reported above, or the file cannot be opened at the moment, which the next check reports.
                    pass
                if self._stopped.wait(_CHECK_SECONDS):
                    return
        finally:
            if connection is not None:
                self.close(connection)

    def _examine_files(self) -> str:
        for path in self._paths:
            known = self._known.get(path)
            try:
                found = os.stat(path)
            except FileNotFoundError:
                if known is not None:
                    return f"{path} was removed while it was in use; restart with a backup"
                continue
            except OSError as error:
                return f"{path} cannot be looked at: {error.strerror}"
            if known is None:
                self._known[path] = (found.st_dev, found.st_ino)
            elif known != (found.st_dev, found.st_ino):
                return f"{path} was replaced while it was in use; restart with the file that is right"
            if path == self._paths[0]:
                # SQLite never shrinks a file that a process has open.
                if found.st_size < self._size:
                    return f"{path} was overwritten or cut while it was in use; restart with a backup"
                self._size = found.st_size
        return ""

    def _examine_generation(self, connection: apsw.Connection) -> str:
        if _read_stamp(connection) == self._stamp:
            return ""
        with self._lock:
            # Read again: another thread may have moved on in the meantime.
            found = _read_stamp(connection)
            if found == self._stamp:
                return ""
            try:
                if number := self._find_generation(connection, found):
                    self._number, self._stamp = number, found
                    return ""
            except apsw.Error as error:
                if not isinstance(connections.convert_error(error), StoreDamaged):
                    raise
        return f"{self._path} was overwritten while it was in use; restart with the file that is right"

    def _find_generation(self, connection: apsw.Connection, found: int) -> int | None:
        """Return the number of the generation with this stamp, if it can follow the one that is known."""
        row = connection.execute(_VERIFY, {"found": found, "number": self._number}).fetchone()
        assert row is not None
        number, oldest, stamp = row
        if not isinstance(number, int) or not isinstance(oldest, int):
            return None
        # Number 0: the file was opened a moment ago.
        may_follow = not self._number or oldest > self._number or stamp == self._stamp
        return number if may_follow and number > self._number else None

    def _check_progress(self, connection: apsw.Connection) -> None:
        progress = connection.execute(_PROGRESS).get
        assert isinstance(progress, float)
        if progress < self._progress:
            self.report(f"{self._path} was set back to an earlier state while it was in use; restart with a backup")
        self._progress = progress


def _read_stamp(connection: apsw.Connection) -> int:
    """Read the stamp from the file itself, not from the log or from memory."""
    _, stamp = connection.read("main", 0, _STAMP_OFFSET, 4)
    return int.from_bytes(stamp, "big")


class DamageNotice:
    """A file beside the store that says what a running process has lost. Its lock shows that the process lives.

    Each has a file of its own: a process may have several stores on one file, and each notices the loss.
    """

    _numbers = count()

    def __init__(self, path: Path) -> None:
        self._path = path.parent / f"{path.name}.damaged-{os.getpid()}.{next(self._numbers)}"
        self._descriptor: int | None = None

    def publish(self, problem: str) -> None:
        # The folder may be gone or full. The log and the probes report the damage as well.
        with suppress(OSError):
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(self._descriptor, problem.encode())

    def remove(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            self._path.unlink(missing_ok=True)
            os.close(descriptor)


def read_damage_notices(path: Path) -> dict[str, str]:
    """Return what running processes have lost, by process id."""
    return {name.rpartition("-")[2].partition(".")[0]: text for name, text, alive in _notices(path) if alive}


def remove_old_notices(path: Path) -> None:
    """Remove what processes left behind that were killed."""
    for name, _, alive in _notices(path):
        if not alive:
            path.with_name(name).unlink(missing_ok=True)


def _notices(path: Path) -> list[tuple[str, str, bool]]:
    found = []
    prefix = f"{path.name}.damaged-"
    with suppress(OSError):
        for name in sorted(name for name in os.listdir(path.parent) if name.startswith(prefix)):
            with suppress(OSError), path.with_name(name).open("rb") as file:
                text = file.read().decode(errors="replace")
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    alive = False
                except BlockingIOError:
                    alive = True
                found.append((name, text, alive))
    return found
