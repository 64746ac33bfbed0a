"""Reads all rows of an SQLite store for a move to another store, and marks the file as moved."""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, cast

import apsw
import msgspec

from mainspring.core.model.base.errors import Conflict, StoreUnavailable
from mainspring.core.model.base.instant import SECOND
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.upkeep.transfer import BATCH, KINDS, Row, StoreFacts
from mainspring.stores import statements
from mainspring.stores.sqlite import connection as connections
from mainspring.stores.sqlite.rows.encoding import decode_bytes

#: Tables that are not moved: recent events, their readers, and everything that is rebuilt.
LEFT = frozenset(
    {"meta", "shard", "outbox", "outbox_cursor", "sqlite_sequence", "schedule", "body", "label_set", "mark"}
) | {
    # Dead letters are reported again.
    "dead_group",
    "dead_watch",
    "queue_turn",
    "queue_retry",
    # Rebuilt when jobs fire, and when an order is first needed.
    "version_target",
    "datacenter_order",
    # Counting starts again.
    "log_day",
    "load",
    "timing",
    # Persistent problems are alerted once more.
    "notification",
    # Workers register their tasks again when they start.
    "task",
    # It applies to dashboard sessions of the old store only.
    "signed_out",
    # It describes the file.
    "file_generation",
}
#: Table families of which ``Facts`` lists the days that have rows.
FAMILIES = (
    "history_succeeded",
    "history_unsuccessful",
    "history_short",
    "history_long",
    "history_audit",
    "attempt",
    "ledger",
    "log",
)
#: Columns of moved tables that other stores do not have, because they record the same in another way.
LEFT_COLUMNS: Mapping[str, frozenset[str]] = {
    "attempt": frozenset({"counted"}),
    "schedule": frozenset({"job_id", "awaits"}),
    # Moved as separate fields.
    "progress": frozenset({"report"}),
    # Used by live sessions only.
    "session": frozenset({"live", "claim_groups", "serves", "clock_offset", "clock_error", "tzdata"}),
    # Fair turns start again.
    "queue_policy": frozenset({"clock"}),
}
T = TypeVar("T")
_SQL = statements.load(connections.PACKAGE, "transfer.sql")
#: The tables that the kinds are read from.
TABLES = {
    "session",
    "tenant",
    "api_key",
    "pause",
    "job",
    "job_version",
    "run",
    "waiting",
    "key_lock",
    "history",
    "attempt",
}
TABLES |= {"ledger", "label", "idempotency", "progress", "checkpoint", "log", "audit", "minute", "usage", "budget"}
TABLES |= {"limiter", "dependent", "edge", "ended_parent", "unique_run"}
TABLES |= {"calendar", "slo", "queue_policy", "replay"}


def _decode_content(text: str | None) -> bytes | None:
    return None if text is None else decode_bytes(text)


def _decode_list(text: str) -> list[str]:
    return msgspec.json.decode(text, type=list[str])


def _decode_numbers(text: str, kind: type[T]) -> T:
    return msgspec.json.decode(text, type=kind)


#: Decoders for columns that do not hold values of the model.
_DECODERS: Mapping[str, Callable[[Any], object]] = {
    "payload": _decode_content,
    "result": _decode_content,
    "policy": _decode_content,
    "about": _decode_content,
    "quotas": _decode_content,
    "spec": _decode_content,
    "before": _decode_content,
    "after": _decode_content,
    "queues": _decode_list,
    "tasks": _decode_list,
    "labels": _decode_list,
    "priorities": lambda text: _decode_numbers(text, list[int]),
    "requires": lambda text: [] if text is None else _decode_list(text),
    # Groups of five numbers: kind, number, most, per, pause.
    "limits": lambda text: (
        None if text is None else [n for limit in _decode_numbers(text, list[list[int]]) for n in limit]
    ),
    "times": lambda text: _decode_numbers(text, list[int]),
}


