"""Moves a placement group with all its rows to another server. Each step is a transaction that may be repeated."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from mainspring.core.model.base.errors import Conflict
from mainspring.core.model.base.instant import DAY
from mainspring.stores.postgres.codes import NameKind
from mainspring.stores.postgres.database import Connection
from mainspring.stores.postgres.partitions import FAMILIES, HISTORIES, Partitions
from mainspring.stores.postgres.work.placement_groups import WITH_SHARD, WITH_TENANT, PlacementGroupMixin
from mainspring.stores.postgres.work.queues import QueueMixin

#: Table → the column whose id determines the placement group. The other server inserts the rows in this order.
_BY_ID = {
    "job": "id",
    "job_version": "job_id",
    "schedule": "job_id",
    "slo": "job_id",
    "body": "id",
    "label": "id",
    "run": "id",
    "waiting": "id",
    "key_lock": "holder",
    "dependent": "run_id",
    "edge": "child",
    "ended_parent": "run_id",
    "idempotency": "id",
    "unique_run": "run_id",
    "history": "id",
    "attempt": "run_id",
    "ledger": "job_id",
    "dead_letter": "run_id",
    "progress": "run_id",
    "checkpoint": "run_id",
    "log": "run_id",
    "attempt_kept": "run_id",
    "ledger_kept": "job_id",
    "log_kept": "run_id",
}
_BY_TENANT = ("calendar", "budget", "dead_group")
#: Rows per chunk.
_CHUNK = 2_000
#: Seconds that one statement may take. No other process waits for its answer.
_LONGEST = 600
#: The columns that hold the number of a name.
_NUMBERS = ("tenant", "task", "queue")
#: History class → history table.
_HISTORY_OF = {1: "history_succeeded", 2: "history_unsuccessful"} | {n + 2: name for n, name in HISTORIES.items()}
#: Partitioned table → function that returns the parent table and day of a row.
_DAYS: Mapping[str, Callable[[Mapping[str, Any]], tuple[str, int]]] = {
    "body": lambda row: ("body", row["bucket"]),
    "label": lambda row: ("label", row["bucket"]),
    "history": lambda row: (
        (family := _HISTORY_OF[row["class"]]),
        row["finished_at"] // FAMILIES[family],
    ),
    "attempt": lambda row: ("attempt", row["ended_at"] // DAY),
    "ledger": lambda row: ("ledger", row["scheduled_at"] // DAY),
    "log": lambda row: ("log", row["at"] // DAY),
}


class PlacementTransfer(msgspec.Struct):
    """A placement group in transit: its rows by table, in chunks, and the names behind the numbers in them."""

    target: int
    version: int
    #: Encoded, as they were sent. Decoding all rows at once would take several times the memory, and so long that the
    #: server would end the idle transaction.
    chunks: list[tuple[str, str]]
    names: dict[int, tuple[int, str]]

    def rows(self, *kinds: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """Yield decoded rows chunk by chunk, of these tables or of all."""
        for kind, rows in self.chunks:
            if not kinds or kind in kinds:
                yield kind, msgspec.json.decode(rows)


class PlacementMoveMixin(PlacementGroupMixin, QueueMixin):
    _partitions: Partitions

    async def depart(self, group: int, target: int) -> bool:
        """Hand a placement group over to another server with all rows; False: it is not here.

        From then on, its rows are refused here.
        """

        async def work(connection: Connection) -> bool:
            schema = self._db.schema
            await connection.execute("SET LOCAL statement_timeout = 0; SET LOCAL enable_seqscan = on")
            # Writers in progress finish first. Later ones wait until this is done, and are then refused.
            tables = ", ".join(f"{schema}.{table}" for table in _moved())
            await connection.execute(f"LOCK TABLE {tables} IN SHARE ROW EXCLUSIVE MODE")
            version = await connection.fetchval(*self._db.sql["release_placement_group"].bind(group=group))
            if version is None:
                return False
            await connection.execute(*self._db.sql["add_departure"].bind(group=group, target=target, version=version))
            await self._pack(connection, group)
            await self._guard(connection)
            return True

        return await self._db.transaction(work)

    async def _pack(self, connection: Connection, group: int) -> None:
        schema = self._db.schema
        groups = await connection.fetchval(f"SELECT count(*) FROM {schema}.placement_group")
        of_group = (
            f"FROM {schema}.name n WHERE n.kind = {NameKind.TENANT:d} "
            f"AND {schema}.compute_tenant_placement(n.name, {groups}) = {group}"
        )
        tenants, named = f"SELECT n.id {of_group}", f"SELECT n.name {of_group}"
        where = {
            table: f"{schema}.compute_id_placement(t.{column}, {groups}) = {group}" for table, column in _BY_ID.items()
        }
        where |= dict.fromkeys(_BY_TENANT, f"t.tenant = ANY (ARRAY({tenants}))")
        where["replay"] = f"t.tenant = ANY (ARRAY({named}))"
        number = 0
        # Before the runs inside the limits are deleted. A limiter does not name its tenant: its times are copied in any
        # case, since no other tenant has a limiter of that number.
        inside = " UNION ".join(
            f"SELECT g.number FROM {schema}.{table} t, {schema}.unpack_limits(t.limits) AS g "
            f"WHERE t.limits IS NOT NULL AND {where[table]}"
            for table in ("run", "waiting")
        )
        limiters = (
            f"SELECT to_jsonb(t) FROM {schema}.limiter t WHERE t.number = ANY (ARRAY({inside})) UNION ALL "
            f'SELECT to_jsonb(t) || \'{{"used": 0, "head": null, "recalls": false, "wake_at": null}}\' '
            f"FROM {schema}.limiter t WHERE t.number <> ALL (ARRAY({inside})) "
            f"AND (t.forget_at > {schema}.now_us() OR t.open_until IS NOT NULL)"
        )
        number = await self._stow(connection, group, number, "limiter", limiters)
        await connection.execute(f"DELETE FROM {schema}.limiter t WHERE t.number = ANY (ARRAY({inside}))")
        for table, condition in where.items():
            rows = f"SELECT to_jsonb(t) FROM {schema}.{table} t WHERE {condition}"
            number = await self._stow(connection, group, number, table, rows)
        for table, condition in where.items():
            await connection.execute(f"DELETE FROM {schema}.{table} t WHERE {condition}", timeout=_LONGEST)
        weighted = f"SELECT jsonb_build_object('queue', q.queue) FROM {schema}.queue_policy q WHERE q.weighted"
        await self._stow(connection, group, number, "weighted", weighted)

    async def _stow(self, connection: Connection, group: int, number: int, kind: str, rows: str) -> int:
        """Put the rows of a query into the outbox of departures; return the number of the next chunk."""
        status = await connection.execute(
            f"INSERT INTO {self._db.schema}.departed (placement_group, number, kind, rows) "
            f"SELECT {group}, {number} + n / {_CHUNK}, '{kind}', jsonb_agg(r) "
            f"FROM (SELECT q.r, row_number() OVER () - 1 AS n FROM ({rows}) AS q(r)) AS numbered GROUP BY n / {_CHUNK}",
            timeout=_LONGEST,
        )
        return number + int(status.rsplit(" ", 1)[-1])

    async def transfer(self, group: int) -> PlacementTransfer | None:
        """Return what a placement group has left with; None: it is not in transit."""

        async def work(connection: Connection) -> PlacementTransfer | None:
            departure = await connection.fetchrow(*self._db.sql["departure"].bind(group=group))
            if departure is None:
                return None
            await connection.execute("SET LOCAL statement_timeout = 0")
            rows = await connection.fetch(*self._db.sql["departed"].bind(group=group), timeout=_LONGEST)
            names = await connection.fetch(f"SELECT id, kind, name FROM {self._db.schema}.name")
            return PlacementTransfer(
                departure["target"],
                departure["version"],
                [(row["kind"], row["rows"]) for row in rows],
                {row["id"]: (row["kind"], row["name"]) for row in names},
            )

        return await self._db.transaction(work)

    async def arrive(self, group: int, transfer: PlacementTransfer) -> None:
        """Take in a placement group with all rows. A repeated call changes nothing."""
        await self._make_room(transfer)
        numbers = await self._map_numbers(transfer)
        schema = self._db.schema

        async def work(connection: Connection) -> None:
            await connection.execute(
                "SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0"
            )
            held = await connection.fetchrow(*self._db.sql["lock_placement_group"].bind(group=group))
            if held is None:
                raise Conflict(f"there is no placement group {group}")
            if held["version"] >= transfer.version:
                return
            # One arrival at a time, with the tables in the same order as for a departure: moves wait for each other.
            await connection.execute("SELECT pg_advisory_xact_lock(hashtext($1))", f"{schema}.arrivals")
            tables = ", ".join(f"{schema}.{table}" for table in _moved())
            await connection.execute(f"LOCK TABLE {tables} IN ROW EXCLUSIVE MODE")
            # Most rows are history, and are inserted while all other work continues.
            for kind, rows in transfer.rows():
                if kind not in (*WITH_SHARD, *WITH_TENANT, "weighted"):
                    await self._unpack(connection, kind, [_translated(row, numbers) for row in rows])
            await connection.execute(
                f"LOCK TABLE {schema}.run, {schema}.schedule, {schema}.waiting IN SHARE ROW EXCLUSIVE MODE"
            )
            await connection.execute(*self._db.sql["take_placement_group"].bind(group=group, version=transfer.version))
            await self._guard(connection)
            for kind, rows in transfer.rows(*WITH_SHARD, *WITH_TENANT):
                await self._unpack(connection, kind, [_translated(row, numbers) for row in rows])
            targets = sorted(
                {row["target"] for _, rows in transfer.rows("run", "waiting") for row in rows if row["target"]}
            )
            if targets:
                await connection.execute(*self._db.sql["open_own_groups"].bind(workers=targets))
            await connection.execute(
                f"SELECT setval('{schema}.log_position', greatest(nextval('{schema}.log_position'), "
                f"(SELECT coalesce(max(position), 0) + 1 FROM {schema}.log)))"
            )

        await self._db.transaction(work)

    async def _unpack(self, connection: Connection, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        await connection.execute(
            f"INSERT INTO {self._db.schema}.{table} "
            f"SELECT * FROM jsonb_populate_recordset(NULL::{self._db.schema}.{table}, $1::text::jsonb) "
            "ON CONFLICT DO NOTHING",
            msgspec.json.encode(rows).decode(),
            timeout=_LONGEST,
        )

    async def _make_room(self, transfer: PlacementTransfer) -> None:
        """Make partitions for the days of the arriving rows. They do no harm if the rows never arrive."""
        wanted: dict[str, set[int]] = {}
        for kind, rows in transfer.rows(*_DAYS):
            for family, day in map(_DAYS[kind], rows):
                if day > 0:
                    wanted.setdefault(family, set()).add(day)
        assert wanted.keys() <= FAMILIES.keys()
        await self._partitions.make(wanted)

    async def _map_numbers(self, transfer: PlacementTransfer) -> dict[int, int]:
        """Map the numbers of names on the other server to their numbers here."""
        words = {number: (NameKind(kind), name) for number, (kind, name) in transfer.names.items()}
        await self._names.assign_numbers(pair for pair in words.values() if pair[0] is not NameKind.CLAIM_GROUP)
        numbers = {
            number: self._names.get_number(*pair)
            for number, pair in words.items()
            if pair[0] is not NameKind.CLAIM_GROUP
        }
        for number, (kind, name) in words.items():
            if kind is NameKind.CLAIM_GROUP:
                # Back to the label set. A claim moves the run to a finer group if the queue has claim groups here.
                claim_group = int(name.split(":")[1])
                numbers[number] = numbers.get(claim_group, claim_group)
        weighted = [words[row["queue"]][1] for _, rows in transfer.rows("weighted") for row in rows]
        await self._mark_weighted(weighted)
        return numbers

    async def forget_departures(self, groups: Sequence[int]) -> None:
        """Delete what was kept for the other server, which has taken in everything."""
        await self._db.execute("delete_departures", groups=groups)


def _moved() -> list[str]:
    """Return the tables with rows of placement groups, in the order in which they are locked."""
    return sorted((*_BY_ID, *_BY_TENANT, "limiter", "replay"))


def _translated(row: dict[str, Any], numbers: Mapping[int, int]) -> dict[str, Any]:
    found = dict(row)
    for column in _NUMBERS:
        value = row.get(column)
        if isinstance(value, int):
            found[column] = numbers.get(value, value)
    if row.get("claim_group", 0) > 0:
        found["claim_group"] = numbers[row["claim_group"]]
    return found
