"""Connections to the SQLite file: location checks, opening, migrations and error mapping."""

import os
import secrets
from importlib.resources import files
from pathlib import Path

import apsw

from mainspring.core.model.base.errors import Conflict, Invalid, MainspringError, StoreDamaged, StoreUnavailable
from mainspring.core.model.base.instant import SECOND, Micros
from mainspring.core.ports.upkeep.schema import TOO_OLD
from mainspring.core.runtime.private_files import create_private_file
from mainspring.stores import statements
from mainspring.stores.sqlite.constants import CONSTANTS
from mainspring.stores.sqlite.work.limiters import create_limit_functions

PACKAGE = "mainspring.stores.sqlite"
MIGRATIONS = statements.migrations(PACKAGE)
QUERIES = statements.load(PACKAGE, "queries.sql", CONSTANTS)
#: The ``application_id`` that 0001_store.sql writes into the file header: "MSP2".
APPLICATION_ID = 0x4D535032

#: How long to wait for a transaction of another process.
BUSY_TIMEOUT: Micros = 5 * SECOND

#: Attempts to switch to a write-ahead log. Of several processes that try at once, one succeeds, and that is enough.
_SWITCH_ATTEMPTS = 100

#: File systems without locks or shared memory, at least between machines: they would silently corrupt a database.
_NETWORK_FILE_SYSTEMS = frozenset(
    (
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "smb3",
        "smbfs",
    )
)

_DAMAGED = (apsw.CorruptError, apsw.NotADBError, apsw.FormatError)
#: Errors of the request, not of the database: the same request would fail again.
_REFUSED = (apsw.ConstraintError, apsw.MismatchError, apsw.RangeError, apsw.SQLError, apsw.TooBigError)


def refuse_network_file_system(path: Path) -> None:
    kind = find_file_system(path)
    if is_on_network(kind):
        raise Invalid(
            "store",
            f"{path} lies on a network file system ({kind}), where SQLite cannot lock",
            "use a local disk, or PostgreSQL for several machines",
        )


def is_on_network(kind: str) -> bool:
    return kind in _NETWORK_FILE_SYSTEMS or kind.startswith("fuse.")