class SqliteSource:
    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._connection: apsw.Connection | None = None

    def open(self) -> StoreFacts:
        if not self._path.is_file():
            raise StoreUnavailable(f"there is no store {self._path}")
        try:
            connection = self._connection = connections.open_for_writing(self._path, 1)
        except apsw.Error as error:
            raise StoreUnavailable(f"{self._path} cannot be read: {error}") from None
        try:
            # No other process can write from here on.
            connection.execute("BEGIN IMMEDIATE")
        except apsw.BusyError:
            raise Conflict(f"another process writes to {self._path} all the time: stop the processes first") from None
        self._refuse_live_processes()
        return self._read_facts()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def counts(self) -> Mapping[str, int]:
        # Count the rows of the query, because some kinds combine several tables.
        return {kind: self._fetch_number(f"SELECT count(*) FROM ({_SQL[kind]})") for kind in KINDS}  # noqa: S608

    def batches(self, kind: str) -> Iterator[list[Row]]:
        cursor = self._open.execute(_SQL[kind])
        try:
            columns = [description[0] for description in cursor.get_description()]
        except apsw.ExecutionCompleteError:
            # The query returns no rows.
            return
        while rows := list(islice(cursor, BATCH)):
            batch = [dict(zip(columns, row, strict=True)) for row in rows]
            for column in columns:
                if (read := _DECODERS.get(column)) is not None:
                    for row in batch:
                        row[column] = read(row[column])
            yield batch

    def mark_moved(self, to: str) -> None:
        connection = self._open
        message = f"this store was moved to {to}"
        connection.execute("CREATE TABLE moved (message TEXT NOT NULL) STRICT")
        connection.execute("INSERT INTO moved (message) VALUES (:message)", {"message": message})
        tables = [
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        ]
        quoted = message.replace("'", "''")
        for table in tables:
            if str(table).startswith("sqlite_"):
                continue
            for event in ("INSERT", "UPDATE", "DELETE"):
                # The triggers also stop processes that have the file open but are idle now.
                connection.execute(
                    f"CREATE TRIGGER moved_{table}_{event.lower()} BEFORE {event} ON {table} "
                    f"BEGIN SELECT RAISE(ABORT, '{quoted}'); END"
                )
        connection.execute("COMMIT")

    @property
    def _open(self) -> apsw.Connection:
        assert self._connection is not None
        return self._connection

    def _fetch_number(self, query: str) -> int:
        found = self._open.execute(query).get
        return found if isinstance(found, int) else 0

    def _refuse_live_processes(self) -> None:
        now = self._clock.now()
        alive = self._open.execute(_SQL["live"], {"now": now}).fetchall()
        if alive:
            longest = max(int(str(left)) for _, left in alive) // SECOND + 1
            raise Conflict(
                f"{len(alive)} processes work on it: {', '.join(str(name) for name, _ in alive[:10])}; stop them first "
                f"(one that was killed is forgotten within {longest} s)"
            )

    def _read_facts(self) -> StoreFacts:
        connection = self._open
        row = connection.execute(_SQL["facts"]).fetchone()
        assert row is not None
        store_id, shards, epoch, fence, last_session, counted_until = row

        def read_all(name: str) -> list[Any]:
            return [value for (value,) in connection.execute(_SQL[name]).fetchall()]

        return StoreFacts(
            store_id=str(store_id),
            shards=int(str(shards)),
            store_epoch=int(str(epoch)),
            fence_seq=int(str(fence)),
            last_session=int(str(last_session)),
            epochs=dict(cast("list[tuple[int, int]]", connection.execute(_SQL["epochs"]).fetchall())),
            tenants=frozenset(read_all("names_tenant")),
            tasks=frozenset(read_all("names_task")),
            queues=frozenset(read_all("names_queue")),
            requirements=frozenset(tuple(_decode_list(text)) for text in read_all("requirements")),
            days={family: frozenset(read_all(f"days_{family}")) for family in FAMILIES},
            counted_until=int(str(counted_until)),
        )
