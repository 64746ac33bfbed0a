"""Record every state that a run gets in a store, and compare the changes with ``MOVES``.

PostgreSQL and SQLite record them by triggers that only tests install, so statements of every kind count.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import apsw
import asyncpg

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.runs.restored import KnownOutcome
from mainspring.core.model.runs.run import MOVES, RunState
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.operations import Operations
from mainspring.stores.memory.tables import Tables
from mainspring.stores.postgres.codes import STATES
from mainspring.stores.sqlite import SqliteStore

#: None if the run was purged: its id may be used again.
StateChange = tuple[RunId, RunState | None]
Move = tuple[RunState, RunState]

ALLOWED_MOVES = frozenset((before, after) for before, moves in MOVES.items() for after in moves)

_CANCELLING, _PURGED = 0, -1
#: The schema is formatted in.
POSTGRES_TRIGGERS = f"""
    SET search_path TO {{schema}};
    CREATE TABLE state_change (number bigint GENERATED ALWAYS AS IDENTITY, run uuid NOT NULL, state smallint NOT NULL);
    CREATE FUNCTION record_state() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
    DECLARE
        state smallint;
    BEGIN
        IF TG_OP = 'DELETE' THEN
            INSERT INTO {{schema}}.state_change (run, state) VALUES (OLD.id, {_PURGED});
            RETURN NULL;
        END IF;
        state := NEW.state;
        IF TG_TABLE_NAME = 'run' THEN
            IF NEW.cancel_at IS NOT NULL THEN
                state := {_CANCELLING};
            END IF;
        END IF;
        INSERT INTO {{schema}}.state_change (run, state) VALUES (NEW.id, state);
        RETURN NULL;
    END $$;
    CREATE TRIGGER record_state AFTER INSERT OR UPDATE OF state, cancel_at ON run
        FOR EACH ROW EXECUTE FUNCTION record_state();
    CREATE TRIGGER record_state AFTER INSERT OR UPDATE OF state ON waiting
        FOR EACH ROW EXECUTE FUNCTION record_state();
    CREATE TRIGGER record_state AFTER INSERT OR DELETE ON history
        FOR EACH ROW EXECUTE FUNCTION record_state();
"""

# A run that is being cancelled may be stored as queued for a moment, inside the transaction that ends it.
_RUN = "NEW.id, iif(NEW.cancel_at IS NOT NULL, 'cancelling', NEW.state)"
_WAITING = "NEW.id, iif(NEW.state IN ('limited', 'after'), 'blocked', NEW.state)"
_SQLITE_TRIGGERS = (
    ("INSERT ON main.run", _RUN),
    ("UPDATE OF state, cancel_at ON main.run", _RUN),
    ("INSERT ON main.waiting", _WAITING),
    ("UPDATE OF state ON main.waiting", _WAITING),
    ("INSERT ON main.history", "NEW.id, NEW.state"),
    ("DELETE ON main.history", "OLD.id, NULL"),
)


class RecordingTables(Tables):
    """The tables of a memory store. They compare the states of all runs after every transaction."""

    def __init__(self, clock: Clock, shards: int) -> None:
        super().__init__(clock, shards)
        self.state_changes: list[StateChange] = []
        self._last_states: dict[RunId, RunState] = {}

    @contextmanager
    def transaction(self) -> Iterator[Instant]:
        with super().transaction() as now:
            yield now
        states = {run.id: run.shown_state() for run in self.runs.values()}
        self.state_changes += [(run, None) for run in self._last_states.keys() - states.keys()]
        self.state_changes += states.items() - self._last_states.items()
        self._last_states = states


def record_in_sqlite(connection: apsw.Connection, now: Instant) -> str:
    """Install the triggers in the connection by which a store writes."""
    connection.execute("CREATE TEMP TABLE state_change (number INTEGER PRIMARY KEY, run TEXT, state TEXT)")
    for number, (event, values) in enumerate(_SQLITE_TRIGGERS):
        connection.execute(
            f"CREATE TEMP TRIGGER record_state_{number} AFTER {event} BEGIN"
            f" INSERT INTO state_change (run, state) VALUES ({values}); END"
        )
    return ""


async def read_from_sqlite(store: SqliteStore) -> list[StateChange]:
    changes: list[StateChange] = []

    def read(connection: apsw.Connection, now: Instant) -> str:
        for run, state in connection.execute("SELECT run, state FROM state_change ORDER BY number"):
            changes.append((RunId(str(run)), None if state is None else RunState(str(state))))
        return ""

    await store._writer.run(read)
    return changes


async def read_from_postgres(connection: "asyncpg.Connection[asyncpg.Record]") -> list[StateChange]:
    rows = await connection.fetch("SELECT run, state FROM state_change ORDER BY number")
    states = STATES | {_CANCELLING: RunState.CANCELLING}
    return [(RunId(row["run"].hex), states.get(row["state"])) for row in rows]


def find_moves(changes: Iterable[StateChange]) -> set[Move]:
    """Return every pair of consecutive states of a run."""
    moves = set()
    states: dict[RunId, RunState | None] = {}
    for run, after in changes:
        before = states.get(run)
        states[run] = after
        if before is not None and after is not None and before is not after:
            moves.add((before, after))
    return moves


def record_known_ends(store: Operations) -> set[RunId]:
    """Return the set to which the store will add the runs that ``finish`` ends."""
    finish = store.finish
    known: set[RunId] = set()

    async def record(ends: Sequence[KnownOutcome], author: Author) -> dict[RunId, RunState]:
        known.update(end.run for end in ends)
        return await finish(ends, author)

    store.finish = record  # type: ignore[method-assign]
    return known