def find_file_system(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """Return the kind of file system that a path lies on, such as ``ext4``; empty if it cannot be determined."""
    try:
        lines = mounts.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return ""
    real_path = os.path.realpath(path)
    deepest, kind = "", ""
    for line in lines:
        # A line is: … mount point … - type source options; spaces in names are written \040.
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        if len(fields) < 5 or not right:
            continue
        point = fields[4].replace("\\040", " ")
        contains = real_path == point or real_path.startswith(point.rstrip("/") + "/")
        # A later mount on the same point hides the earlier one.
        if contains and len(point) >= len(deepest):
            deepest, kind = point, right.split(" ")[0]
    return kind


def open_for_writing(path: Path, shards: int) -> apsw.Connection:
    """Open or create the file, apply missing migrations under a lock, and create the procedures of the connection."""
    try:
        if not path.parent.is_dir():
            raise Invalid("store", f"{path} cannot be made: there is no directory {path.parent}")
        if path.is_dir():
            raise Invalid("store", f"{path} is a directory", f"a file in it, such as {path / 'mainspring.db'}")
    except OSError as error:
        raise Invalid("store", f"{path} cannot be reached: {error.strerror}") from error
    refuse_network_file_system(path)
    # SQLite gives its log and its shared memory the mode of the file.
    try:
        create_private_file(path)
    except OSError as error:
        raise Invalid("store", f"{path} cannot be made: {error.strerror}") from error
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    connection = _connect(path, flags)
    try:
        refuse_moved(connection)
        if schema_version(connection) and drop_statistics(connection):
            # A connection reads the statistics when it opens.
            connection.close()
            connection = _connect(path, flags)
        _enable_write_ahead_log(connection)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA journal_size_limit = 67108864")
        migrate(connection, shards)
        create_limit_functions(connection)
        create_procedures(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def open_without_migrating(path: Path) -> apsw.Connection:
    """Open the file whatever its schema, and do not migrate it.

    The last connection to close merges the write-ahead log into the file.
    """
    return _connect(path, apsw.SQLITE_OPEN_READWRITE)


def _enable_write_ahead_log(connection: apsw.Connection) -> None:
    """Switch the file to a write-ahead log permanently.

    SQLite refuses the switch at once, despite the timeout, while another process is about to write. That is common when
    processes start together. So a refused switch waits for the other transaction and is tried again.
    """
    for _ in range(_SWITCH_ATTEMPTS):
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except apsw.BusyError:
            connection.execute("BEGIN EXCLUSIVE")
            connection.execute("ROLLBACK")
    connection.execute("PRAGMA journal_mode = WAL")


def open_for_reading(path: Path) -> apsw.Connection:
    connection = _connect(path, apsw.SQLITE_OPEN_READWRITE)
    connection.execute("PRAGMA query_only = ON")
    return connection


def _connect(path: Path, flags: int) -> apsw.Connection:
    try:
        connection = apsw.Connection(str(path), flags=flags)
    except apsw.CantOpenError as error:
        raise StoreUnavailable(f"SQLite cannot open {path}: {error}") from error
    try:
        connection.set_busy_timeout(BUSY_TIMEOUT // 1_000)
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("PRAGMA cache_size = -65536")
    except BaseException:
        connection.close()
        raise
    return connection


def drop_statistics(connection: apsw.Connection) -> bool:
    """Undo an ANALYZE; report whether there was one. Statistics of a small table would cause full scans forever."""
    tables = list(
        connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name GLOB 'sqlite_stat*'")
    )
    for (name,) in tables:
        connection.execute(f"DROP TABLE IF EXISTS {name}")
    return bool(tables)


def refuse_moved(connection: apsw.Connection) -> None:
    """Raise ``Conflict`` if the store was moved: the file holds old rows and must not be written."""
    if _fetch_number(connection, "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'moved'"):
        raise Conflict(str(connection.execute("SELECT message FROM moved").get))


def migrate(connection: apsw.Connection, shards: int) -> None:
    """Apply the missing migrations, all or none, one process at a time. Refuse a schema of a newer program."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        _migrate(connection, shards)
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _migrate(connection: apsw.Connection, shards: int) -> None:
    current, newest = schema_version(connection), MIGRATIONS[-1][0]
    if current > newest:
        raise Conflict(f"the file has schema version {current}, this program knows {newest}: upgrade the program")
    for number, _, text in MIGRATIONS:
        if number <= current:
            continue
        connection.execute(text)
        if number == 1:
            connection.execute(
                "INSERT INTO meta (only_row, schema_version, store_id, hint_key, shards)"
                " VALUES (1, 1, :store_id, :hint_key, :shards)",
                {"store_id": secrets.token_hex(16), "hint_key": secrets.token_hex(16), "shards": shards},
            )
            connection.executemany("INSERT INTO shard (id) VALUES (:id)", [{"id": shard} for shard in range(shards)])
        connection.execute("UPDATE meta SET schema_version = :schema_version", {"schema_version": number})


def schema_version(connection: apsw.Connection) -> int:
    """Return the version; 0: the file is empty. ``Conflict`` if another program or an older checkout made the file."""
    # One query: between two, another process could create the schema.
    query = "SELECT iif(count(*) = 0, 0, 1 + coalesce(sum(type = 'table' AND name = 'meta'), 0)) FROM sqlite_master"
    found = _fetch_number(connection, query)
    if found < 2:
        if found == 1:
            raise Conflict("the file is a database of something else: it has tables, but none of Mainspring's")
        return 0
    version = _fetch_number(connection, "SELECT schema_version FROM meta")
    if _fetch_number(connection, "PRAGMA application_id") != APPLICATION_ID:
        raise Conflict(
            f"{connection.filename} was made by an older checkout (its schema version is {version}): {TOO_OLD}"
        )
    return version


def read_shards(connection: apsw.Connection) -> int:
    """Return how many shards the store was created with."""
    return _fetch_number(connection, "SELECT shards FROM meta")


def _fetch_number(connection: apsw.Connection, query: str) -> int:
    value = connection.execute(query).get
    assert isinstance(value, int)
    return value


def create_procedures(connection: apsw.Connection) -> None:
    """Create the procedures, which live as long as the connection."""
    scripts = [entry for entry in files(PACKAGE).joinpath("procedures").iterdir() if entry.name.endswith(".sql")]
    for script in sorted(scripts, key=lambda entry: entry.name):
        connection.execute(statements.insert_constants(script.read_text("utf-8"), CONSTANTS))


def convert_error(error: apsw.Error) -> MainspringError:
    """Convert an SQLite error to the error that the caller gets."""
    if blames_request(error):
        return Invalid("batch", f"SQLite refused it: {error}")
    if isinstance(error, _DAMAGED):
        return StoreDamaged(f"the file of the store is damaged, or is no SQLite database: {error}")
    if _lacks_schema(error):
        return StoreDamaged(f"the file of the store is another database than before: {error}")
    return StoreUnavailable(f"SQLite: {type(error).__name__}: {error}")


def blames_request(error: apsw.Error) -> bool:
    return isinstance(error, _REFUSED) and not _lacks_schema(error)


def _lacks_schema(error: apsw.Error) -> bool:
    """Report whether a table or a column is missing that the migrations created: the file was overwritten."""
    return isinstance(error, apsw.SQLError) and str(error).startswith(("no such table", "no such column"))
